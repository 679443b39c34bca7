#include "kernels/runtime/program/stream_nodes.h"

namespace numaserve {

void AddNormNode::run(Run& run, int thread) const {
  run.table.post_norm_add({.parts = nullptr,
                           .num_parts = 0,
                           .residual = run.at<float>(residual),
                           .ld = residual.ld,
                           .rows = run.step.num_tokens(),
                           .cols = static_cast<int64_t>(weight.size()),
                           .bias = nullptr,
                           .post_norm = weight.data(),
                           .sum = run.at<float>(x),
                           .eps = eps,
                           .assign = false,
                           .scale = scale},
                          thread, run.team.size());
}

void LayerInputsNode::run(Run& run, int thread) const {
  const auto width = static_cast<int64_t>(weight.size());
  run.table.layer_inputs({.x = run.at<float>(x),
                          .ldx = x.ld,
                          .groups = table.k() / width,
                          .width = width,
                          .weight = weight.data(),
                          .eps = eps,
                          .tokens = run.step.tokens.data(),
                          .table = reinterpret_cast<const bf16*>(table.data()),
                          .k_tiles = table.depth() / kTileK,
                          .num_rows = table.n(),
                          .scale = scale,
                          .out = run.at<float>(out),
                          .ldo = out.ld,
                          .rows = run.step.num_tokens()},
                         thread, run.team.size());
}

void GatedProductNode::run(Run& run, int thread) const {
  run.table.gated_product({.gate = run.at<float>(gate),
                           .ldg = gate.ld,
                           .x = run.at<float>(x),
                           .ldx = x.ld,
                           .activation = activation,
                           .out = run.at<bf16>(out),
                           .ldo = out.ld,
                           .rows = run.step.num_tokens(),
                           .cols = cols},
                          thread, run.team.size());
}

}  // namespace numaserve
