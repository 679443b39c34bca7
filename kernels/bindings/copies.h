// Copies between memory that lies apart and one buffer.
#pragma once

#include <nanobind/nanobind.h>

namespace numaserve {

void bind_copies(nanobind::module_& m);

}  // namespace numaserve
