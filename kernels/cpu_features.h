// Which instruction sets this processor and kernel allow, probed once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/include/kernel_table.h"

namespace numaserve {

// Names of the instruction sets that can run here, best first: "amx", "avx512", "portable". The emulated AMX set,
// which is for tests only, is added last where AVX-512 is there.
std::vector<std::string> available_isas();

// The table of an instruction set. Throws std::invalid_argument for an unknown name and std::runtime_error when the
// machine cannot run it.
const KernelTable* table_by_name(std::string_view name);

// The best table, or the one that NUMASERVE_ISA names; throws like `table_by_name`.
const KernelTable* default_table();

// Who made the processor that this runs on, and its family, as CPUID tells them.
struct Processor {
  std::string vendor;
  unsigned family;
};
const Processor& processor();

// Cache sizes of the processor this runs on, in bytes; conservative defaults where sysfs does not tell.
struct CacheSizes {
  int64_t l1d, l2;
};
const CacheSizes& cache_sizes();

}  // namespace numaserve
