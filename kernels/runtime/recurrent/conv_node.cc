#include "kernels/runtime/recurrent/conv_node.h"

namespace numaserve {

ConvNode::ConvNode(Place x_in, Place out_in, const Vector& weight_in, int32_t taps_in, CacheIndex state_in)
    : Node("causal_conv"),
      x(x_in),
      out(out_in),
      taps(taps_in),
      cols(static_cast<int64_t>(weight_in.size()) / taps_in),
      weight(weight_in.size()),
      state(state_in) {
  for (int64_t column = 0; column < cols; ++column)
    for (int64_t tap = 0; tap < taps; ++tap)
      weight[static_cast<size_t>(tap * cols + column)] = weight_in[static_cast<size_t>(column * taps + tap)];
}

void ConvNode::run(Run& run, int thread) const {
  std::byte* const states = run.states.of_slots(state).data();
  const int64_t state_bytes = run.states.kind(state).slot_bytes;
  int64_t row = 0;
  for (const SequenceInput& sequence : run.step.plan) {
    run.table.causal_conv({.x = run.at<float>(x) + row * x.ld,
                           .ldx = x.ld,
                           .count = sequence.count,
                           .weight = weight.data(),
                           .ldw = cols,
                           .bias = bias,
                           .taps = taps,
                           .silu = silu,
                           .begins = sequence.start == 0,
                           .state = reinterpret_cast<float*>(states + sequence.slot * state_bytes),
                           .lds = cols,
                           .out = run.at<float>(out) + row * out.ld,
                           .ldo = out.ld,
                           .cols = cols},
                          thread, run.team.size());
    row += sequence.count;
  }
}

}  // namespace numaserve
