// Products whose results are summed over the ranks meanwhile. If all threads multiplied, met, and then summed, the link
// between nodes would be idle first, and the cores later. Here each lane is a stream of its own over all ranks. It has
// the same rectangle of the product on every rank, cut into pieces of some columns, and goes through them alone:
//
//   multiply 0, arrive 0 | sum 0, arrive 1
//   multiply 1, arrive 2 | wait 1, fetch 0 | wait 2, sum 1, arrive 3
//   multiply 2, arrive 4 | wait 3, fetch 1 | wait 4, sum 2, arrive 5
//   ...                  | fetch the last one
//
// where `sum i` adds up this rank's rows of piece i over all ranks' parts, into its own part, and `fetch i` adds the
// sums of all ranks to the residual stream. No team barrier lies in between, and no counter but that of the lane:
//
// - A lane has the same pieces in the same order on all ranks. They depend on rows, columns and lanes, which ranks have
//   in common; never on a rank's threads, its k or its caches. A thread beyond the lanes has none.
// - Waits end (numaserve_ring.h): the order is the same on all ranks, and each wait is for an earlier phase of it.
// - Piece i of a rank's part is written by its lane alone, before phase 2i. Then each row is read, and in its own part
//   written, by the one rank that sums it, before phase 2i + 1. From then on it is read only.
// - The lane alone adds to its rectangle of the residual stream, or writes its rectangle of `sum`. What a product reads
//   is never memory that the sum writes (`Joining` in workers/program/ops/base.py).
// - Each sum adds the ranks' parts in rank order and each product sums along k as ever: the bits are the same as with
//   scatter_gather.
//
// When a rank dies at any point, its lanes stop at some phase. The same lanes of the others wait for the next one,
// until the abort or the deadline, and end their walk there; the ring is then aborted for all.
//
// The first piece of a lane has one to kPiecePairs pairs, by the lane's number. Otherwise all lanes would multiply at
// the same time and then sum at the same time; now about as many are at any point of their pieces. The alternative of
// two groups of lanes, where one sums first, leaves the link or the cores idle unless both take equally long.
#include <algorithm>

#include "kernels/include/shares.h"
#include "kernels/runtime/exchange/reduce_node.h"

namespace numaserve {
namespace {

// Calls `use` for each piece of a lane's share of a product.
template <class Use>
void for_pieces(const GemmArgs& g, int lane, int lanes, Use&& use) {
  int64_t most = 2 * (1 + lane % kPiecePairs);
  for_share(g, kRowBlock, lane, lanes, [&](const GemmShare& share) {
    for (int64_t panel = share.panels.begin; panel < share.panels.end; most = 2 * kPiecePairs) {
      const int64_t end = std::min(panel + most, share.panels.end);
      use(GemmShare{share.rows, {panel, end}});
      panel = end;
    }
  });
}

}  // namespace

void ReduceNode::multiply_and_sum(Run& run, int lane) const {
  const GemmArgs args = product->arguments(run);
  const Parts parts = run.parts(partial);
  const ReduceArgs own = own_sums(run, parts.data());
  const int world = run.world(), rank = run.ring->rank();
  const auto fetch = [&](const GemmShare& piece) {
    for (int i = 0; i < world; ++i) {  // each rank begins with another one, so that they share the links
      const int from = (rank + i) % world;
      add_rows(run, arguments(run, &parts[from], 1), piece, from);
    }
  };
  int phase = 0;
  GemmShare before{};
  for_pieces(args, lane, run.lanes(), [&](const GemmShare& piece) {
    if (run.failed()) return;
    const int64_t begin = lane == 0 ? now_ns() : 0;
    enter(run, *product, lane);
    run.table.gemm_share(args, piece, run.scratch<void>(lane));
    enter(run, *this, lane);
    if (lane == 0) run.joined_ns += now_ns() - begin;
    run.ring->arrive(lane, run.collective(partial), phase);
    if (phase > 0 && wait_for_ranks(run, partial, lane, phase - 1)) fetch(before);
    if (!wait_for_ranks(run, partial, lane, phase)) return;
    add_rows(run, own, piece, rank);
    run.ring->arrive(lane, run.collective(partial), phase + 1);
    phase += 2;
    before = piece;
  });
  if (phase > 0 && wait_for_ranks(run, partial, lane, phase - 1)) fetch(before);
}

void ReduceNode::add_rows(const Run& run, const ReduceArgs& args, const GemmShare& piece, int rank) const {
  const Range rows = split(piece.rows.end - piece.rows.begin, run.world(), rank);
  const Range columns{piece.panels.begin * kTileN, piece.panels.end * kTileN};
  for (int64_t row = piece.rows.begin + rows.begin; row < piece.rows.begin + rows.end; ++row)
    run.table.reduce_add(args, {row * partial.ld + columns.begin, row * partial.ld + columns.end});
}

}  // namespace numaserve
