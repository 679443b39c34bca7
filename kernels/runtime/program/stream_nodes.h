// Nodes around the residual stream: norms that are added to it, what layers read besides it, and products of rows.
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

// The norm of each group of `cols` columns, without a barrier between them.
struct GroupNormNode : Node {
  GroupNormNode(Place x_in, std::vector<const float*> weights_in, int64_t cols_in, Place out_in, float eps_in)
      : Node("group_norm"), x(x_in), weights(std::move(weights_in)), cols(cols_in), out(out_in), eps(eps_in) {}
  void run(Run& run, int thread) const override;
  Place x;
  std::vector<const float*> weights;
  int64_t cols;
  Place out;
  float eps;
};

// out = x * activation(y), or without x the activation alone, in bf16 if `rounded`.
struct MultiplyNode : Node {
  MultiplyNode(std::optional<Place> x_in, Place y_in, Place out_in, Activation activation_in, int64_t cols_in,
               bool rounded_in)
      : Node("multiply"),
        x(x_in),
        y(y_in),
        out(out_in),
        activation(activation_in),
        cols(cols_in),
        rounded(rounded_in) {}
  void run(Run& run, int thread) const override;
  std::optional<Place> x;
  Place y, out;
  Activation activation;
  int64_t cols;
  bool rounded;
};

}  // namespace numaserve
