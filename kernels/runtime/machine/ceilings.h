// Ceilings: the best that the machine can do, measured. They are the denominators of every benchmark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/machine/team.h"

namespace numaserve {

// Bytes per second that the whole team reads from memory: the best of several passes over `bytes` of fresh memory.
double read_bandwidth(const KernelTable& table, Team& team, int64_t bytes);

// Existing memory: `bytes` from `data` on.
struct Memory {
  const std::byte* data;
  int64_t bytes;
};

// Seconds that the team takes to read all parts. Each thread reads a share of each part.
double read_seconds(const KernelTable& table, Team& team, const std::vector<Memory>& parts, bool fetch_ahead);

// Evicts all parts from the caches of all processors, so that they are next read from memory. Each thread evicts a
// share of each part.
void evict(Team& team, const std::vector<Memory>& parts);

// Operations (multiplies and adds) per second of the instruction set's tiles of this format, or without a format of its
// registers in fp32, whose operands are always equal. All threads together, the best of `passes` passes of `rounds`
// rounds each. `kPeakRounds` take some hundredths of a second at most.
inline constexpr int64_t kPeakRounds = 2'000'000;
double peak_flops(const KernelTable& table, Team& team, std::optional<WeightFormat> format, PeakOperands operands,
                  int passes, int64_t rounds);

// The same of the nest of a large product, on the calling thread alone while the others wait: all threads of a product
// read the same weights, and many with weights of their own would be bound by memory. Without tile registers nothing.
std::optional<double> nest_flops(const KernelTable& table, Team& team, WeightFormat format, int passes);

// Nanoseconds of one barrier of the team, the mean over many.
double barrier_ns(Team& team);

}  // namespace numaserve
