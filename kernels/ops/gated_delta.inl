// The gated delta rule, token by token in fp32: each thread takes strips of columns, whose recurrences are independent.
//
// One pass over a strip applies a token and multiplies the result with the token's query and the next token's key.
// Where a segment begins or ends, the parts of that pass run by themselves; no operation, operand or order changes.
//
// A strip is kept as S / scale, where `scale` is the product of the decays since it was 1: a token then costs three
// instead of four operations for each element, and a rounding less. A scale that would become too small is multiplied
// into the strip. A scale belongs to the state, because the bits depend on it.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/ops/norm.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/of_rows.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline constexpr int kDeltaTokens = 16;  // whose factors are computed together

inline constexpr float kLeastScale = 0x1p-40f;

// The factors of some tokens of a head.
struct DeltaFactors {
  alignas(64) float decay[kDeltaTokens];   // g
  alignas(64) float of_key[kDeltaTokens];  // that make k a vector of length 1
  alignas(64) float rate[kDeltaTokens];    // beta, times `of_key`
  alignas(64) float of_query[kDeltaTokens];
};

inline F32x16 squares(const float* x, int64_t count) {
  F32x16 sum = F32x16::zero();
  for (int64_t i = 0; i < count; i += 16) {
    const F32x16 v = F32x16::load_head(x + i, static_cast<int>(count - i));
    sum = F32x16::fma(v, v, sum);
  }
  return sum;
}

// Returns 1 / sqrt(sum of squares + 1e-6) of vectors of `count` rows.
inline F32x16 vector_scales(const float* x, int64_t ldx, int64_t dim, int rows) {
  F32x16 sums[kDeltaTokens];
  for (int t = 0; t < kDeltaTokens; ++t) sums[t] = t < rows ? squares(x + t * ldx, dim) : F32x16::zero();
  return F32x16::set1(1.0f) / (sum_of_rows(sums) + F32x16::set1(1e-6f)).sqrt();
}

inline F32x16 gate_of(const float* gate, int64_t ldg, int rows) {
  alignas(64) float values[kDeltaTokens] = {};
  for (int t = 0; t < rows; ++t) values[t] = gate[t * ldg];
  return F32x16::load(values);
}

inline void delta_factors(const DeltaArgs& a, int32_t head, const float* q, const float* k, int64_t row, int rows,
                          DeltaFactors& factors) {
  const float* gates = a.gates + row * a.ldg + head;
  const F32x16 pace = softplus(gate_of(gates + a.value_heads, a.ldg, rows) + F32x16::set1(a.decay_bias[head]));
  const F32x16 decay = exp(F32x16::set1(a.decay[head]) * pace), beta = sigmoid(gate_of(gates, a.ldg, rows));
  const F32x16 k_scale = vector_scales(k, a.ldx, a.key_dim, rows);
  const F32x16 root = F32x16::set1(__builtin_sqrtf(static_cast<float>(a.key_dim)));
  decay.store(factors.decay);
  k_scale.store(factors.of_key);
  (beta * k_scale).store(factors.rate);
  (vector_scales(q, a.ldx, a.key_dim, rows) / root).store(factors.of_query);
}

// Columns of a strip: `kVectors` registers, of which the last is partly outside of the strip unless `kWhole`.
template <int kVectors, bool kWhole>
struct Strip {
  int64_t ld;      // of a row
  int32_t height;  // rows: the key's dimensions
  int valid;       // columns
  F32x16 load(const float* p, int vector) const {
    return kWhole ? F32x16::load(p + 16 * vector) : F32x16::load_head(p + 16 * vector, valid - 16 * vector);
  }
  void store(F32x16 x, float* p, int vector) const {
    if (kWhole)
      x.store(p + 16 * vector);
    else
      x.store_head(p + 16 * vector, valid - 16 * vector);
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

template <class Body>
NUMASERVE_INLINE inline void rows_by_two(int32_t height, Body&& body) {
  int32_t i = 0;
  for (; i + 2 <= height; i += 2) {
    body.template operator()<0>(i);
    body.template operator()<1>(i + 1);
  }
  if (i < height) body.template operator()<0>(i);
}

// product = S^T k
template <int kVectors, bool kWhole>
NUMASERVE_FLAT inline void multiply_strip(const Strip<kVectors, kWhole>& strip, const float* s, const float* k,
                                          F32x16* product) {
  RowSums<kVectors> sums;
  rows_by_two(strip.height, [&]<int kHalf>(int32_t i) NUMASERVE_INLINE {
    const F32x16 key = F32x16::set1(k[i]);
    unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE {
      F32x16& sum = sums.sums[kHalf][kVector];
      sum = F32x16::fma(key, strip.load(s + i * strip.ld, kVector), sum);
    });
  });
  for (int j = 0; j < kVectors; ++j) product[j] = sums.total(j);
}

// S = S + k u^T, or with `kScales` scale S + k u^T, from `from` to `to`; out = S^T q; and with `kNext` product = S^T
// next.
template <int kVectors, bool kWhole, bool kScales, bool kNext>
NUMASERVE_FLAT inline void update_strip(const Strip<kVectors, kWhole>& strip, const float* from, float* to, float scale,
                                        const float* k, const F32x16* u, const float* q, F32x16* out, const float* next,
                                        F32x16* product) {
  RowSums<kVectors> outs, products;
  const F32x16 factor = F32x16::set1(scale);
  F32x16 learned[kVectors];
  for (int j = 0; j < kVectors; ++j) learned[j] = u[j];
  rows_by_two(strip.height, [&]<int kHalf>(int32_t i) NUMASERVE_INLINE {
    const F32x16 key = F32x16::set1(k[i]), query = F32x16::set1(q[i]);
    const F32x16 next_key = kNext ? F32x16::set1(next[i]) : F32x16::zero();
    unrolled<kVectors>([&]<int kVector>() NUMASERVE_INLINE {
      F32x16 s = strip.load(from + i * strip.ld, kVector);
      if constexpr (kScales) s = factor * s;
      s = F32x16::fma(key, learned[kVector], s);
      strip.store(s, to + i * strip.ld, kVector);
      F32x16& sum = outs.sums[kHalf][kVector];
      sum = F32x16::fma(query, s, sum);
      if constexpr (kNext) {
        F32x16& other = products.sums[kHalf][kVector];
        other = F32x16::fma(next_key, s, other);
      }
    });
  });
  for (int j = 0; j < kVectors; ++j) {
    out[j] = outs.total(j);
    if constexpr (kNext) product[j] = products.total(j);
  }
}

template <int kVectors, bool kWhole>
inline void copy_strip(const Strip<kVectors, kWhole>& strip, const float* from, float* to) {
  for (int32_t i = 0; i < strip.height; ++i)
    for (int j = 0; j < kVectors; ++j)
      strip.store(from == nullptr ? F32x16::zero() : strip.load(from + i * strip.ld, j), to + i * strip.ld, j);
}

// A strip of a state, and its scale, of which there is one for each 16 columns: items may cut strips there.
struct StripState {
  float *values, *scale;
};

// A token: `product` is S^T k before it, and with a `next` key S^T next after it.
template <int kVectors, bool kWhole>
inline float delta_token(const Strip<kVectors, kWhole>& strip, const float* from, float* to,
                         const DeltaFactors& factors, int token, float scale, const float* q, const float* k,
                         const float* v, const float* next, F32x16* product, float* out) {
  const float decayed = scale * factors.decay[token];
  const bool scales = !(decayed >= kLeastScale);
  const F32x16 recalled = F32x16::set1(decayed * factors.of_key[token]), rate = F32x16::set1(factors.rate[token]);
  const F32x16 wider = F32x16::set1(scales ? 1.0f : 1.0f / decayed);
  F32x16 u[kVectors], result[kVectors];
  for (int j = 0; j < kVectors; ++j) u[j] = (strip.load(v, j) - product[j] * recalled) * rate * wider;
  const auto update = [&]<bool kScales, bool kNext>() {
    update_strip<kVectors, kWhole, kScales, kNext>(strip, from, to, decayed, k, u, q, result, next, product);
  };
  if (scales)
    next != nullptr ? update.template operator()<true, true>() : update.template operator()<true, false>();
  else
    next != nullptr ? update.template operator()<false, true>() : update.template operator()<false, false>();
  const float after = scales ? 1.0f : decayed;
  const F32x16 of_query = F32x16::set1(factors.of_query[token] * after);
  for (int j = 0; j < kVectors; ++j) strip.store(result[j] * of_query, out, j);
  return after;
}

template <int kVectors, bool kWhole>
inline void delta_segment(const DeltaArgs& a, const DeltaItem& item, const Strip<kVectors, kWhole>& strip,
                          const StateSegment& segment, StripState from, StripState to) {
  float scale = from.values == nullptr ? 1.0f : *from.scale;
  if (from.values == nullptr || (segment.count == 0 && from.values != to.values)) {
    copy_strip(strip, from.values, to.values);
    from = to;
  }
  const int64_t key_head = item.head / (a.value_heads / a.key_heads), keys = int64_t{a.key_heads} * a.key_dim;
  const int64_t column = int64_t{item.head} * a.value_dim + item.column;
  const float* q = a.x + segment.row * a.ldx + key_head * a.key_dim;
  const float *k = q + keys, *v = a.x + segment.row * a.ldx + 2 * keys + column;
  float* out = a.out + segment.row * a.ldo + column;
  F32x16 product[kVectors];
  if (segment.count > 0) multiply_strip(strip, from.values, k, product);
  DeltaFactors factors;
  for (int32_t t = 0; t < segment.count; ++t, q += a.ldx, k += a.ldx, v += a.ldx, out += a.ldo) {
    const int token = t % kDeltaTokens;
    const int32_t left = segment.count - t;
    if (token == 0)
      delta_factors(a, item.head, q, k, segment.row + t, left < kDeltaTokens ? left : kDeltaTokens, factors);
    const float* next = left > 1 ? k + a.ldx : nullptr;
    scale = delta_token(strip, from.values, to.values, factors, token, scale, q, k, v, next, product, out);
    from = to;
  }
  for (int j = 0; j < kVectors; ++j) to.scale[j] = scale;
}

template <int kVectors, bool kWhole>
inline void delta_item(const DeltaArgs& a, const DeltaItem& item) {
  const int32_t first = item.column / kStripColumns * kStripColumns, rest = a.value_dim - first;
  const int64_t ld = rest < kStripColumns ? rest : kStripColumns;
  const Strip<kVectors, kWhole> strip{.ld = ld, .height = a.key_dim, .valid = a.value_dim - item.column};
  const int64_t at = (int64_t{item.head} * a.value_dim + first) * a.key_dim + (item.column - first);
  const int64_t scales = int64_t{a.value_heads} * a.value_dim * a.key_dim;
  const int64_t scale = scales + item.head * ceil_div(a.value_dim, kScaleColumns) + item.column / kScaleColumns;
  const auto state = [&](int32_t number) {
    float* const values = reinterpret_cast<float*>(a.states + number * a.state_bytes);
    return StripState{values + at, values + scale};
  };
  for (int64_t i = 0; i < item.num_segments; ++i) {
    const StateSegment& segment = item.segments[i];
    delta_segment(a, item, strip, segment, segment.load < 0 ? StripState{} : state(segment.load), state(segment.store));
  }
}

// Halves of a strip one after the other where its sums do not fit the registers.
#if defined(__AVX512F__)
inline constexpr bool kWholeStrips = true;
#else
inline constexpr bool kWholeStrips = false;
#endif

inline void gated_delta(const DeltaArgs& a, DeltaItem item) {
  const int32_t end = item.column + item.columns;
  if (kWholeStrips && item.columns == kStripColumns && a.value_dim >= end) return delta_item<2, true>(a, item);
  for (; item.column < end && item.column < a.value_dim; item.column += 16)
    a.value_dim - item.column >= 16 ? delta_item<1, true>(a, item) : delta_item<1, false>(a, item);
}

}  // namespace
}  // namespace numaserve
