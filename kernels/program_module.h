#pragma once

#include <nanobind/nanobind.h>

namespace numaserve {

// Binds Vector, RopeTable and Program.
void bind_program(nanobind::module_& m);

}  // namespace numaserve
