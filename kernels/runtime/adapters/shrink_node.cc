#include "kernels/runtime/adapters/shrink_node.h"

#include <memory>

namespace numaserve {

void ShrinkNode::run(Run& run, int thread) const {
  const std::span<const int32_t> rows = run.step.adapters(narrow);
  run.table.shrink({.table = adapters.table(),
                    .x = run.at<bf16>(x),
                    .ldx = x.ld,
                    .adapters = rows.data(),
                    .rows = static_cast<int64_t>(rows.size()),
                    .shrunk = run.at<float>(out),
                    .ld = out.ld},
                   thread, run.team.size());
}

namespace operation {

void add(Program& p, const Shrink& f) {
  require(f.x.ld >= round_up(f.adapters->k(), kTileK), f.kKind, "the input has too few columns for the adapters");
  require(f.out.ld >= f.adapters->parts() * f.adapters->rank(), f.kKind,
          "the output has too few columns for the adapters");
  p.step().allow_adapters(f.adapters->places());
  p.add(std::make_unique<ShrinkNode>(f.x, f.out, *f.adapters));
}

}  // namespace operation
}  // namespace numaserve
