// Nodes of image input: rows of features in place of embeddings, patches of a tile that become one row, and bounds on
// values of towers.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/runtime/program/nodes.h"
#include "kernels/runtime/program/vectors.h"

namespace numaserve {

// Replaces the rows of the residual stream that Step::feature_rows names by rows of `pool`, bf16, or adds these. It
// runs in no other step.
struct PlaceRowsNode : Node {
  PlaceRowsNode(Place residual_in, Place pool_in, int64_t cols_in, bool add_in)
      : Node("place_rows"), residual(residual_in), pool(pool_in), cols(cols_in), add(add_in) {
    of_features = true;
  }
  void run(Run& run, int thread) const override;
  Place residual, pool;
  int64_t cols;
  bool add;
};

// Collects the cosines and sines of each token: pair i has those of the token's number in `indices[i]`.
struct RotaryRowsNode : Node {
  RotaryRowsNode(const RopeTable& rope_in, std::vector<const int32_t*> indices_in, Place out_in)
      : Node("rotary_rows"), rope(rope_in), indices(std::move(indices_in)), out(out_in) {}
  void run(Run& run, int thread) const override;
  const RopeTable& rope;
  std::vector<const int32_t*> indices;
  Place out;
};

// Adds the weighted sum of some rows of a table to each row of `out`.
struct EmbedTapsNode : Node {
  EmbedTapsNode(Place weights_in, const PackedMatrix& table_in, int64_t first_row_in, int64_t taps_in, Place out_in)
      : Node("embed_taps"), weights(weights_in), table(table_in), first_row(first_row_in), taps(taps_in), out(out_in) {}
  void run(Run& run, int thread) const override;
  Place weights;
  const PackedMatrix& table;
  int64_t first_row, taps;
  Place out;
};

// Copies the patches of each block of factor x factor side by side. The nodes after it work on the rows of blocks.
struct MergeRowsNode : Node {
  MergeRowsNode(Place x_in, Place out_in, int64_t row_bytes_in, int64_t item_bytes_in, int64_t side_in,
                int64_t factor_in)
      : Node("merge_rows"),
        x(x_in),
        out(out_in),
        row_bytes(row_bytes_in),
        item_bytes(item_bytes_in),
        side(side_in),
        factor(factor_in) {}
  void run(Run& run, int thread) const override;
  Place x, out;
  int64_t row_bytes, item_bytes, side, factor;  // bytes of a row of `x`, and of a value
};

// The mean of the patches of each block of factor x factor, less `shift` and times `weight`, which may be null, and
// with an `eps` above 0 the RMS norm of that. The nodes after it work on the rows of blocks.
struct MeanRowsNode : Node {
  MeanRowsNode(Place x_in, Place out_in, int64_t cols_in, int64_t side_in, int64_t factor_in, const float* shift_in,
               const float* weight_in, float eps_in)
      : Node("mean_rows"),
        x(x_in),
        out(out_in),
        cols(cols_in),
        side(side_in),
        factor(factor_in),
        shift(shift_in),
        weight(weight_in),
        eps(eps_in) {}
  void run(Run& run, int thread) const override;
  Place x, out;
  int64_t cols, side, factor;
  const float *shift, *weight;
  float eps;
};

// Copies rows of fp32, or of bf16 if `rounded`, with values below `bounds[0]` or above `bounds[1]` replaced by these.
struct ClampNode : Node {
  ClampNode(Place x_in, Place out_in, int64_t cols_in, bool rounded_in, const float* bounds_in)
      : Node("clamp"), x(x_in), out(out_in), cols(cols_in), rounded(rounded_in), bounds(bounds_in) {}
  void run(Run& run, int thread) const override;
  Place x, out;
  int64_t cols;
  bool rounded;
  const float* bounds;
};

}  // namespace numaserve
