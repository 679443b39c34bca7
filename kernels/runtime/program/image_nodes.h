// Nodes of image input: rows of features in place of embeddings, and the patches of a tile that become one row.
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// Replaces the rows of the residual stream that Step::feature_rows names by rows of `pool`, bf16. It runs in no other
// step.
struct PlaceRowsNode : Node {
  PlaceRowsNode(Place residual_in, Place pool_in, int64_t cols_in)
      : Node("place_rows"), residual(residual_in), pool(pool_in), cols(cols_in) {
    of_features = true;
  }
  void run(Run& run, int thread) const override;
  Place residual, pool;
  int64_t cols;
};

// Copies the patches of each block of factor x factor side by side. The nodes after it work on the rows of blocks.
struct MergeRowsNode : Node {
  MergeRowsNode(Place x_in, Place out_in, int64_t cols_in, int64_t side_in, int64_t factor_in)
      : Node("merge_rows"), x(x_in), out(out_in), cols(cols_in), side(side_in), factor(factor_in) {}
  void run(Run& run, int thread) const override;
  Place x, out;
  int64_t cols, side, factor;
};

}  // namespace numaserve
