// The causal convolution of recurrent layers (Gu and Dao, 2023, section 3.4), with the inputs before a step as state.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Loads columns of a row before the tokens: those of the state come first, and then those of accepted draft tokens.
inline F32x16 load_before(const ConvArgs& a, int64_t row, int64_t first, int valid) {
  if (row >= a.taps - 1) return F32x16::load_head(a.kept + (row - (a.taps - 1)) * a.ldd + first, valid);
  return a.before == nullptr ? F32x16::zero() : F32x16::load_head(a.before + row * a.lds + first, valid);
}

// Convolves `kVectors` times 16 columns from `first` on; columns beyond the last are zeros.
template <int kTaps, int kVectors>
NUMASERVE_FLAT inline void conv_columns(const ConvArgs& a, int64_t first) {
  F32x16 weight[kVectors][kTaps], before[kVectors][kTaps], bias[kVectors];  // the last of `before` is the newest
  int valid[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = first + 16 * v;
    valid[v] = static_cast<int>(a.cols - column < 0 ? 0 : a.cols - column);
    for (int j = 0; j < kTaps; ++j) weight[v][j] = F32x16::load_head(a.weight + j * a.ldw + column, valid[v]);
    before[v][0] = F32x16::zero();
    for (int j = 1; j < kTaps; ++j) before[v][j] = load_before(a, j - 1 + a.replayed, column, valid[v]);
    bias[v] = a.bias == nullptr ? F32x16::zero() : F32x16::load_head(a.bias + column, valid[v]);
  }
  for (int64_t t = 0; t < a.count; ++t) {
    const float* x = a.x + t * a.ldx + first;
    float* const out = a.out + t * a.ldo + first;
    unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE {
      F32x16* const row = before[kVector];
      for (int j = 0; j + 1 < kTaps; ++j) row[j] = row[j + 1];
      row[kTaps - 1] = F32x16::load_head(x + 16 * kVector, valid[kVector]);
      F32x16 sum = bias[kVector];
      for (int j = 0; j < kTaps; ++j) sum = F32x16::fma(weight[kVector][j], row[j], sum);
      if (a.drafted != nullptr) row[kTaps - 1].store_head(a.drafted + t * a.ldd + first + 16 * kVector, valid[kVector]);
      (a.silu ? silu(sum) : sum).store(out + 16 * kVector);
    });
  }
  if (a.after == nullptr) return;
  for (int v = 0; v < kVectors; ++v)
    for (int j = 1; j < kTaps; ++j) before[v][j].store_head(a.after + (j - 1) * a.lds + first + 16 * v, valid[v]);
}

template <int kTaps>
inline void conv_range(const ConvArgs& a, Range columns) {
  // With one register, a cache line of each row, a long prompt took half as long again: rows lie pages apart.
  constexpr int kVectors = 4;
  int64_t first = columns.begin;
  for (; first + 16 * kVectors <= columns.end; first += 16 * kVectors) conv_columns<kTaps, kVectors>(a, first);
  for (; first < columns.end; first += 16) conv_columns<kTaps, 1>(a, first);
}

// Each thread has columns of its own, and with them their state: no other thread reads or writes it.
inline void causal_conv(const ConvArgs& a, int thread, int threads) {
  using Convolve = void (*)(const ConvArgs&, Range);
  constexpr Convolve kOfTaps[] = {conv_range<2>, conv_range<3>, conv_range<4>, conv_range<5>,
                                  conv_range<6>, conv_range<7>, conv_range<8>};
  kOfTaps[a.taps - 2](a, split(a.ldo, threads, thread, 16));
}

}  // namespace
}  // namespace numaserve
