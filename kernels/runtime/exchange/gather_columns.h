// Matrices whose columns are computed on different ranks, gathered on every rank.
#pragma once

#include <vector>

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// Columns of the ranks in a collective: rank r has columns `bounds`[r] * unit to `bounds`[r + 1] * unit. A rank's part
// has its columns row by row, padded to a multiple of 32 columns.
struct RankColumns {
  std::vector<int32_t> bounds;  // world + 1
  int64_t unit, item_bytes;
  int64_t first_byte(int rank) const { return bounds[static_cast<size_t>(rank)] * unit * item_bytes; }
  int64_t row_bytes(int rank) const {
    const auto at = static_cast<size_t>(rank);
    return round_up((bounds[at + 1] - bounds[at]) * unit, kPad) * item_bytes;
  }
};

// Copies this lane's share of `rows` rows from every rank's part of `message` to rows of `out`.
void copy_columns(const Run& run, const RankColumns& columns, const Place& message, int64_t rows, const Place& out,
                  int thread);

struct GatherColumnsNode : Node {
  GatherColumnsNode(Place message_in, Place out_in, std::vector<int32_t> bounds_in)
      : Node("gather_columns"),
        message(message_in),
        out(out_in),
        columns{std::move(bounds_in), 1, static_cast<int64_t>(sizeof(float))} {}
  void run(Run& run, int thread) const override;
  Place message;  // [tokens, own columns], in the ring
  Place out;      // [tokens, all columns]
  RankColumns columns;
};

}  // namespace numaserve
