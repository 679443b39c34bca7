// The node that adds the ranks' parts of a matrix to the residual stream.
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// Above this size, with more than two ranks, each rank sums a share and the others fetch it. Every rank then reads its
// share of each peer's memory twice instead of everything once. The sums are the same to the bit.
inline constexpr int64_t kOneShotBytes = 256 << 10;

// residual (+)= the sum over the ranks, optionally followed by Gemma's norm of the sum; then the norm, into `out`.
struct ReduceNode : Node {
  ReduceNode(Place partial_in, Place residual_in, Place sum_in, int64_t cols_in)
      : Node("add_all_reduce"), partial(partial_in), residual(residual_in), sum(sum_in), cols(cols_in) {}
  void run(Run& run, int thread) const override;
  Place partial, residual, sum;
  int64_t cols;
  bool assign = false;  // the residual begins here (after the embedding)
  const float* bias = nullptr;
  const float* post_norm = nullptr;
  float eps = 0.0f;
  float scale = 1.0f;

 private:
  ReduceArgs arguments(const Run& run, const float* const* parts, int num_parts) const;
  void one_shot(Run& run, int thread) const;
  void scatter_gather(Run& run, int thread) const;
};

}  // namespace numaserve
