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
                        .eps = eps},
                       thread, run.team.size());
}

void SigmoidGateNode::run(Run& run, int thread) const {
  run.table.sigmoid_gate(
      {.x = run.at<bf16>(x), .ldx = x.ld, .gate = run.at<float>(gate), .ldg = gate.ld, .rows = rows(run), .cols = cols},
      thread, run.team.size());
}

}  // namespace numaserve
