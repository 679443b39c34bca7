// The Python binding of the mask board.
#pragma once

#include <nanobind/nanobind.h>

namespace numaserve::masks {

void bind_masks(nanobind::module_& m);

}  // namespace numaserve::masks
