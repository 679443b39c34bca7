// The operations of layers that keep a state for each sequence, as data; see runtime/program/operations.h.
#pragma once

#include "kernels/runtime/program/operations.h"
#include "kernels/runtime/recurrent/delta_node.h"

namespace numaserve::operation {

struct CausalConv {
  static constexpr const char* kKind = "causal_conv";
  Place x, out;
  const PaddedVector* weight;
  std::optional<const PaddedVector*> bias;
  int32_t taps;
  Activation activation;
  CacheIndex state;
  void visit(auto&& field) {
    field("x", x), field("out", out), field("weight", weight), field("bias", bias), field("taps", taps);
    field("activation", activation), field("state", state);
  }
};

struct GatedDelta {
  static constexpr const char* kKind = "gated_delta";
  Place x, gates, out;
  const PaddedVector *decay, *decay_bias;
  DeltaHeads heads;
  CacheIndex state;
  int64_t offset;
  void visit(auto&& field) {
    field("x", x), field("gates", gates), field("out", out), field("decay", decay), field("decay_bias", decay_bias);
    field("heads", heads), field("state", state), field("offset", offset);
  }
};

struct StateSpace {
  static constexpr const char* kKind = "state_space";
  Place x, gates, out;
  const PaddedVector *decay, *decay_bias, *skip;
  float least_step, most_step;
  DeltaHeads heads;
  CacheIndex state;
  int64_t offset;
  void visit(auto&& field) {
    field("x", x), field("gates", gates), field("out", out), field("decay", decay), field("decay_bias", decay_bias);
    field("skip", skip), field("least_step", least_step), field("most_step", most_step), field("heads", heads);
    field("state", state), field("offset", offset);
  }
};

struct KeyDecays {
  static constexpr const char* kKind = "key_decays";
  Place b, x, out;
  const PaddedVector *decay, *bias;
  void visit(auto&& field) {
    field("b", b), field("x", x), field("out", out), field("decay", decay), field("bias", bias);
  }
};

struct KeyDelta {
  static constexpr const char* kKind = "key_delta";
  Place x, gates, out;
  DeltaHeads heads;
  CacheIndex state;
  int64_t offset;
  void visit(auto&& field) {
    field("x", x), field("gates", gates), field("out", out), field("heads", heads), field("state", state);
    field("offset", offset);
  }
};

struct GatedHeadNorm {
  static constexpr const char* kKind = "gated_head_norm";
  Place x, gate, out;
  const PaddedVector* weight;
  float eps;
  int64_t heads;
  bool silu;
  void visit(auto&& field) {
    field("x", x), field("gate", gate), field("out", out), field("weight", weight), field("eps", eps);
    field("heads", heads), field("silu", silu);
  }
};

struct SigmoidGate {
  static constexpr const char* kKind = "sigmoid_gate";
  Place x, gate;
  int64_t cols;
  void visit(auto&& field) { field("x", x), field("gate", gate), field("cols", cols); }
};

void add(Program& p, const CausalConv& f);
void add(Program& p, const GatedDelta& f);
void add(Program& p, const StateSpace& f);
void add(Program& p, const KeyDecays& f);
void add(Program& p, const KeyDelta& f);
void add(Program& p, const GatedHeadNorm& f);
void add(Program& p, const SigmoidGate& f);

}  // namespace numaserve::operation
