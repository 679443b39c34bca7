#include "kernels/runtime/program/image_operations.h"

#include <memory>
#include <utility>
#include <vector>

#include "kernels/runtime/program/image_nodes.h"

namespace numaserve::operation {
namespace {

void require_blocks(int64_t side, int64_t factor, const char* kind) {
  require(factor > 0 && side > 0 && side % factor == 0, kind,
          "the side of a tile must be a multiple of the side of a block");
}

}  // namespace

void add(Program& p, const PlaceRows& f) {
  require(f.rows > 0 && f.cols > 0 && f.residual.ld >= f.cols && f.pool.ld >= f.cols, f.kKind,
          "the residual stream or the pool has too few columns, or the pool has no rows");
  p.step().allow_placing(f.rows);
  p.add(std::make_unique<PlaceRowsNode>(f.residual, f.pool, f.cols, f.add));
}

void add(Program& p, const RotaryRows& f) {
  const auto pairs = static_cast<size_t>(f.rope->half);
  require(f.axes.size() == pairs && f.out.ld >= 2 * f.rope->half, f.kKind,
          "there must be an index for each pair of the rope, and two columns of the output");
  std::vector<const int32_t*> indices;
  for (const RowIndex& axis : f.axes) indices.push_back(p.row_indices(axis));
  p.step().limit_positions(f.rope->positions);
  p.add(std::make_unique<RotaryRowsNode>(*f.rope, std::move(indices), f.out));
}

void add(Program& p, const EmbedTaps& f) {
  require(f.table->format() == WeightFormat::kBf16, f.kKind, "the table must be bf16");
  require(f.out.ld == f.table->depth(), f.kKind, "the output and the table must have the same number of columns");
  require(f.taps > 0 && f.weights.ld >= 2 * f.taps, f.kKind, "the weights have too few columns");
  p.require_all_tokens();
  p.add(std::make_unique<EmbedTapsNode>(f.weights, *f.table, f.first_row, f.taps, f.out));
}

void add(Program& p, const MergeRows& f) {
  require_blocks(f.side, f.factor, f.kKind);
  require(f.cols > 0 && f.x.ld >= f.cols && f.out.ld >= f.cols * f.factor * f.factor, f.kKind,
          "the input or the output has too few columns");
  require(f.item_bytes == 2 || f.item_bytes == 4, f.kKind, "values must be bf16 or fp32");
  p.add(std::make_unique<MergeRowsNode>(f.x, f.out, f.cols * f.item_bytes, f.item_bytes, f.side, f.factor));
  p.merge(f.side * f.side, f.factor * f.factor, f.extra, f.many);
}

void add(Program& p, const MeanRows& f) {
  require_blocks(f.side, f.factor, f.kKind);
  require(f.cols > 0 && f.x.ld >= f.cols && f.out.ld >= f.cols, f.kKind, "the input or the output has too few columns");
  require_size(f.shift, f.cols, f.kKind);
  require_size(f.weight, f.cols, f.kKind);
  p.add(std::make_unique<MeanRowsNode>(f.x, f.out, f.cols, f.side, f.factor, data_or_null(f.shift),
                                       data_or_null(f.weight), f.eps));
  p.merge(f.side * f.side, f.factor * f.factor, 0, f.many);
}

void add(Program& p, const Clamp& f) {
  require(f.cols >= 0 && f.x.ld >= f.cols && f.out.ld >= f.cols, f.kKind,
          "the input or the output has too few columns");
  require_size(f.bounds, 2, f.kKind);
  p.add(std::make_unique<ClampNode>(f.x, f.out, f.cols, f.rounded, f.bounds->padded.data()));
}

}  // namespace numaserve::operation
