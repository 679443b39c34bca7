// Routing of tokens to experts, and the weighted sum of the experts' results.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"

namespace numaserve {
namespace {

inline float sigmoid(float x) {
  alignas(64) float values[16];
  sigmoid(F32x16::set1(x)).store(values);
  return values[0];
}

// Computes the scores of all experts; `scores` has space for whole registers, and ends in values that are never chosen.
inline void expert_scores(const RouteArgs& a, const float* logits, float* scores) {
  const int32_t count = a.num_experts, padded = static_cast<int32_t>(round_up(count, 16));
  __builtin_memcpy(scores, logits, static_cast<size_t>(count) * sizeof(float));
  for (int32_t i = count; i < padded; ++i) scores[i] = logits[0];
  if (a.scoring == Scoring::kSigmoid) {
    for (int32_t i = 0; i < padded; i += 16) sigmoid(F32x16::load(scores + i)).store(scores + i);
    return;
  }
  F32x16 peaks = F32x16::load(scores);
  for (int32_t i = 16; i < padded; i += 16) peaks = F32x16::max(peaks, F32x16::load(scores + i));
  const F32x16 peak = F32x16::set1(peaks.max_lane());
  for (int32_t i = 0; i < padded; i += 16) exp(F32x16::load(scores + i) - peak).store(scores + i);
  for (int32_t i = count; i < padded; ++i) scores[i] = 0.0f;
  F32x16 sums = F32x16::zero();
  for (int32_t i = 0; i < padded; i += 16) sums = sums + F32x16::load(scores + i);
  const F32x16 inverse = F32x16::set1(1.0f / sums.sum());
  for (int32_t i = 0; i < padded; i += 16) (F32x16::load(scores + i) * inverse).store(scores + i);
}

// Choices lie between the first two. kNever marks an excluded expert: it is below any choice and the sum of any two.
inline constexpr float kFirst = 1.0e38f, kLast = -1.0e38f, kNever = -3.0e38f;

// Computes the scores by which experts are chosen. Each expert can be chosen only once, whatever its score, because
// memory is divided on that assumption. A score that is not a number comes first: its weight is not a number either, so
// the result shows it. (A minimum returns its second operand for a NaN.)
inline void expert_choices(const RouteArgs& a, const float* scores, float* choice) {
  const int32_t padded = static_cast<int32_t>(round_up(a.num_experts, 16));
  for (int32_t i = 0; i < padded; i += 16) {
    F32x16 value = F32x16::load(scores + i);
    if (a.correction != nullptr) value = value + F32x16::load(a.correction + i);
    F32x16::max(F32x16::min(value, F32x16::set1(kFirst)), F32x16::set1(kLast)).store(choice + i);
  }
  for (int32_t i = a.num_experts; i < padded; ++i) choice[i] = kNever;
}

// Index of the largest value, the first of equal ones; all are numbers.
inline int32_t largest(const float* x, int32_t padded) {
  F32x16 peaks = F32x16::load(x);
  for (int32_t i = 16; i < padded; i += 16) peaks = F32x16::max(peaks, F32x16::load(x + i));
  const float peak = peaks.max_lane();
  int32_t index = 0;
  while (x[index] != peak) ++index;
  return index;
}

// Leaves only the experts of the best groups to choose from (DeepSeek-V2, 2024, section 2.2.2; DeepSeek-V3, 2024).
inline void limit_groups(const RouteArgs& a, float* choice) {
  const int32_t size = a.num_experts / a.num_groups;
  alignas(64) float groups[kMaxExperts];
  const int32_t padded = static_cast<int32_t>(round_up(a.num_groups, 16));
  for (int32_t g = 0; g < padded; ++g) {
    float first = kLast, second = kLast;
    for (int32_t i = g * size; g < a.num_groups && i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    groups[g] = g >= a.num_groups ? kNever : a.group_score == GroupScore::kMax ? first : first + second;
  }
  bool kept[kMaxExperts] = {};
  for (int32_t n = 0; n < a.top_groups; ++n) {
    const int32_t best = largest(groups, padded);
    kept[best] = true;
    groups[best] = kNever;
  }
  for (int32_t i = 0; i < a.num_experts; ++i)
    if (!kept[i / size]) choice[i] = kNever;
}

inline void route(const RouteArgs& a, int64_t token, int32_t* experts, float* weights) {
  alignas(64) float scores[kMaxExperts], choice[kMaxExperts];
  const int32_t padded = static_cast<int32_t>(round_up(a.num_experts, 16));
  expert_scores(a, a.logits + token * a.ldl, scores);
  expert_choices(a, scores, choice);
  if (a.num_groups > 1) limit_groups(a, choice);
  float sum = 0.0f;
  for (int32_t k = 0; k < a.top_k; ++k) {
    experts[k] = largest(choice, padded);
    choice[experts[k]] = kNever;
    weights[k] = scores[experts[k]];
    sum += weights[k];
  }
  const float factor = a.renormalize ? a.scale / (sum + 1e-20f) : a.scale;
  for (int32_t k = 0; k < a.top_k; ++k) {
    const int32_t expert = experts[k];
    const float weight = weights[k] * factor * (a.factors == nullptr ? 1.0f : a.factors[expert]);
    int32_t at = k;
    for (; at > 0 && experts[at - 1] > expert; --at) {
      experts[at] = experts[at - 1];
      weights[at] = weights[at - 1];
    }
    experts[at] = expert;
    weights[at] = weight;
  }
}

inline void weigh_row(const bf16* x, float weight, int64_t columns, bf16* out) {
  for (int64_t i = 0; i < columns; i += 16) (F32x16::load(x + i) * F32x16::set1(weight)).store(out + i);
}

inline void combine(const CombineArgs& a, int thread, int threads) {
  const RowShare share = share_of(a, thread, threads);
  for (int64_t t = share.rows.begin; t < share.rows.end; ++t) {
    const int32_t* rows = a.routes + t * a.ldr;
    float weights[kMaxTopK + 1];
    __builtin_memcpy(weights, rows + a.top_k, static_cast<size_t>(a.top_k + 1) * sizeof(float));
    for (int64_t i = share.columns.begin; i < share.columns.end; i += 16) {
      F32x16 sum = F32x16::zero();
      for (int32_t k = 0; k < a.top_k; ++k)
        if (rows[k] >= 0) sum = F32x16::fma(F32x16::load(a.y + rows[k] * a.ldy + i), F32x16::set1(weights[k]), sum);
      if (a.shared != nullptr)
        sum = F32x16::fma(F32x16::load(a.shared + t * a.lds + i), F32x16::set1(weights[a.top_k]), sum);
      float* out = a.out + t * a.ldo + i;
      (a.accumulate ? F32x16::load(out) + sum : sum).store(out);
    }
  }
}

inline void clear_columns(float* out, int64_t ldo, int64_t rows, Range columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = columns.begin; i < columns.end; i += 16) F32x16::zero().store(out + r * ldo + i);
}

inline void add_weighted_rows(const WeightedRowsArgs& a, Range columns) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* y = a.y + r * a.ldy;
    float* out = a.out + (a.tokens == nullptr ? r : a.tokens[r]) * a.ldo;
    const F32x16 weight = F32x16::set1(a.weights[r]);
    for (int64_t i = columns.begin; i < columns.end; i += 16)
      F32x16::fma(F32x16::load(y + i), weight, F32x16::load(out + i)).store(out + i);
  }
}

inline void move_sums(const MoveSumsArgs& a, Range columns) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* sums = a.sums + r * a.lds;
    float* out = a.out + r * a.ldo;
    for (int64_t i = columns.begin; i < columns.end; i += 16) {
      const F32x16 sum = F32x16::load(sums + i);
      (a.accumulate ? F32x16::load(out + i) + sum : sum).store(out + i);
    }
  }
}

}  // namespace
}  // namespace numaserve
