// The micro-tile of the instruction set being compiled, which isa/ names by NUMASERVE_TILE_HEADER.
#pragma once

#if defined(NUMASERVE_TILE_HEADER)
#include NUMASERVE_TILE_HEADER
#elif defined(__AVX512BF16__)  // what includes this is read by itself
#include "kernels/gemm/tiles/tile_avx512.h"
#else
#include "kernels/gemm/tiles/tile_portable.h"
#endif
