// The causal convolution of recurrent layers (Gu and Dao, 2023, section 3.4), with the inputs before a step as state.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/columns.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Returns a row before the tokens, null for zeros: those of the state come first, and then those of accepted draft
// tokens.
inline const float* row_before(const ConvArgs& a, int64_t row) {
  if (row >= a.taps - 1) return a.kept + (row - (a.taps - 1)) * a.ldd;
  return a.before == nullptr ? nullptr : a.before + row * a.lds;
}

// The weights of some columns, and their inputs before a token, the oldest first.
template <int kTaps, int kVectors, bool kWhole>
struct ConvColumns {
  RowColumns<kVectors, kWhole> columns;
  int64_t first;
  F32x16 weight[kVectors][kTaps], before[kVectors][kTaps - 1];

  ConvColumns(const ConvArgs& a, int64_t first_in)
      : columns{static_cast<int>(a.cols - first_in < 0 ? 0 : a.cols - first_in)}, first(first_in) {
    unrolled<kTaps>([&]<int kTap>() NUMASERVE_INLINE {
      const float* const row = a.weight + kTap * a.ldw + first;
      unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE { weight[kVector][kTap] = columns.load(row, kVector); });
    });
    unrolled<kTaps - 1>([&]<int kTap>() NUMASERVE_INLINE {
      const float* const row = row_before(a, kTap + a.replayed);
      unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE {
        before[kVector][kTap] = row == nullptr ? F32x16::zero() : columns.load(row + first, kVector);
      });
    });
  }

  // Takes the next input of 16 columns, and returns the sum of its token.
  template <int kVector>
  NUMASERVE_INLINE F32x16 next(F32x16 input, F32x16 sum) {
    unrolled<kTaps - 1>([&]<int kTap>()
                            NUMASERVE_INLINE { sum = F32x16::fma(weight[kVector][kTap], before[kVector][kTap], sum); });
    unrolled<kTaps - 2>([&]<int kTap>() NUMASERVE_INLINE { before[kVector][kTap] = before[kVector][kTap + 1]; });
    before[kVector][kTaps - 2] = input;
    return F32x16::fma(weight[kVector][kTaps - 1], input, sum);
  }

  NUMASERVE_INLINE void store(const ConvArgs& a) const {
    unrolled<kTaps - 1>([&]<int kTap>() NUMASERVE_INLINE {
      float* const row = a.after + kTap * a.lds + first;
      unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE { columns.store(before[kVector][kTap], row, kVector); });
    });
  }
};

// Convolves `kVectors` times 16 columns from `first` on; columns beyond the last are zeros.
template <int kTaps, int kVectors, bool kWhole>
NUMASERVE_FLAT inline void conv_columns(const ConvArgs& a, int64_t first) {
  ConvColumns<kTaps, kVectors, kWhole> state(a, first);
  for (int64_t t = 0; t < a.count; ++t) {
    const float* const x = a.x + t * a.ldx + first;
    float* const out = a.out + t * a.ldo + first;
    unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE {
      const F32x16 input = state.columns.load(x, kVector);
      if (a.drafted != nullptr) state.columns.store(input, a.drafted + t * a.ldd + first, kVector);
      const F32x16 bias = a.bias == nullptr ? F32x16::zero() : state.columns.load(a.bias + first, kVector);
      const F32x16 sum = state.template next<kVector>(input, bias);
      (a.silu ? silu(sum) : sum).store(out + 16 * kVector);
    });
  }
  if (a.after != nullptr) state.store(a);
}

template <int kTaps>
inline void conv_range(const ConvArgs& a, Range columns) {
  // With one register, a cache line of each row, a long prompt took half as long again: rows lie pages apart.
  constexpr int kVectors = 4;
  const int64_t whole = columns.end < a.cols ? columns.end : a.cols;
  int64_t first = columns.begin;
  for (; first + 16 * kVectors <= whole; first += 16 * kVectors) conv_columns<kTaps, kVectors, true>(a, first);
  for (; first + 16 <= whole; first += 16) conv_columns<kTaps, 1, true>(a, first);
  for (; first < columns.end; first += 16) conv_columns<kTaps, 1, false>(a, first);
}

inline void causal_conv(const ConvArgs& a, int thread, int threads) {
  using Convolve = void (*)(const ConvArgs&, Range);
  constexpr Convolve kOfTaps[] = {conv_range<2>, conv_range<3>, conv_range<4>, conv_range<5>,
                                  conv_range<6>, conv_range<7>, conv_range<8>};
  kOfTaps[a.taps - 2](a, share_of(a, thread, threads));
}

}  // namespace
}  // namespace numaserve
