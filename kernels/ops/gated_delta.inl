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
#include "kernels/ops/gated_delta_strip.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/of_rows.h"

namespace numaserve {
namespace {

inline constexpr int kDeltaTokens = 16;  // whose factors are computed together

inline constexpr float kLeastScale = 0x1p-40f;

// The factors of some tokens of a head, from the one with these gates on. The strips of an item share them: for a
// single token they take a fifth of the time of a strip that is in a cache.
struct VectorFactors {
  const float* gates = nullptr;
  alignas(64) float of_key[kDeltaTokens];  // that make k a vector of length 1
  alignas(64) float rate[kDeltaTokens];    // beta, times `of_key`
  alignas(64) float of_query[kDeltaTokens];
};
struct DeltaFactors : VectorFactors {
  alignas(64) float decay[kDeltaTokens];  // g
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

// Rows of a head, from the first one of some tokens on.
struct DeltaRows {
  const float *q, *k, *v, *gates;  // v is at the item's columns, gates are at the head's b
  int64_t ld, ldg;
  float* out;  // at the item's columns; null: no results are wanted
  int64_t ldo;
  void advance() {
    q += ld, k += ld, v += ld, gates += ldg;
    if (out != nullptr) out += ldo;
  }
};

inline void vector_factors(const DeltaArgs& a, const DeltaRows& first, int rows, VectorFactors& factors) {
  factors.gates = first.gates;
  const F32x16 beta = sigmoid(gate_of(first.gates, first.ldg, rows));
  const F32x16 k_scale = vector_scales(first.k, first.ld, a.key_dim, rows);
  const F32x16 root = F32x16::set1(__builtin_sqrtf(static_cast<float>(a.key_dim)));
  k_scale.store(factors.of_key);
  (beta * k_scale).store(factors.rate);
  (vector_scales(first.q, first.ld, a.key_dim, rows) / root).store(factors.of_query);
}

inline void delta_factors(const DeltaArgs& a, int32_t head, const DeltaRows& first, int rows, DeltaFactors& factors) {
  if (factors.gates == first.gates) return;
  vector_factors(a, first, rows, factors);
  const F32x16 pace =
      softplus(gate_of(first.gates + a.value_heads, first.ldg, rows) + F32x16::set1(a.decay_bias[head]));
  exp(F32x16::set1(a.decay[head]) * pace).store(factors.decay);
}

// A strip of a state, and its scale. Each 16 columns have a scale, because items may cut strips there.
struct StripState {
  float *values, *scale;
};

// A token: `product` is S^T k before it, and unless it is the last one S^T next after it, where `next` is the next key.
// At the last one `next` has rows to fetch. Returns the scale after it.
template <int kVectors, bool kWhole>
inline float delta_token(const Strip<kVectors, kWhole>& strip, const float* from, float* to,
                         const DeltaFactors& factors, int token, float scale, const DeltaRows& row, bool is_last,
                         const float* next, F32x16* product) {
  const float decayed = scale * factors.decay[token];
  const bool scales = !(decayed >= kLeastScale);
  const F32x16 recalled = F32x16::set1(decayed * factors.of_key[token]), rate = F32x16::set1(factors.rate[token]);
  const F32x16 wider = F32x16::set1(scales ? 1.0f : 1.0f / decayed);
  F32x16 u[kVectors], result[kVectors];
  for (int j = 0; j < kVectors; ++j) u[j] = (strip.load(row.v, j) - product[j] * recalled) * rate * wider;
  const auto update = [&]<Scaling kScaling, bool kNext>() {
    update_strip<kVectors, kWhole, kScaling, kNext>(strip, from, to, &decayed, row.k, u, row.q, result, next, product);
  };
  constexpr Scaling kNone = Scaling::kNone, kAll = Scaling::kWhole;
  if (scales)
    is_last ? update.template operator()<kAll, false>() : update.template operator()<kAll, true>();
  else
    is_last ? update.template operator()<kNone, false>() : update.template operator()<kNone, true>();
  const float after = scales ? 1.0f : decayed;
  const F32x16 of_query = F32x16::set1(factors.of_query[token] * after);
  for (int j = 0; j < kVectors && row.out != nullptr; ++j) strip.store(result[j] * of_query, row.out, j);
  return after;
}

// The rule by which `strips` applies tokens.
struct DeltaRule {
  using Factors = DeltaFactors;
  // Tokens: the strip's columns go from `from` to `to`. Returns the scale after them.
  template <int kVectors, bool kWhole>
  static float rows(const DeltaArgs& a, const DeltaItem& item, const Strip<kVectors, kWhole>& strip, DeltaRows row,
                    int32_t count, const float* from, float* to, float scale, Factors& factors) {
    F32x16 product[kVectors];
    const float* const ahead = item.ahead != nullptr ? item.ahead : from;
    multiply_strip(strip, from, row.k, ahead, product);
    for (int32_t t = 0; t < count; ++t, row.advance()) {
      const int token = t % kDeltaTokens;
      const int32_t left = count - t;
      if (token == 0) delta_factors(a, item.head, row, left < kDeltaTokens ? left : kDeltaTokens, factors);
      const float* next = left > 1 ? row.k + row.ld : strip.second_half(ahead);
      scale = delta_token(strip, from, to, factors, token, scale, row, left == 1, next, product);
      from = to;
    }
    return scale;
  }
};

inline DeltaRows rows_of_step(const DeltaArgs& a, const DeltaItem& item, int64_t row) {
  const int64_t key_head = item.head / (a.value_heads / a.key_heads), keys = int64_t{a.key_heads} * a.key_dim;
  const int64_t column = int64_t{item.head} * a.value_dim + item.column;
  const float *x = a.x + row * a.ldx, *q = x + key_head * a.key_dim;
  return {.q = q,
          .k = q + keys,
          .v = x + 2 * keys + column,
          .gates = a.gates + row * a.ldg + item.head,
          .ld = a.ldx,
          .ldg = a.ldg,
          .out = a.out + row * a.ldo + column,
          .ldo = a.ldo};
}

// The draft tokens of the last step of a slot, without queries: their results are not wanted again.
inline DeltaRows rows_of_drafts(const DeltaArgs& a, const DeltaItem& item, int32_t slot) {
  const int64_t key_head = item.head / (a.value_heads / a.key_heads), keys = int64_t{a.key_heads} * a.key_dim;
  const float *x = reinterpret_cast<const float*>(a.drafts + slot * a.slot_bytes), *k = x + key_head * a.key_dim;
  return {.q = k,
          .k = k,
          .v = x + keys + int64_t{item.head} * a.value_dim + item.column,
          .gates = x + keys + int64_t{a.value_heads} * a.value_dim + item.head,
          .ld = a.ldd,
          .ldg = a.ldd,
          .out = nullptr,
          .ldo = 0};
}

template <class Rule, int kVectors, bool kWhole>
inline void delta_segment(const DeltaArgs& a, const DeltaItem& item, const Strip<kVectors, kWhole>& strip,
                          const StateSegment& segment, StripState from, StripState to,
                          typename Rule::Factors& factors) {
  float scale = from.values == nullptr ? 1.0f : *from.scale;
  if (from.values == nullptr || (segment.count == 0 && from.values != to.values)) {
    copy_strip(strip, from.values, to.values);
    from = to;
  }
  if (segment.replayed > 0) {
    scale = Rule::rows(a, item, strip, rows_of_drafts(a, item, segment.load), segment.replayed, from.values, to.values,
                       scale, factors);
    from = to;
  }
  if (segment.count > 0)
    scale = Rule::rows(a, item, strip, rows_of_step(a, item, segment.row), segment.count, from.values, to.values, scale,
                       factors);
  for (int j = 0; j < kVectors; ++j) to.scale[j] = scale;
}

template <class Rule, int kVectors, bool kWhole>
inline void delta_strip(const DeltaArgs& a, const DeltaItem& item, float* scratch, typename Rule::Factors& factors) {
  const int32_t rest = a.value_dim - item.column / kStripColumns * kStripColumns;
  const int64_t ld = rest < kStripColumns ? rest : kStripColumns;
  const Strip<kVectors, kWhole> strip{{a.value_dim - item.column}, ld, a.key_dim};
  const int64_t scales = int64_t{a.value_heads} * a.value_dim * a.key_dim;
  const int64_t scale = scales + item.head * ceil_div(a.value_dim, kScaleColumns) + item.column / kScaleColumns;
  const auto state = [&](int32_t number) {
    float* const values = reinterpret_cast<float*>(a.states + number * a.state_bytes);
    return StripState{values + strip_offset(a, item.head, item.column), values + scale};
  };
  const StripState nowhere{scratch, scratch + kStripColumns * a.key_dim};
  for (int64_t i = 0; i < item.num_segments; ++i) {
    const StateSegment& segment = item.segments[i];
    delta_segment<Rule>(a, item, strip, segment, segment.load < 0 ? StripState{} : state(segment.load),
                        segment.store < 0 ? nowhere : state(segment.store), factors);
  }
}

// Halves of a strip one after the other where its sums do not fit the registers.
#if defined(__AVX512F__)
inline constexpr bool kWholeStrips = true;
#else
inline constexpr bool kWholeStrips = false;
#endif

template <class Rule>
inline void delta_columns(const DeltaArgs& a, DeltaItem item, float* scratch, typename Rule::Factors& factors) {
  const int32_t end = item.column + item.columns;
  if (kWholeStrips && item.columns == kStripColumns && a.value_dim >= end)
    return delta_strip<Rule, 2, true>(a, item, scratch, factors);
  for (; item.column < end && item.column < a.value_dim; item.column += 16)
    a.value_dim - item.column >= 16 ? delta_strip<Rule, 1, true>(a, item, scratch, factors)
                                    : delta_strip<Rule, 1, false>(a, item, scratch, factors);
}

template <class Rule>
inline void strips(const DeltaArgs& a, DeltaItem item, void* scratch) {
  typename Rule::Factors factors;
  for (; item.strips > 0; --item.strips) {
    DeltaItem strip = item;
    item.column += item.columns;
    if (item.strips > 1) strip.ahead = first_strip(a, item);
    delta_columns<Rule>(a, strip, static_cast<float*>(scratch), factors);
  }
}

inline void gated_delta(const DeltaArgs& a, DeltaItem item, void* scratch) { strips<DeltaRule>(a, item, scratch); }

}  // namespace
}  // namespace numaserve
