// Adding operations to a Program from Python.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels/runtime/program.h"

namespace numaserve {

// Adds `add(kind, fields)`, and a method for each kind.
void bind_operations(nanobind::class_<Program>& program);

}  // namespace numaserve
