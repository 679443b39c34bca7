// The Python binding of the memory of adapters.
#pragma once

#include <nanobind/nanobind.h>

namespace numaserve {

void bind_adapters(nanobind::module_& m);

}  // namespace numaserve
