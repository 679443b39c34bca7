// Adding operations to a Program from Python.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels/runtime/program/program.h"

namespace numaserve {

// Adds the method `add` to Program.
void bind_operations(nanobind::class_<Program>& program);

}  // namespace numaserve
