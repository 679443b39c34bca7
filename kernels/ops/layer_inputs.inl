// Inputs of layers that tokens have besides the residual stream (Gemma 3n and 4).
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/embed.inl"
#include "kernels/ops/norm.inl"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// The columns of one layer.
inline void layer_inputs_group(const LayerInputsArgs& a, int64_t row, int64_t group) {
  const int64_t first = group * a.width, token = a.tokens[row];
  const float* const x = a.x + row * a.ldx + first;
  float* const out = a.out + row * a.ldo + first;
  const F32x16 scale = F32x16::set1(rms_scale(x, a.width, a.eps));
  for (int64_t i = 0; i < a.width; i += 16) {
    const int valid = static_cast<int>(a.width - i < 16 ? a.width - i : 16);
    (F32x16::load_head(x + i, valid) * scale * F32x16::load_head(a.weight + i, valid)).store_head(out + i, valid);
  }
  if (token >= 0 && token < a.num_rows)
    unpack_row<true>(a.table, a.k_tiles, token, {first, first + a.width}, a.scale, out);
}

inline void layer_inputs(const LayerInputsArgs& a, int thread, int threads) {
  const Range items = share_of(a, thread, threads);
  for (int64_t i = items.begin; i < items.end; ++i) layer_inputs_group(a, i / a.groups, i % a.groups);
}

}  // namespace
}  // namespace numaserve
