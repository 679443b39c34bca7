#include "kernels/runtime/recurrent/gate_nodes.h"

namespace numaserve {

void GatedNormNode::run(Run& run, int thread) const {
  run.table.gated_norm({.x = run.at<float>(x),
                        .ldx = x.ld,
                        .gate = run.at<float>(gate),
                        .ldg = gate.ld,
                        .weight = weight,
                        .out = run.at<bf16>(out),
                        .ldo = out.ld,
                        .rows = rows(run),
                        .heads = heads,
                        .dim = dim,
                        .eps = eps,
                        .silu = silu,
                        .tiled = read_alone && are_tiled(run, narrow)},
                       thread, run.team.size());
}

void KeyDecaysNode::run(Run& run, int thread) const {
  run.table.key_decays({.b = run.at<float>(b),
                        .ldb = b.ld,
                        .x = run.at<float>(x),
                        .ldx = x.ld,
                        .decay = decay,
                        .bias = bias,
                        .out = run.at<float>(out),
                        .ldo = out.ld,
                        .rows = run.step.num_tokens(),
                        .heads = heads,
                        .key_dim = key_dim},
                       thread, run.team.size());
}

void SigmoidGateNode::run(Run& run, int thread) const {
  run.table.sigmoid_gate({.x = run.at<bf16>(x),
                          .ldx = x.ld,
                          .gate = run.at<float>(gate),
                          .ldg = gate.ld,
                          .rows = rows(run),
                          .cols = cols,
                          .tiled = read_alone && are_tiled(run, narrow)},
                         thread, run.team.size());
}

}  // namespace numaserve
