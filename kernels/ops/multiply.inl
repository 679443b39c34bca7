// Products of rows, of which one may have an activation, and activations alone.
#pragma once

#include "kernels/gemm/epilogue.inl"
#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

inline F32x16 factor_of(F32x16 y, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return y;
    case Activation::kTanh:
      return tanh(y);
    case Activation::kRelu:
      return F32x16::max(F32x16::zero(), y);  // the maximum gives its second operand for a NaN
    case Activation::kGelu:
      return gelu(y);
    default:
      return activate(y, activation);
  }
}

template <class T>
inline void multiply_into(T* out, const MultiplyArgs& a, int thread, int threads) {
  const RowShare share = share_of(a, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r)
    for (int64_t i = share.columns.begin; i < share.columns.end; i += 16) {
      const int valid = static_cast<int>(a.cols - i < 0 ? 0 : a.cols - i);
      const F32x16 factor = factor_of(F32x16::load_head(a.y + r * a.ldy + i, valid), a.activation);
      const F32x16 product = a.x == nullptr ? factor : F32x16::load_head(a.x + r * a.ldx + i, valid) * factor;
      product.store(out + r * a.ldo + i);
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
