// The Python binding of the progress board.
#pragma once

#include <nanobind/nanobind.h>

namespace numaserve::progress {

void bind_progress(nanobind::module_& m);

}  // namespace numaserve::progress
