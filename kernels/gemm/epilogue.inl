// The last steps of a product: scales, bias, adapters, activation and conversion to the output type.
#pragma once

#include "kernels/gemm/expand.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/dense_args.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"

namespace numaserve {
namespace {

// GELU, tanh approximation (Hendrycks and Gimpel, 2016).
inline F32x16 gelu_tanh(F32x16 x) {
  const F32x16 inner = F32x16::fma(x * x * x, F32x16::set1(0.044715f), x) * F32x16::set1(0.79788456f);
  return F32x16::set1(0.5f) * x * (F32x16::set1(1.0f) + tanh(inner));
}

inline F32x16 activate(F32x16 x, Activation activation) {
  if (activation == Activation::kSilu) return silu(x);
  if (activation == Activation::kGeglu) return gelu(x);
  if (activation == Activation::kSwigluOai) return x / (F32x16::set1(1.0f) + exp(x * F32x16::set1(-kSigmoidGain)));
  return gelu_tanh(x);
}

inline F32x16 gated(const GemmArgs& g, F32x16 gate, F32x16 up) {
  if (g.activation != Activation::kSwigluOai) return activate(gate, g.activation) * up;
  // The second operand is the result where either is not a number.
  const F32x16 limit = F32x16::set1(g.limit), one = F32x16::set1(1.0f);
  up = F32x16::max(F32x16::zero() - limit, F32x16::min(limit, up));
  return activate(F32x16::min(limit, gate), g.activation) * (up + one);
}

// The maximum gives its second operand for a NaN.
inline F32x16 relu2(F32x16 x) {
  const F32x16 positive = F32x16::max(F32x16::zero(), x);
  return positive * positive;
}

inline F32x16 ungated(F32x16 x, Activation activation) {
  if (activation == Activation::kRelu2) return relu2(x);
  if (activation == Activation::kPlainGeluTanh) return gelu_tanh(x);
  return activation == Activation::kGelu ? gelu(x) : x;
}

inline F32x16 finished(const GemmArgs& g, const float* c, const float*, int64_t column) {
  const F32x16 sum = F32x16::load(c);
  return g.b.scales != nullptr ? sum * F32x16::load(g.b.scales + column) : sum;
}
inline F32x16 finished(const GemmArgs& g, const int32_t* c, const float* row_scale, int64_t column) {
  const F32x16 sum = F32x16::convert(c, kActivationOffset != 0 ? g.b.corrections + column : nullptr);
  return sum * F32x16::set1(*row_scale) * F32x16::load(g.b.scales + column);
}

// Copies the scales of some rows of int8. Outside the order of tiles each lies after its row's values, and finishing
// would otherwise read a line of each row for each pair of panels.
inline void gather_scales(const GemmArgs& g, int64_t row, int64_t rows, float* to) {
  const int8_t* a = static_cast<const int8_t*>(g.a);
  for (int64_t r = row; r < row + rows; ++r, ++to) {
    const int64_t at = g.tiled_rows ? tiled_scale_index(r, g.b.depth, g.lda) : r * g.lda + g.b.depth;
    __builtin_memcpy(to, a + at, sizeof(float));
  }
}

// The distances, in elements, of the sums of two panels: from row to row, and from panel to panel.
struct SumLayout {
  int64_t row, half;
};
inline constexpr SumLayout kSumsInRows{32, kTileN};  // [rows][32]
// [2][32 rows][16]: as many tiles, one after the other. The sums of more rows are several of these.
inline constexpr SumLayout kSumsInTiles{kTileN, 32 * kTileN};

// The values of two panels for some rows from `row` on, before the activation. `row_scales` are those of int8 rows, and
// `added` is what `expand_late` has made for the rows.
template <SumLayout kLayout, class Sum>
struct FinishedSums {
  const GemmArgs& g;
  const Sum* c;
  const float *row_scales, *added;
  int64_t row, panel;
  F32x16 bias[2] = {bias_of(0), bias_of(1)};

  F32x16 bias_of(int half) const {
    return g.bias != nullptr ? F32x16::load(g.bias + (panel + half) * kTileN) : F32x16::zero();
  }
  F32x16 at(int64_t r, int half) const {
    const F32x16 sums =
        finished(g, c + r * kLayout.row + half * kLayout.half, row_scales + r, (panel + half) * kTileN) + bias[half];
    if (g.expand.adapters == nullptr) return sums;
    return expanded(g, row + r, panel + half, added, r * kExpandedColumns + half * kTileN, sums);
  }
  F32x16 gated_at(int64_t r) const { return gated(g, at(r, 0), at(r, 1)); }
  F32x16 ungated_at(int64_t r, int half) const { return ungated(at(r, half), g.activation); }
};

// Returns the place of a bf16 result.
inline bf16* result_at(const GemmArgs& g, int64_t row, int64_t column) {
  return g.out_bf16 + row_index<bf16>(kPacksTiles && g.tiled_results, row, column, g.ldo);
}

// Writes the finished results of two panels for `rows` rows from `row` on; see FinishedSums.
template <SumLayout kLayout = kSumsInRows, class Sum>
inline void gemm_epilogue(const GemmArgs& g, const Sum* c, int64_t row, int64_t rows, int64_t panel,
                          const float* row_scales, const float* added) {
  const FinishedSums<kLayout, Sum> sums{g, c, row_scales, added, row, panel};
  if (is_gated(g.activation)) {
    for (int64_t r = 0; r < rows; ++r) sums.gated_at(r).store(result_at(g, row + r, panel / 2 * kTileN));
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const int64_t column = (panel + half) * kTileN;
    for (int64_t r = 0; r < rows; ++r) {
      const F32x16 value = sums.ungated_at(r, half);
      const int64_t at = (row + r) * g.ldo + column;
      if (g.accumulate)
        (F32x16::load(g.out_f32 + at) + value).store(g.out_f32 + at);
      else if (g.out_f32 != nullptr)
        value.store(g.out_f32 + at);
      else
        value.store(result_at(g, row + r, column));
    }
  }
}

}  // namespace
}  // namespace numaserve
