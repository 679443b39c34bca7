#include "kernels/runtime/adapters/shrink_node.h"

#include <algorithm>
#include <memory>

#include "kernels/include/shares.h"

namespace numaserve {

ShrinkArgs ShrinkNode::arguments(const Run& run) const {
  const std::span<const int32_t> rows = run.step.adapters(narrow);
  return {.table = adapters.table(),
          .x = run.at<bf16>(x),
          .ldx = x.ld,
          .adapters = rows.data(),
          .rows = static_cast<int64_t>(rows.size()),
          .shrunk = run.at<float>(out),
          .ld = out.ld};
}

void ShrinkNode::run(Run& run, int thread) const { run.table.shrink(arguments(run), thread, run.team.size()); }

// The rows of A of a tile lie one after the other.
std::span<const std::byte> ShrinkNode::reads_first(const Run& run, int thread, int64_t index) const {
  const ShrinkArgs args = arguments(run);
  if (args.rows > kStreamedRows) return {};
  std::span<const std::byte> found;
  int64_t tile = 0;
  for_shrink_tiles(
      args, run.table.shrink_tile, thread, run.team.size(), [&](int64_t row, int64_t, int64_t part, int64_t first) {
        if (tile++ != index) return;
        const AdapterTable& t = args.table;
        const int64_t at = (args.adapters[row] - 1) * t.parts + part;
        const int64_t count = std::min(run.table.shrink_tile.sums, t.ranks[at] - first);
        found = std::as_bytes(std::span(t.a + (at * t.rank + first) * t.depth, static_cast<size_t>(count * t.depth)));
      });
  return found;
}

namespace operation {

void add(Program& p, const Shrink& f) {
  require(f.x.ld >= round_up(f.adapters->k(), kTileK), f.kKind, "the input has too few columns for the adapters");
  require(f.out.ld >= f.adapters->shrunk_columns(), f.kKind, "the output has too few columns for the adapters");
  p.step().allow_adapters(f.adapters->places());
  p.add(std::make_unique<ShrinkNode>(f.x, f.out, *f.adapters));
}

}  // namespace operation
}  // namespace numaserve
