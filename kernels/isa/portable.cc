#define NUMASERVE_ISA portable
#define NUMASERVE_ISA_TABLE kPortableTable
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_portable.h"
#include "kernels/isa/instruction_set.inl"
