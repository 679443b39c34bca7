#include "kernels/runtime/program/image_operations.h"

#include <memory>

#include "kernels/runtime/program/image_nodes.h"

namespace numaserve::operation {

void add(Program& p, const PlaceRows& f) {
  require(f.rows > 0 && f.cols > 0 && f.residual.ld >= f.cols && f.pool.ld >= f.cols, f.kKind,
          "the residual stream or the pool has too few columns, or the pool has no rows");
  p.step().allow_placing(f.rows);
  p.add(std::make_unique<PlaceRowsNode>(f.residual, f.pool, f.cols));
}

void add(Program& p, const MergeRows& f) {
  require(f.factor > 0 && f.side > 0 && f.side % f.factor == 0, f.kKind,
          "the side of a tile must be a multiple of the side of a block");
  require(f.cols > 0 && f.x.ld >= f.cols && f.out.ld >= f.cols * f.factor * f.factor, f.kKind,
          "the input or the output has too few columns");
  p.add(std::make_unique<MergeRowsNode>(f.x, f.out, f.cols, f.side, f.factor));
  p.merge(f.side * f.side, f.factor * f.factor);
}

}  // namespace numaserve::operation
