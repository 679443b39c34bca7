// Ceilings: the best that the machine can do, measured. They are the denominators of every benchmark.
#pragma once

#include <cstdint>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/team.h"

namespace numaserve {

// Bytes a second that the team reads from memory together: the best of several passes over `bytes` of fresh memory.
double read_bandwidth(const KernelTable& table, Team& team, int64_t bytes);

// Operations (multiplies and adds) a second that the instruction set's bf16 tiles do on all threads together.
double peak_flops(const KernelTable& table, Team& team, WeightFormat format);

// Nanoseconds of one barrier of the team, the mean over many.
double barrier_ns(Team& team);

}  // namespace numaserve
