// The operations of layers that keep a state for each sequence, as data; see runtime/program/operations.h.
#pragma once

#include "kernels/runtime/program/operations.h"

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

void add(Program& p, const CausalConv& f);

}  // namespace numaserve::operation
