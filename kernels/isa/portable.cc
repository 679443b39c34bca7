#include <immintrin.h>

#include "kernels/include/kernel_table.h"

#define NUMASERVE_ISA_NAME "portable"
#define NUMASERVE_ISA_TABLE kPortableTable
#define NUMASERVE_TILE_HEADER "kernels/gemm/tile_portable.h"

namespace numaserve {
#include "kernels/isa/instruction_set.inl"
}  // namespace numaserve
