#include "kernels/runtime/exchange/reduce_node.h"

namespace numaserve {

// Whether each rank sums a share, and the others fetch it.
bool ReduceNode::is_shared(const Run& run) const {
  return run.world() > 2 && rows(run) * partial.ld * static_cast<int64_t>(sizeof(float)) > kOneShotBytes;
}

bool ReduceNode::overlaps(const Run& run) const {
  return product != nullptr && rows(run) >= kOverlappedRows && is_shared(run);
}

void ReduceNode::run(Run& run, int thread) const {
  if (overlaps(run)) {
    if (thread < run.lanes()) multiply_and_sum(run, thread);
  } else if (meet(run, partial, thread)) {
    if (is_shared(run))
      scatter_gather(run, thread);
    else
      one_shot(run, thread);
  }
  leave(run, partial, thread);
  if (post_norm == nullptr) return;
  run.team.barrier(thread);
  run.table.post_norm_add(arguments(run, nullptr, 0), thread, run.team.size());
}

ReduceArgs ReduceNode::arguments(const Run& run, const float* const* parts, int num_parts) const {
  return {.parts = parts,
          .num_parts = num_parts,
          .residual = run.at<float>(residual),
          .ld = residual.ld,
          .rows = rows(run),
          .cols = cols,
          .bias = bias,
          .post_norm = post_norm,
          .sum = run.at<float>(sum),
          .eps = eps,
          .assign = assign,
          .scale = scale};
}

ReduceArgs ReduceNode::own_sums(const Run& run, const float* const* parts) const {
  return {.parts = parts,
          .num_parts = run.world(),
          .residual = run.at<float>(partial),
          .ld = partial.ld,
          .rows = rows(run),
          .cols = cols,
          .bias = nullptr,
          .post_norm = nullptr,
          .sum = nullptr,
          .eps = 0.0f,
          .assign = true};
}

// The threads of the ring's lanes take equal parts of the values, cache line by cache line: with whole rows, a step of
// few rows would leave some without any.
void ReduceNode::one_shot(Run& run, int thread) const {
  const Parts parts = run.parts(partial);
  const int64_t values = rows(run) * partial.ld;
  run.table.reduce_add(arguments(run, parts.data(), run.world()), split(values, run.lanes(), thread, kPad));
}

// A lane sums and fetches the same values of every rank's share, so it meets only the same lane of the other ranks.
void ReduceNode::scatter_gather(Run& run, int thread) const {
  const auto share = [&](int rank) {
    const Range values = split(rows(run) * partial.ld, run.world(), rank, kPad);
    const Range mine = split(values.end - values.begin, run.lanes(), thread, kPad);
    return Range{values.begin + mine.begin, values.begin + mine.end};
  };
  const Parts parts = run.parts(partial);
  run.table.reduce_add(own_sums(run, parts.data()), share(run.ring->rank()));
  if (!meet(run, partial, thread, 1)) return;
  for (int rank = 0; rank < run.world(); ++rank) run.table.reduce_add(arguments(run, &parts[rank], 1), share(rank));
}

}  // namespace numaserve
