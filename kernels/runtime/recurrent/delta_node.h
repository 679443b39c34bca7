// The node of the gated delta rule.
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// The heads of a rank. Consecutive value heads share a key head.
struct DeltaHeads {
  int32_t keys, values, key_dim, value_dim;
  // Matrices, and their scales.
  int64_t elements() const { return int64_t{values} * key_dim * value_dim; }
  int64_t state_bytes() const {
    return (elements() + values * ceil_div(value_dim, kScaleColumns)) * static_cast<int64_t>(sizeof(float));
  }
  int64_t convolved() const { return 2 * int64_t{keys} * key_dim + int64_t{values} * value_dim; }
};

// `offset`: bytes of a slot's state before the matrices.
struct DeltaNode : Node {
  DeltaNode(Place x_in, Place gates_in, Place out_in, const DeltaHeads& heads_in, CacheIndex state_in,
            int64_t offset_in)
      : Node("gated_delta"),
        x(x_in),
        gates(gates_in),
        out(out_in),
        heads(heads_in),
        state(state_in),
        offset(offset_in) {}
  void run(Run& run, int thread) const override;
  Cost cost(const Step& step) const override;
  Place x, gates, out;
  DeltaHeads heads;
  CacheIndex state;
  int64_t offset;
  const float *decay = nullptr, *decay_bias = nullptr;

 private:
  DeltaArgs arguments(const Run& run) const;
};

}  // namespace numaserve
