// The arguments of a mixture of experts: where tokens go, and how results are added up.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {

enum class Scoring : int32_t { kSoftmax, kSigmoid };
enum class GroupScore : int32_t { kMax, kTop2 };

// Which experts a token goes to, and with which weights.
struct RouteArgs {
  const float* logits;  // [tokens, ldl]
  int64_t ldl;
  int32_t num_experts, top_k;
  Scoring scoring;
  bool renormalize;         // weights are divided by their sum
  float scale;              // and multiplied by this
  const float* correction;  // [num_experts] or null: added to the scores for choosing, not for weighing
  // Experts lie in `num_groups` equal groups; those of the best `top_groups` can be chosen. 1 and 1: all.
  int32_t num_groups, top_groups;
  GroupScore group_score;
};

// out[t] (+)= the sum over a token's routes, in their order, of weight * y[row], then + shared_weight * shared[t].
// A record of `routes` is top_k rows of y (-1: not on this rank), their weights, and the shared expert's weight.
struct CombineArgs {
  const float* y;  // [rows, ldy]
  int64_t ldy;
  const float* shared;  // [tokens, lds] or null
  int64_t lds;
  const int32_t* routes;  // [tokens, ldr]
  int64_t ldr;
  int32_t top_k;
  float* out;  // [tokens, ldo]
  int64_t ldo;
  int64_t tokens;
  bool accumulate;
};

}  // namespace numaserve
