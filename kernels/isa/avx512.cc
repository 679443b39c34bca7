#define NUMASERVE_ISA avx512
#define NUMASERVE_ISA_TABLE kAvx512Table
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_avx512.h"
#include "kernels/isa/instruction_set.inl"
