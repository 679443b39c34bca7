// The nodes of gates: norms of heads times silu(gate) or sigmoid(gate), decays of dimensions of keys, and products with
// sigmoid(gate).
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

struct AttentionNode;

struct GatedNormNode : Node {
  GatedNormNode(Place x_in, Place gate_in, Place out_in, const float* weight_in, int64_t heads_in, int64_t dim_in,
                float eps_in)
      : Node("gated_head_norm"),
        x(x_in),
        gate(gate_in),
        out(out_in),
        weight(weight_in),
        heads(heads_in),
        dim(dim_in),
        eps(eps_in) {}
  void run(Run& run, int thread) const override;
  Place x, gate, out;
  const float* weight;
  int64_t heads, dim;
  float eps;
  bool silu = true;         // of the gate; otherwise sigmoid
  bool read_alone = false;  // by the next node, a product in bf16; see `are_tiled`
};

struct KeyDecaysNode : Node {
  KeyDecaysNode(Place b_in, Place x_in, Place out_in, const float* decay_in, const float* bias_in, int64_t heads_in,
                int64_t key_dim_in)
      : Node("key_decays"),
        b(b_in),
        x(x_in),
        out(out_in),
        decay(decay_in),
        bias(bias_in),
        heads(heads_in),
        key_dim(key_dim_in) {}
  void run(Run& run, int thread) const override;
  Place b, x, out;
  const float *decay, *bias;
  int64_t heads, key_dim;
};

struct SigmoidGateNode : Node {
  SigmoidGateNode(Place x_in, Place gate_in, int64_t cols_in)
      : Node("sigmoid_gate"), x(x_in), gate(gate_in), cols(cols_in) {}
  void run(Run& run, int thread) const override;
  Place x, gate;
  int64_t cols;
  AttentionNode* attention = nullptr;  // the node before, if it makes `x`
  bool read_alone = false;             // by the next node, a product in bf16; see `are_tiled`
};

}  // namespace numaserve
