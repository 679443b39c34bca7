// Passes over strips of the states of the gated delta rule; see gated_delta.inl.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/simd/columns.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Columns of a strip: two registers if it is whole, otherwise one, which is partly outside of the strip unless
// `kWhole`.
template <int kVectors, bool kWhole>
struct Strip : RowColumns<kVectors, kWhole> {
  int64_t stride;  // of a row
  int32_t height;  // rows: the key's dimensions
  int64_t ld() const { return kVectors == 2 ? kStripColumns : stride; }
  // Each pass over a strip fetches half of the rows of the next one: memory idles in a pass without.
  const float* second_half(const float* strip) const { return strip + (height + 1) / 2 * ld(); }
  NUMASERVE_INLINE void fetch_row(const float*& rows) const {
    unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE { prefetch_line(rows + 16 * kVector); });
    rows += ld();
  }
};

// Two sums of rows, of the even and of the odd ones: a single one would wait for itself.
template <int kVectors>
struct RowSums {
  F32x16 sums[2][kVectors];
  RowSums() {
    for (auto& each : sums)
      for (F32x16& sum : each) sum = F32x16::zero();
  }
  F32x16 total(int vector) const { return sums[0][vector] + sums[1][vector]; }
};

// product = S^T k. Fetches half of the rows of a strip that begins at `ahead`.
template <int kVectors, bool kWhole>
NUMASERVE_FLAT inline void multiply_strip(const Strip<kVectors, kWhole> strip, const float* s, const float* k,
                                          const float* ahead, F32x16* product) {
  RowSums<kVectors> sums;
  const int64_t ld = strip.ld();
  const auto row = [&]<int kHalf>() NUMASERVE_INLINE {
    const F32x16 key = F32x16::set1(*k++);
    if constexpr (kHalf == 0) strip.fetch_row(ahead);
    unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE {
      F32x16& sum = sums.sums[kHalf][kVector];
      sum = F32x16::fma(key, strip.load(s, kVector), sum);
    });
    s += ld;
  };
  for (int32_t pairs = strip.height / 2; pairs > 0; --pairs) {
    row.template operator()<0>();
    row.template operator()<1>();
  }
  if (strip.height % 2 == 1) row.template operator()<0>();
  for (int j = 0; j < kVectors; ++j) product[j] = sums.total(j);
}

enum class Scaling { kNone, kWhole, kRows };

// S = scale S + k u^T from `from` to `to`, where `scale` has the factor of the whole strip or of each row; out = S^T q;
// and with `kNext` product = S^T next. Without it `next` has rows to fetch.
template <int kVectors, bool kWhole, Scaling kScaling, bool kNext>
NUMASERVE_FLAT inline void update_strip(const Strip<kVectors, kWhole> strip, const float* from, float* to,
                                        const float* scale, const float* k, const F32x16* u, const float* q,
                                        F32x16* out, const float* next, F32x16* product) {
  RowSums<kVectors> outs, products;
  F32x16 factor = kScaling == Scaling::kWhole ? F32x16::set1(*scale) : F32x16::zero();
  const int64_t ld = strip.ld();
  F32x16 learned[kVectors];
  for (int j = 0; j < kVectors; ++j) learned[j] = u[j];
  const auto row = [&]<int kHalf>() NUMASERVE_INLINE {
    const F32x16 key = F32x16::set1(*k++), query = F32x16::set1(*q++);
    const F32x16 next_key = kNext ? F32x16::set1(*next++) : F32x16::zero();
    if constexpr (!kNext && kHalf == 0) strip.fetch_row(next);
    if constexpr (kScaling == Scaling::kRows) factor = F32x16::set1(*scale++);
    unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE {
      F32x16 s = strip.load(from, kVector);
      if constexpr (kScaling != Scaling::kNone) s = factor * s;
      s = F32x16::fma(key, learned[kVector], s);
      strip.store(s, to, kVector);
      F32x16& sum = outs.sums[kHalf][kVector];
      sum = F32x16::fma(query, s, sum);
      if constexpr (kNext) {
        F32x16& other = products.sums[kHalf][kVector];
        other = F32x16::fma(next_key, s, other);
      }
    });
    from += ld;
    to += ld;
  };
  for (int32_t pairs = strip.height / 2; pairs > 0; --pairs) {
    row.template operator()<0>();
    row.template operator()<1>();
  }
  if (strip.height % 2 == 1) row.template operator()<0>();
  for (int j = 0; j < kVectors; ++j) {
    out[j] = outs.total(j);
    if constexpr (kNext) product[j] = products.total(j);
  }
}

template <int kVectors, bool kWhole>
inline void copy_strip(const Strip<kVectors, kWhole>& strip, const float* from, float* to) {
  for (int32_t i = 0; i < strip.height; ++i)
    for (int j = 0; j < kVectors; ++j)
      strip.store(from == nullptr ? F32x16::zero() : strip.load(from + i * strip.ld(), j), to + i * strip.ld(), j);
}

}  // namespace
}  // namespace numaserve
