// One half of an instruction set. Each file of this folder includes this once, with NUMASERVE_ISA, NUMASERVE_ISA_TABLE
// and NUMASERVE_TILE_HEADER set. It is compiled twice, because the matrix products take longer than everything else
// together: a build on many cores waits for the slowest file, and gcc takes longer for both halves at once.
//
// Anonymous namespaces keep the sets apart: nothing here may have linkage that another set's copy could replace.
#pragma once

#if defined(NUMASERVE_ONLY_PRODUCTS)
#include "kernels/isa/products.inl"
#else
#include "kernels/isa/table.inl"
#endif
