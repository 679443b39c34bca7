#include "kernels/runtime/recurrent/delta_node.h"

#include <algorithm>
#include <optional>

namespace numaserve {
DeltaArgs DeltaNode::arguments(const Run& run) const {
  return {.x = run.at<float>(x),
          .ldx = x.ld,
          .gates = run.at<float>(gates),
          .ldg = gates.ld,
          .decay = decay,
          .decay_bias = decay_bias,
          .key_heads = heads.keys,
          .value_heads = heads.values,
          .key_dim = heads.key_dim,
          .value_dim = heads.value_dim,
          .states = run.states.of_sequences(state).data() + offset,
          .state_bytes = run.states.kind(state).slot_bytes,
          .drafts = run.states.of_drafts(state).data() + draft_offset(heads),
          .slot_bytes = run.states.max_drafts() * run.states.kind(state).draft_bytes,
          .ldd = run.states.kind(state).draft_bytes / static_cast<int64_t>(sizeof(float)),
          .out = run.at<float>(out),
          .ldo = out.ld,
          .skip = skip,
          .least_step = least_step,
          .most_step = most_step};
}

// Each thread has a run of strips of each sequence, which lie one after another in memory: with strips in turn, a step
// of one token took a sixth longer. Threads with a strip more than others alternate from sequence to sequence. With too
// few strips for all threads, each thread has half a strip.
void DeltaNode::run(Run& run, int thread) const {
  const DeltaArgs args = arguments(run);
  const auto chains = static_cast<int64_t>(run.step.chains.size()), threads = int64_t{run.team.size()};
  const int64_t strips = chains * heads.values * ceil_div(heads.value_dim, kStripColumns);
  const int32_t columns = strips < 2 * threads ? kStripColumns / 2 : kStripColumns;
  const int64_t pieces = ceil_div(heads.value_dim, columns);
  std::optional<DeltaItem> own;
  const auto finish = [&](const float* ahead) {
    if (!own) return;
    own->ahead = ahead;
    (run.table.*apply)(args, *own, run.scratch<void>(thread));
  };
  for (int64_t c = 0; c < chains; ++c) {
    const Range& chain = run.step.chains[static_cast<size_t>(c)];
    const Range part = split(heads.values * pieces, threads, (thread + c) % threads);
    for (int64_t i = part.begin; i < part.end; i += own->strips) {
      const int64_t head = i / pieces, end = std::min(part.end, (head + 1) * pieces);
      const DeltaItem next{.segments = run.step.segments.data() + chain.begin,
                           .num_segments = chain.end - chain.begin,
                           .head = static_cast<int32_t>(head),
                           .column = static_cast<int32_t>(i % pieces) * columns,
                           .columns = columns,
                           .strips = static_cast<int32_t>(end - i),
                           .ahead = nullptr};
      finish(first_strip(args, next));
      own = next;
    }
  }
  finish(nullptr);
}

void KeepDraftsNode::run(Run& run, int thread) const {
  const DeltaHeads& heads = rule.heads;
  if (heads.values == 0) return;  // such a rank has no memory for draft tokens
  const int64_t keys = int64_t{heads.keys} * heads.key_dim, gates = int64_t{heads.gates} * heads.values;
  const int64_t row_bytes = run.states.kind(rule.state).draft_bytes;
  const auto size = [](int64_t count) { return count * static_cast<int64_t>(sizeof(float)); };
  for (const StateSegment& segment : run.step.segments) {
    if (segment.store >= 0) continue;
    std::byte* const slot =
        run.states.of_drafts(rule.state).data() + segment.load * run.states.max_drafts() * row_bytes;
    for (int64_t t = thread; t < segment.count; t += run.team.size()) {
      auto* const to = reinterpret_cast<float*>(slot + t * row_bytes + draft_offset(heads));
      const int64_t row = segment.row + t, rest = heads.replayed() - gates;
      run.table.copy(run.at<float>(rule.x) + row * rule.x.ld + keys, to, size(rest));
      run.table.copy(run.at<float>(rule.gates) + row * rule.gates.ld, to + rest, size(gates));
    }
  }
}

// A sequence's states are read and written; each token multiplies with them and adds.
Cost DeltaNode::cost(const Step& step) const {
  return {.bytes = 2 * heads.state_bytes() * step.totals.sequences,
          .flops = element_flops * heads.elements() * step.totals.tokens,
          .fp32 = true};
}

}  // namespace numaserve
