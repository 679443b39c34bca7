// The node that adds the ranks' parts of a matrix to the residual stream.
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// Above this size, with more than two ranks, each rank sums a share and the others fetch it. Every rank then reads its
// share of each peer's memory twice instead of everything once. The sums are the same to the bit.
inline constexpr int64_t kOneShotBytes = 256 << 10;

// From this number of rows on, a large sum over more than two ranks overlaps the product before it; see
// overlapped_sum.cc. A lane multiplies and sums pieces of at most this number of pairs of panels: wider pieces overlap
// less, and narrower ones read the rows of the product more often.
inline constexpr int64_t kOverlappedRows = 128, kPiecePairs = 4;

// residual (+)= the sum over the ranks, optionally followed by Gemma's norm of the sum; then the norm, into `out`.
struct ReduceNode : Node {
  ReduceNode(Place partial_in, Place residual_in, Place sum_in, int64_t cols_in)
      : Node("add_all_reduce"), partial(partial_in), residual(residual_in), sum(sum_in), cols(cols_in) {}
  void run(Run& run, int thread) const override;
  // Whether this node also does the work of `product` in this step. All ranks get the same answer.
  bool overlaps(const Run& run) const;
  Place partial, residual, sum;
  int64_t cols;
  bool assign = false;  // the residual begins here (after the embedding)
  const float* bias = nullptr;
  const float* post_norm = nullptr;
  float eps = 0.0f;
  float scale = 1.0f;
  const LinearNode* product = nullptr;  // the node before, which alone writes `partial`; null: it is never overlapped

 private:
  bool is_shared(const Run& run) const;
  ReduceArgs arguments(const Run& run, const float* const* parts, int num_parts) const;
  // Returns the arguments for sums in this rank's part, in place.
  ReduceArgs own_sums(const Run& run, const float* const* parts) const;
  void one_shot(Run& run, int thread) const;
  void scatter_gather(Run& run, int thread) const;
  void multiply_and_sum(Run& run, int lane) const;
  // Adds the rows of a piece that `rank` sums.
  void add_rows(const Run& run, const ReduceArgs& args, const GemmShare& piece, int rank) const;
};

}  // namespace numaserve
