// The arguments of a mixture of experts: routing of tokens, and summing of results.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {

enum class Scoring : int32_t { kSoftmax, kSigmoid };
enum class GroupScore : int32_t { kMax, kTop2 };

// Chooses a token's experts and their weights.
struct RouteArgs {
  const float* logits;  // [tokens, ldl]
  int64_t ldl;
  int32_t num_experts, top_k;
  Scoring scoring;
  bool renormalize;                // weights are divided by their sum
  float scale;                     // factor of the weights after that
  const float* correction;         // [num_experts] or null: added to the scores for choosing, not for weighting
  const float* factors = nullptr;  // [num_experts] or null: of each expert's weight, last
  // Experts lie in `num_groups` equal groups; only experts of the best `top_groups` can be chosen. 1 and 1: all.
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

// out[tokens[row]] += weights[row] * y[row], in the order of the rows.
struct WeightedRowsArgs {
  const float* y;  // [rows, ldy]
  int64_t ldy;
  int64_t rows;
  const int32_t* tokens;  // [rows], or null: a row's own number
  const float* weights;   // [rows]
  float* out;             // [tokens, ldo]
  int64_t ldo;
};

// out (+)= sums, for all rows.
struct MoveSumsArgs {
  const float* sums;  // [rows, lds]
  int64_t lds;
  int64_t rows;
  bool accumulate;
  float* out;  // [rows, ldo]
  int64_t ldo;
};

}  // namespace numaserve
