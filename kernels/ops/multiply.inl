// Products of rows, of which one may have an activation.
#pragma once

#include "kernels/gemm/epilogue.inl"
#include "kernels/include/kernel_table.h"
#include "kernels/ops/norm.inl"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

template <class T>
inline void multiply_into(T* out, const MultiplyArgs& a, int thread, int threads) {
  const RowShare share = row_share(a.rows, a.ldo, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r)
    for (int64_t i = share.columns.begin; i < share.columns.end; i += 16) {
      const int valid = static_cast<int>(a.cols - i < 0 ? 0 : a.cols - i);
      const F32x16 y = F32x16::load_head(a.y + r * a.ldy + i, valid);
      const F32x16 factor = a.activation == Activation::kNone ? y : activate(y, a.activation);
      (F32x16::load_head(a.x + r * a.ldx + i, valid) * factor).store(out + r * a.ldo + i);
    }
}

inline void multiply(const MultiplyArgs& a, int thread, int threads) {
  if (a.out_f32 != nullptr)
    multiply_into(a.out_f32, a, thread, threads);
  else
    multiply_into(a.out_bf16, a, thread, threads);
}

}  // namespace
}  // namespace numaserve
