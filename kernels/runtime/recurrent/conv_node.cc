#include "kernels/runtime/recurrent/conv_node.h"

#include "kernels/runtime/machine/memory.h"

namespace numaserve {

ConvNode::ConvNode(Place x_in, Place out_in, const Vector& weight_in, int32_t taps_in, CacheIndex state_in)
    : Node("causal_conv"),
      x(x_in),
      out(out_in),
      taps(taps_in),
      cols(static_cast<int64_t>(weight_in.size()) / taps_in),
      weight(allocate_pooled(weight_in.size() * sizeof(float))),
      state(state_in) {
  auto* const by_tap = reinterpret_cast<float*>(weight.get());
  for (int64_t column = 0; column < cols; ++column)
    for (int64_t tap = 0; tap < taps; ++tap)
      by_tap[tap * cols + column] = weight_in[static_cast<size_t>(column * taps + tap)];
}

void ConvNode::run(Run& run, int thread) const {
  std::byte* const states = run.states.of_sequences(state).data();
  const int64_t state_bytes = run.states.kind(state).slot_bytes;
  const auto at = [&](int32_t number) {
    return number < 0 ? nullptr : reinterpret_cast<float*>(states + number * state_bytes);
  };
  std::byte* const drafts = run.states.of_drafts(state).data();
  const int64_t draft_bytes = run.states.kind(state).draft_bytes;
  const auto drafts_of = [&](int32_t slot) {
    return reinterpret_cast<float*>(drafts + slot * run.states.max_drafts() * draft_bytes);
  };
  for (const StateSegment& segment : run.step.segments)
    run.table.causal_conv({.x = run.at<float>(x) + segment.row * x.ld,
                           .ldx = x.ld,
                           .count = segment.count,
                           .weight = reinterpret_cast<const float*>(weight.get()),
                           .ldw = cols,
                           .bias = bias,
                           .taps = taps,
                           .silu = silu,
                           .before = at(segment.load),
                           .after = at(segment.store),
                           .lds = cols,
                           .kept = segment.replayed > 0 ? drafts_of(segment.load) : nullptr,
                           .drafted = segment.store < 0 ? drafts_of(segment.load) : nullptr,
                           .ldd = draft_bytes / static_cast<int64_t>(sizeof(float)),
                           .replayed = segment.replayed,
                           .out = run.at<float>(out) + segment.row * out.ld,
                           .ldo = out.ld,
                           .cols = cols},
                          thread, run.team.size());
}

}  // namespace numaserve
