// The Python binding of a Program.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels/runtime/program/program.h"

namespace numaserve {

// Binds Vector, RopeTable and Program.
void bind_program(nanobind::module_& m);

}  // namespace numaserve
