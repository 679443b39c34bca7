// The mask board for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace numaserve::masks {

void bind_masks(nanobind::module_& m);

}  // namespace numaserve::masks
