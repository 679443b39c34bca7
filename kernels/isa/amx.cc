#define NUMASERVE_ISA amx
#define NUMASERVE_ISA_TABLE kAmxTable
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#define NUMASERVE_TILES_HEADER "kernels/gemm/tiles/tiles_hardware.h"
#include "kernels/isa/instruction_set.inl"
