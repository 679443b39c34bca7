// The instruction sets that this processor and kernel allow, probed once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/include/kernel_table.h"

namespace numaserve {

// Names of the instruction sets that can run here, best first: "amx", "avx512", "portable". The emulated AMX set, for
// tests only, comes last on processors with AVX-512.
std::vector<std::string> available_isas();

// The best instruction set of this processor, if it is better than all that this build has; else empty.
std::string unbuilt_isa();

// The table of an instruction set. Throws std::invalid_argument for an unknown name and std::runtime_error when this
// build lacks it, or the machine cannot run it.
const KernelTable* table_by_name(std::string_view name);

// The best table, or the one that NUMASERVE_ISA names; throws like `table_by_name`.
const KernelTable* default_table();

// Vendor and family of the processor that this process runs on, from CPUID.
struct Processor {
  std::string vendor;
  unsigned family;
};
const Processor& processor();

// Cache sizes of the processor that this process runs on, in bytes; conservative defaults where sysfs has none.
struct CacheSizes {
  int64_t l1d, l2;
};
const CacheSizes& cache_sizes();

}  // namespace numaserve
