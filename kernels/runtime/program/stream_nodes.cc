#include "kernels/runtime/program/stream_nodes.h"

#include <cstring>

namespace numaserve {

void NarrowNode::run(Run& run, int thread) const {
  const std::vector<LogitRow>& wanted = run.step.logit_rows;
  const Range mine = split(static_cast<int64_t>(wanted.size()), run.team.size(), thread);
  const auto gather = [&](const Place& from, const Place& to) {
    for (int64_t i = mine.begin; i < mine.end; ++i)
      std::memcpy(run.at<float>(to) + i * to.ld, run.at<float>(from) + wanted[static_cast<size_t>(i)].row * from.ld,
                  static_cast<size_t>(to.ld) * sizeof(float));
  };
  gather(x, out);
  if (beside && beside_out) gather(*beside, *beside_out);
}

void AddNormNode::run(Run& run, int thread) const {
  run.table.post_norm_add({.parts = nullptr,
                           .num_parts = 0,
                           .residual = run.at<float>(residual),
                           .ld = residual.ld,
                           .rows = rows(run),
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
                          .tokens = run.step.tokens().data(),
                          .table = reinterpret_cast<const bf16*>(table.data()),
                          .k_tiles = table.depth() / kTileK,
                          .num_rows = table.n(),
                          .scale = scale,
                          .out = run.at<float>(out),
                          .ldo = out.ld,
                          .rows = rows(run)},
                         thread, run.team.size());
}

void GroupNormNode::run(Run& run, int thread) const {
  for (size_t group = 0; group < weights.size(); ++group) {
    const int64_t first = static_cast<int64_t>(group) * cols;
    run.table.rms_norm({.x = run.at<float>(x) + first,
                        .ldx = x.ld,
                        .weight = weights[group],
                        .out = run.at<bf16>(out) + first,
                        .ldo = out.ld,
                        .written = cols,
                        .rows = rows(run),
                        .cols = cols,
                        .eps = eps},
                       thread, run.team.size());
  }
}

void MultiplyNode::run(Run& run, int thread) const {
  run.table.multiply({.x = x ? run.at<float>(*x) : nullptr,
                      .ldx = x ? x->ld : 0,
                      .y = run.at<float>(y),
                      .ldy = y.ld,
                      .activation = activation,
                      .out_f32 = rounded ? nullptr : run.at<float>(out),
                      .out_bf16 = rounded ? run.at<bf16>(out) : nullptr,
                      .ldo = out.ld,
                      .rows = rows(run),
                      .cols = cols},
                     thread, run.team.size());
}

}  // namespace numaserve
