// The operations of image input as data; see operations.h.
#pragma once

#include <optional>
#include <vector>

#include "kernels/runtime/program/operations.h"

namespace numaserve::operation {

// Rows of the pool, bf16 [rows, cols], in place of those of the residual stream that a step names; `add`: added to
// them.
struct PlaceRows {
  static constexpr const char* kKind = "place_rows";
  Place residual, pool;
  bool add;
  int64_t rows, cols;
  void visit(auto&& field) {
    field("residual", residual), field("pool", pool), field("add", add), field("rows", rows), field("cols", cols);
  }
};

// Cosines and sines of each token, fp32 [tokens, 2 * half], from the table of a rope: pair i has those of the token's
// index `axes[i]`.
struct RotaryRows {
  static constexpr const char* kKind = "rotary_rows";
  Place out;
  const RopeTable* rope;
  std::vector<RowIndex> axes;  // of each pair
  void visit(auto&& field) { field("out", out), field("rope", rope), field("axes", axes); }
};

// The weighted sum of `taps` rows of a table, added to each row of `out`. A row of `weights` has their numbers, int32,
// and then their weights, fp32. The table has rows `first_row` ... of the whole one; others add nothing.
struct EmbedTaps {
  static constexpr const char* kKind = "embed_taps";
  Place weights, out;
  const PackedMatrix* table;
  int64_t first_row, taps;
  void visit(auto&& field) {
    field("weights", weights), field("out", out), field("table", table), field("first_row", first_row);
    field("taps", taps);
  }
};

// The rows of each block of factor x factor patches side by side, for the nodes after it. Each sequence of a step is a
// tile of side x side patches, or of any number of such tiles. With `extra` rows after its tile, which become nothing,
// a step has one sequence.
struct MergeRows {
  static constexpr const char* kKind = "merge_rows";
  Place x, out;
  int64_t cols, item_bytes, side, factor, extra;
  bool many;
  void visit(auto&& field) {
    field("x", x), field("out", out), field("cols", cols), field("item_bytes", item_bytes);
    field("side", side), field("factor", factor), field("extra", extra), field("many", many);
  }
};

// The means of these blocks, fp32 [rows of blocks, cols], less `shift` and times `weight`, for the nodes after it. With
// an `eps` above 0 rows are normalised by their root mean square after that.
struct MeanRows {
  static constexpr const char* kKind = "mean_rows";
  Place x, out;
  int64_t cols, side, factor;
  bool many;
  std::optional<const PaddedVector*> shift, weight;
  float eps;
  void visit(auto&& field) {
    field("x", x), field("out", out), field("cols", cols), field("side", side), field("factor", factor);
    field("many", many), field("shift", shift), field("weight", weight), field("eps", eps);
  }
};

// Rows of fp32, or of bf16 if `rounded`, whose values lie between the two `bounds`.
struct Clamp {
  static constexpr const char* kKind = "clamp";
  Place x, out;
  int64_t cols;
  bool rounded;
  const PaddedVector* bounds;
  void visit(auto&& field) {
    field("x", x), field("out", out), field("cols", cols), field("rounded", rounded), field("bounds", bounds);
  }
};

void add(Program& p, const PlaceRows& f);
void add(Program& p, const MeanRows& f);
void add(Program& p, const Clamp& f);
void add(Program& p, const RotaryRows& f);
void add(Program& p, const EmbedTaps& f);
void add(Program& p, const MergeRows& f);

}  // namespace numaserve::operation
