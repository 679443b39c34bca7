// The nodes of layers that keep a state for each sequence.
#pragma once

#include <memory>

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// `weight` is [columns, taps], as checkpoints have it; the node keeps a copy by taps.
struct ConvNode : Node {
  ConvNode(Place x_in, Place out_in, const Vector& weight_in, int32_t taps_in, CacheIndex state_in);
  void run(Run& run, int thread) const override;
  Place x, out;
  int32_t taps;
  int64_t cols;
  std::shared_ptr<std::byte> weight;  // fp32 [taps, cols], in huge pages: each tap of a column lies in another page
  CacheIndex state;
  const float* bias = nullptr;
  bool silu = false;
};

}  // namespace numaserve
