// The matrix products of an instruction set.
#pragma once

#include "kernels/gemm/gemm.inl"
#include "kernels/isa/products.h"

namespace numaserve::NUMASERVE_ISA {

void gemm(const GemmArgs& args, void* scratch, int thread, int threads) {
  numaserve::gemm(args, scratch, thread, threads);
}

void gemm_share(const GemmArgs& args, const GemmShare& share, void* scratch) {
  numaserve::gemm_share(args, share, scratch);
}

void gemm_parts(const GemmArgs& args, void* sums, void* scratch, int thread, int threads) {
  numaserve::gemm_parts(args, sums, scratch, thread, threads);
}

void gemm_finish(const GemmArgs& args, void* sums, int thread, int threads) {
  numaserve::gemm_finish(args, sums, thread, threads);
}

#if defined(NUMASERVE_TRACES_LINES)
void trace_lines(LineTrace* trace) { emulated_trace = trace; }
#endif

int64_t peak(WeightFormat format, PeakOperands operands, int64_t rounds) { return gemm_peak(format, operands, rounds); }

}  // namespace numaserve::NUMASERVE_ISA
