#include <immintrin.h>

#include "kernels/include/kernel_table.h"

#define NUMASERVE_ISA_NAME "amx_emulated"
#define NUMASERVE_ISA_TABLE kAmxEmulatedTable
#define NUMASERVE_TILE_HEADER "kernels/gemm/tile_amx.h"

namespace numaserve {
namespace {
#include "kernels/gemm/tiles_emulated.h"
}  // namespace
#include "kernels/isa/instruction_set.inl"
}  // namespace numaserve
