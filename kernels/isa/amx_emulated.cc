#define NUMASERVE_ISA amx_emulated
#define NUMASERVE_ISA_TABLE kAmxEmulatedTable
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#define NUMASERVE_TILES_HEADER "kernels/gemm/tiles/tiles_emulated.h"
#include "kernels/isa/instruction_set.inl"
