// Kimi Delta Attention (Kimi Team, 2025), token by token in fp32, over the strips, states, segments and draft tokens of
// the gated delta rule. Only the decay differs: each row of a state, which is a dimension of keys, has a decay of its
// own.
//
//   S = diag(g) S;  u = beta (v - S^T k);  S = S + k u^T;  out = S^T q
//
// Rows have no common scale that a strip could be divided by. A pass multiplies each row with its decay, and the
// product with the next key has the next decays in the key: S^T (g k) is (diag(g) S)^T k.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/gated_delta.inl"

namespace numaserve {
namespace {

// The decays of dimensions of keys, after b: out = [b | exp(decay softplus(x + bias))] of each value head.
inline void key_decays(const KeyDecaysArgs& a, int thread, int threads) {
  const Range items = share_of(a, thread, threads);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t row = item / a.heads, head = item % a.heads, first = head * a.key_dim;
    const float* const x = a.x + row * a.ldx + first;
    float* const out = a.out + row * a.ldo;
    out[head] = a.b[row * a.ldb + head];
    for (int64_t i = 0; i < a.key_dim; i += 16) {
      const int valid = static_cast<int>(a.key_dim - i < 16 ? a.key_dim - i : 16);
      const F32x16 pace = softplus(F32x16::load_head(x + i, valid) + F32x16::load_head(a.bias + first + i, valid));
      exp(F32x16::set1(a.decay[head]) * pace).store_head(out + a.heads + first + i, valid);
    }
  }
}

// The factors of some tokens of a head, and the next key times its decays.
struct KeyFactors : VectorFactors {
  alignas(64) float decayed_key[kMaxKeyDim];
};

// Decays of a row's head: they come after b of all heads.
inline const float* decays_of(const DeltaArgs& a, int32_t head, const DeltaRows& row) {
  return row.gates + (a.value_heads - head) + int64_t{head} * a.key_dim;
}

inline const float* decayed_key(const DeltaArgs& a, const float* k, const float* decays, float* out) {
  for (int64_t i = 0; i < a.key_dim; i += 16) {
    const int valid = static_cast<int>(a.key_dim - i < 16 ? a.key_dim - i : 16);
    (F32x16::load_head(k + i, valid) * F32x16::load_head(decays + i, valid)).store(out + i);
  }
  return out;
}

struct KeyDelta {
  using Factors = KeyFactors;
  // A token: `product` and `next` are as in `delta_token`, with decays in the keys.
  template <int kVectors, bool kWhole>
  static void token(const Strip<kVectors, kWhole>& strip, const float* from, float* to, const KeyFactors& factors,
                    int index, const float* decays, const DeltaRows& row, bool is_last, const float* next,
                    F32x16* product) {
    const F32x16 recalled = F32x16::set1(factors.of_key[index]), rate = F32x16::set1(factors.rate[index]);
    F32x16 u[kVectors], result[kVectors];
    for (int j = 0; j < kVectors; ++j) u[j] = (strip.load(row.v, j) - product[j] * recalled) * rate;
    const auto update = [&]<bool kNext>() {
      update_strip<kVectors, kWhole, Scaling::kRows, kNext>(strip, from, to, decays, row.k, u, row.q, result, next,
                                                            product);
    };
    is_last ? update.template operator()<false>() : update.template operator()<true>();
    const F32x16 of_query = F32x16::set1(factors.of_query[index]);
    for (int j = 0; j < kVectors && row.out != nullptr; ++j) strip.store(result[j] * of_query, row.out, j);
  }

  // Tokens: the strip's columns go from `from` to `to`. The scale of a state stays 1.
  template <int kVectors, bool kWhole>
  static float rows(const DeltaArgs& a, const DeltaItem& item, const Strip<kVectors, kWhole>& strip, DeltaRows row,
                    int32_t count, const float* from, float* to, float scale, Factors& factors) {
    F32x16 product[kVectors];
    const float* const ahead = item.ahead != nullptr ? item.ahead : from;
    const float* decays = decays_of(a, item.head, row);
    multiply_strip(strip, from, decayed_key(a, row.k, decays, factors.decayed_key), ahead, product);
    for (int32_t t = 0; t < count; ++t, row.advance(), decays += row.ldg) {
      const int index = t % kDeltaTokens;
      const int32_t left = count - t;
      if (index == 0 && factors.gates != row.gates)
        vector_factors(a, row, left < kDeltaTokens ? left : kDeltaTokens, factors);
      const float* next =
          left > 1 ? decayed_key(a, row.k + row.ld, decays + row.ldg, factors.decayed_key) : strip.second_half(ahead);
      token(strip, from, to, factors, index, decays, row, left == 1, next, product);
      from = to;
    }
    return scale;
  }
};

inline void key_delta(const DeltaArgs& a, DeltaItem item, void* scratch) { strips<KeyDelta>(a, item, scratch); }

}  // namespace
}  // namespace numaserve
