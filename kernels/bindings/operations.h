// The binding that adds operations to a Program.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels/runtime/program/program.h"

namespace numaserve {

// Adds the method `add` to Program.
void bind_operations(nanobind::class_<Program>& program);

}  // namespace numaserve
