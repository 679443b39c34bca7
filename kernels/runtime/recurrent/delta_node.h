// The node of the gated delta rule, and of state spaces, which differ in the function that applies tokens.
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// The heads of a rank. Consecutive value heads share a key head.
struct DeltaHeads {
  int32_t keys, values, key_dim, value_dim;
  int32_t gates = 2;  // of each value head
  // Matrices, and their scales.
  int64_t elements() const { return int64_t{values} * key_dim * value_dim; }
  int64_t state_bytes() const {
    return (elements() + values * ceil_div(value_dim, kScaleColumns)) * static_cast<int64_t>(sizeof(float));
  }
  int64_t convolved() const { return 2 * int64_t{keys} * key_dim + int64_t{values} * value_dim; }
  // The numbers that a draft token needs to be applied again.
  int64_t replayed() const { return int64_t{keys} * key_dim + int64_t{values} * (value_dim + gates); }
};

// Returns bytes of a draft token before its keys, values and gates: those of the convolution's inputs.
inline int64_t draft_offset(const DeltaHeads& heads) {
  return round_up(heads.convolved() * static_cast<int64_t>(sizeof(float)), kLineBytes);
}

using DeltaFunction = void (*KernelTable::*)(const DeltaArgs&, DeltaItem, void* scratch);

// `offset`: bytes of a slot's state before the matrices.
struct DeltaNode : Node {
  DeltaNode(Place x_in, Place gates_in, Place out_in, const DeltaHeads& heads_in, CacheIndex state_in,
            int64_t offset_in, std::string name_in = "gated_delta", DeltaFunction apply_in = &KernelTable::gated_delta)
      : Node(std::move(name_in)),
        apply(apply_in),
        x(x_in),
        gates(gates_in),
        out(out_in),
        heads(heads_in),
        state(state_in),
        offset(offset_in) {}
  void run(Run& run, int thread) const override;
  Cost cost(const Step& step) const override;
  DeltaFunction apply;
  int64_t element_flops = 6;  // of a token
  Place x, gates, out;
  DeltaHeads heads;
  CacheIndex state;
  int64_t offset;
  const float *decay = nullptr, *decay_bias = nullptr;
  const float* skip = nullptr;  // of state spaces, as the range of steps
  float least_step = 0.0f, most_step = 0.0f;

 private:
  DeltaArgs arguments(const Run& run) const;
};

// Keeps the draft tokens of each sequence. By itself after the rule, whose threads may still apply the kept ones
// before.
struct KeepDraftsNode : Node {
  explicit KeepDraftsNode(const DeltaNode& rule_in) : Node(rule_in.name), rule(rule_in) {}
  void run(Run& run, int thread) const override;
  bool joins_next(const Run& run) const override { return !run.step.has_drafts; }
  Cost cost(const Step&) const override { return {.fp32 = true}; }
  const DeltaNode& rule;
};

}  // namespace numaserve
