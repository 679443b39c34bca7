// The causal convolution of recurrent layers (Gu and Dao, 2023, section 3.4), with the inputs before a step as state.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"

namespace numaserve {
namespace {

// Loads columns of a row before the tokens: those of the state come first, and then those of accepted draft tokens.
inline F32x16 load_before(const ConvArgs& a, int64_t row, int64_t first, int valid) {
  if (row >= a.taps - 1) return F32x16::load_head(a.kept + (row - (a.taps - 1)) * a.ldd + first, valid);
  return a.before == nullptr ? F32x16::zero() : F32x16::load_head(a.before + row * a.lds + first, valid);
}

// Convolves up to 16 columns from `first` on.
template <int kTaps>
inline void conv_columns(const ConvArgs& a, int64_t first) {
  const auto valid = static_cast<int>(a.cols - first < 0 ? 0 : a.cols - first);
  F32x16 weight[kTaps], before[kTaps];  // the last element of `before` is the newest
  for (int j = 0; j < kTaps; ++j) weight[j] = F32x16::load_head(a.weight + j * a.ldw + first, valid);
  before[0] = F32x16::zero();
  for (int j = 1; j < kTaps; ++j) before[j] = load_before(a, j - 1 + a.replayed, first, valid);
  const F32x16 bias = a.bias == nullptr ? F32x16::zero() : F32x16::load_head(a.bias + first, valid);
  for (int64_t t = 0; t < a.count; ++t) {
    for (int j = 0; j + 1 < kTaps; ++j) before[j] = before[j + 1];
    before[kTaps - 1] = F32x16::load_head(a.x + t * a.ldx + first, valid);
    F32x16 sum = bias;
    for (int j = 0; j < kTaps; ++j) sum = F32x16::fma(weight[j], before[j], sum);
    if (a.drafted != nullptr) before[kTaps - 1].store_head(a.drafted + t * a.ldd + first, valid);
    (a.silu ? silu(sum) : sum).store(a.out + t * a.ldo + first);
  }
  if (a.after == nullptr) return;
  for (int j = 1; j < kTaps; ++j) before[j].store_head(a.after + (j - 1) * a.lds + first, valid);
}

// Each thread has columns of its own, and with them their state: no other thread reads or writes it.
inline void causal_conv(const ConvArgs& a, int thread, int threads) {
  using Convolve = void (*)(const ConvArgs&, int64_t);
  constexpr Convolve kOfTaps[] = {conv_columns<2>, conv_columns<3>, conv_columns<4>, conv_columns<5>,
                                  conv_columns<6>, conv_columns<7>, conv_columns<8>};
  const Convolve convolve = kOfTaps[a.taps - 2];
  const Range mine = split(a.ldo, threads, thread, 16);
  for (int64_t first = mine.begin; first < mine.end; first += 16) convolve(a, first);
}

}  // namespace
}  // namespace numaserve
