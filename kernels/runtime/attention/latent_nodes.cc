#include "kernels/runtime/attention/latent_nodes.h"

#include <algorithm>
#include <utility>

namespace numaserve {
namespace {

// Returns the number of parts of the rows for which the busiest thread has the smallest `pairs` times `rows`.
int64_t row_parts(int64_t rows, int64_t pairs, int64_t threads) {
  const int64_t row_units = ceil_div(rows, kPad);
  int64_t best = 1, least = INT64_MAX;
  for (int64_t parts = 1; parts <= std::min(row_units, threads); ++parts) {
    const int64_t cost = ceil_div(pairs * parts, threads) * ceil_div(row_units, parts);
    if (cost >= least) continue;
    least = cost;
    best = parts;
  }
  return best;
}

}  // namespace

void LatentStoreNode::run(Run& run, int thread) const {
  const std::vector<PageRun>& runs = run.step.batch(narrow).tables.front().runs;
  if (heads.q_heads == 0) return;  // such a rank has no cache either
  run.table.latent_store({.q = run.at<float>(q),
                          .ldq = q.ld,
                          .kv = run.at<float>(kv),
                          .ldkv = kv.ld,
                          .heads = heads.q_heads,
                          .nope_dim = nope_dim,
                          .rope_dim = heads.head_dim - heads.value_dim,
                          .value_dim = heads.value_dim,
                          .cos = cos,
                          .sin = sin,
                          .q_scale = q_scale,
                          .norm = norm,
                          .eps = eps,
                          .nope = run.at<bf16>(nope),
                          .ld_nope = nope.ld,
                          .query = run.at<bf16>(query),
                          .kv_layer = layer,
                          .runs = runs.data(),
                          .num_runs = static_cast<int64_t>(runs.size())},
                         thread, run.team.size());
}

HeadLinearNode::HeadLinearNode(std::string node_name, Place x_in, int64_t x_stride_in, const PackedMatrix& weight_in,
                               int32_t num_heads_in, Place out_in, int64_t out_stride_in)
    : Node(std::move(node_name)),
      x(x_in),
      x_stride(x_stride_in),
      weight(weight_in),
      num_heads(num_heads_in),
      out(out_in),
      out_stride(out_stride_in) {
  bytes = weight.bytes();
}

// All threads have the same number of pairs of panels, give or take one, wherever heads begin. With one token all
// threads then stream the same number of bytes.
void HeadLinearNode::run(Run& run, int thread) const {
  if (num_heads == 0) return;
  const int64_t rows = this->rows(run), per_head = weight.n_panels() / 2 / num_heads;
  PackedWeights packed = weight.view();
  if (widened) packed.depth = round_up(weight.k(), kTileK);
  const int64_t item_bytes = in_int8() ? 1 : static_cast<int64_t>(sizeof(bf16));
  const int64_t pairs = num_heads * per_head, parts = row_parts(rows, pairs, run.team.size());
  const Range mine = split(pairs * parts, run.team.size(), thread);
  const bool tiled = read_alone && are_tiled(run, narrow);
  for (int64_t unit = mine.begin; unit < mine.end;) {
    const int64_t pair = unit % pairs, head = pair / per_head;
    const int64_t count = std::min(mine.end - unit, per_head - pair % per_head);
    // The loop nest counts output columns from the first panel on.
    const int64_t before = head * (out_stride - per_head * 2 * kTileN);
    run.table.gemm_share({.a = run.at<std::byte>(x) + head * x_stride * item_bytes,
                          .lda = x.ld,
                          .b = packed,
                          .widened = widened,
                          .blocking = run.blocking,
                          .m = rows,
                          .bias = nullptr,
                          .activation = Activation::kNone,
                          .accumulate = false,
                          .out_f32 = nullptr,
                          .out_bf16 = run.at<bf16>(out) + row_index<bf16>(tiled, 0, before, out.ld),
                          .ldo = out.ld,
                          .tiled_results = tiled},
                         {split(rows, parts, unit / pairs, kPad), {2 * pair, 2 * (pair + count)}},
                         run.scratch<void>(thread));
    unit += count;
  }
}

Cost HeadLinearNode::cost(const Step& step) const {
  return {.bytes = bytes * step.totals.steps,
          .flops = 2 * weight.n() * weight.k() * step.totals.tokens,
          .format = widened ? WeightFormat::kBf16 : weight.format()};
}

}  // namespace numaserve
