// Arguments of operations that keep a state for each sequence.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {

inline constexpr int32_t kMaxConvTaps = 8;

// A causal convolution of each column of a sequence's new tokens:
//   out[t][c] = bias[c] + sum over j of weight[j][c] * x[t - taps + 1 + j][c], summed from the oldest tap on.
// A token's result has the same bits wherever a step cuts its sequence.
struct ConvArgs {
  const float* x;  // [count, ldx], the new tokens
  int64_t ldx;
  int64_t count;
  const float* weight;  // [taps, ldw]
  int64_t ldw;
  const float* bias;  // [cols], or null
  int32_t taps;       // from 2 to kMaxConvTaps
  bool silu;          // whether the result is x * sigmoid(x) of the sum
  bool begins;        // the first new token is the first of its sequence: zeros precede it, whatever `state` holds
  float* state;       // [taps - 1, lds]: the inputs before the new tokens, the oldest first; replaced by the last ones
  int64_t lds;
  float* out;  // [count, ldo]; columns cols..ldo are zeroed
  int64_t ldo;
  int64_t cols;
};

}  // namespace numaserve
