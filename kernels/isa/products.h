// The functions for matrix products of an instruction set, which its table names.
#pragma once

#include "kernels/include/kernel_table.h"

#if !defined(NUMASERVE_ISA)  // read by itself
#define NUMASERVE_ISA portable
#define NUMASERVE_ISA_TABLE kPortableTable
#endif

namespace numaserve::NUMASERVE_ISA {

void gemm(const GemmArgs& args, void* scratch, int thread, int threads);
void gemm_share(const GemmArgs& args, const GemmShare& share, void* scratch);
void gemm_parts(const GemmArgs& args, void* sums, void* scratch, int thread, int threads);
void gemm_finish(const GemmArgs& args, void* sums, int thread, int threads);
int64_t peak(WeightFormat format, PeakOperands operands, int64_t rounds);

}  // namespace numaserve::NUMASERVE_ISA
