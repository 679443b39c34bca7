// The operations of image input as data; see operations.h.
#pragma once

#include "kernels/runtime/program/operations.h"

namespace numaserve::operation {

// Rows of the pool, bf16 [rows, cols], in place of those of the residual stream that a step names.
struct PlaceRows {
  static constexpr const char* kKind = "place_rows";
  Place residual, pool;
  int64_t rows, cols;
  void visit(auto&& field) {
    field("residual", residual), field("pool", pool), field("rows", rows), field("cols", cols);
  }
};

// The rows of each block of factor x factor patches side by side, for the nodes after it. Each sequence of a step is a
// tile of side x side patches.
struct MergeRows {
  static constexpr const char* kKind = "merge_rows";
  Place x, out;
  int64_t cols, side, factor;
  void visit(auto&& field) {
    field("x", x), field("out", out), field("cols", cols), field("side", side), field("factor", factor);
  }
};

void add(Program& p, const PlaceRows& f);
void add(Program& p, const MergeRows& f);

}  // namespace numaserve::operation
