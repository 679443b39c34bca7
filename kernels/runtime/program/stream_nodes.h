// Nodes around the residual stream: norms that are added to it, and what layers read besides it.
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// Gathers the rows of logits, of the residual stream and of what layers read besides it. The nodes after it work on
// these rows alone.
struct NarrowNode : Node {
  NarrowNode(Place x_in, Place out_in) : Node("narrow"), x(x_in), out(out_in) {}
  void run(Run& run, int thread) const override;
  Place x, out;
  std::optional<Place> beside, beside_out;
};

// residual = (residual + norm(x)) * scale, where x is whole on every rank.
struct AddNormNode : Node {
  AddNormNode(Place x_in, Place residual_in, const Vector& weight_in, float eps_in, float scale_in)
      : Node("add_norm"), x(x_in), residual(residual_in), weight(weight_in), eps(eps_in), scale(scale_in) {}
  void run(Run& run, int thread) const override;
  Place x, residual;
  const Vector& weight;
  float eps, scale;
};

// The inputs of the layers whose columns a rank has; see LayerInputsArgs.
struct LayerInputsNode : Node {
  LayerInputsNode(Place x_in, Place out_in, const Vector& weight_in, float eps_in, const PackedMatrix& table_in,
                  float scale_in)
      : Node("layer_inputs"), x(x_in), out(out_in), weight(weight_in), eps(eps_in), table(table_in), scale(scale_in) {}
  void run(Run& run, int thread) const override;
  Place x, out;
  const Vector& weight;
  float eps;
  const PackedMatrix& table;
  float scale;
};

// out = activation(gate) * x.
struct GatedProductNode : Node {
  GatedProductNode(Place gate_in, Place x_in, Place out_in, Activation activation_in, int64_t cols_in)
      : Node("gated_product"), gate(gate_in), x(x_in), out(out_in), activation(activation_in), cols(cols_in) {}
  void run(Run& run, int thread) const override;
  Place gate, x, out;
  Activation activation;
  int64_t cols;
};

}  // namespace numaserve
