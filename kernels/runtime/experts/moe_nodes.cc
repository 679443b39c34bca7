#include "kernels/runtime/experts/moe_nodes.h"

#include <algorithm>
#include <cstring>

namespace numaserve {

void RouteNode::run(Run& run, int thread) const {
  const int threads = run.team.size();
  const Range tokens = split(rows(run), threads, thread);
  choose(run, tokens, run.at<int32_t>(places.counts) + thread * places.counts.ld);
  run.team.barrier(thread);
  if (thread > 0 && tokens.begin == tokens.end) return;
  auto* next = run.scratch<int32_t>(thread);
  find_rows(run, thread, next);
  copy_rows(run, tokens, next);
}

void RouteNode::choose(Run& run, Range tokens, int32_t* counts) const {
  if (tokens.begin == tokens.end) return;
  RouteArgs args = choice;
  args.logits = run.at<float>(logits);
  args.ldl = logits.ld;
  std::fill_n(counts, num_experts, 0);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    int32_t* route = run.at<int32_t>(places.routes) + t * places.routes.ld;
    auto* weights = reinterpret_cast<float*>(route + choice.top_k);
    run.table.route(args, t, route, weights);
    weights[choice.top_k] = shared_gate ? run.table.sigmoid(args.logits[t * args.ldl + choice.num_experts]) : 1.0f;
    for (int32_t k = 0; k < choice.top_k; ++k) {
      const int32_t expert = route[k] - first_expert;
      if (expert >= 0 && expert < num_experts) ++counts[expert];
    }
  }
}

// Each thread sums for itself, which is cheaper than waiting for one thread. The sums go through the counts row by row,
// so that they handle many experts at once.
void RouteNode::find_rows(Run& run, int thread, int32_t* next) const {
  const int threads = run.team.size();
  auto* counts = run.at<int32_t>(places.counts);
  int32_t* totals = next + num_experts;
  std::fill_n(next, 2 * num_experts, 0);
  for (int t = 0; t < threads; ++t) {
    const Range tokens = split(rows(run), threads, t);
    if (tokens.begin == tokens.end) continue;
    const int32_t* chosen = counts + t * places.counts.ld;
    for (int32_t expert = 0; expert < num_experts; ++expert) totals[expert] += chosen[expert];
    if (t < thread)
      for (int32_t expert = 0; expert < num_experts; ++expert) next[expert] += chosen[expert];
  }
  int32_t row = 0;
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    next[expert] += row;
    row += totals[expert];
  }
  if (thread == 0) list_experts(run, totals);
}

void RouteNode::list_experts(Run& run, const int32_t* totals) const {
  int32_t* firsts = run.at<int32_t>(places.counts) + run.team.size() * places.counts.ld;
  int32_t *active = firsts + places.counts.ld, *tiled = active + places.counts.ld;
  int32_t row = 0, tiled_row = 0, count = 0;
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    firsts[expert] = row;
    tiled[expert] = tiled_row;
    row += totals[expert];
    tiled_row += static_cast<int32_t>(round_up(totals[expert], kRowUnit));
    if (totals[expert] > 0) active[++count] = expert;
  }
  firsts[num_experts] = row;
  active[0] = count;
}

void RouteNode::copy_rows(Run& run, Range tokens, int32_t* next) const {
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    int32_t* route = run.at<int32_t>(places.routes) + t * places.routes.ld;
    auto* weights = reinterpret_cast<float*>(route + choice.top_k);
    for (int32_t k = 0; k < choice.top_k; ++k) {
      const int32_t expert = route[k] - first_expert;
      if (expert < 0 || expert >= num_experts) {
        route[k] = -1;
        continue;
      }
      route[k] = next[expert]++;
      copy_row(run, t, route[k], weights + k);
    }
  }
}

// A row in int8 is weighed exactly, by its scales. Weighing what gate and up make of a row would need no rounding in
// bf16 either, but the products apply the activation function to their sums.
void RouteNode::copy_row(Run& run, int64_t token, int32_t row, float* weight) const {
  const int64_t row_bytes = x.ld * item_bytes;
  const auto* from = run.at<std::byte>(x) + token * row_bytes;
  auto* to = run.at<std::byte>(sorted) + row * row_bytes;
  if (weighs_input && item_bytes == sizeof(bf16)) {
    run.table.weigh_row(reinterpret_cast<const bf16*>(from), *weight, x.ld, reinterpret_cast<bf16*>(to));
  } else {
    run.table.copy(from, to, row_bytes);
    if (weighs_input) weigh_scales(to, *weight);
  }
  if (weighs_input) *weight = 1.0f;
}

void RouteNode::weigh_scales(std::byte* row, float weight) const {
  std::byte* scales = row + quantized_depth(cols, group);
  if (group == 0) {
    float scale;
    std::memcpy(&scale, scales, sizeof(scale));
    scale *= weight;
    std::memcpy(scales, &scale, sizeof(scale));
    return;
  }
  for (int64_t i = 0; i < ceil_div(cols, group); ++i, scales += sizeof(GroupScale)) {
    GroupScale scale;
    std::memcpy(&scale, scales, sizeof(scale));
    scale.scale *= weight;
    scale.scaled_total = scale.total * scale.scale;
    std::memcpy(scales, &scale, sizeof(scale));
  }
}

ExpertsNode::ExpertsNode(std::string node_name, Place x_in, Place out_in, Place counts_in,
                         std::vector<const PackedMatrix*> experts_in, size_t counter_in)
    : Node(std::move(node_name)),
      x(x_in),
      out(out_in),
      counts(counts_in),
      experts(std::move(experts_in)),
      counter(counter_in) {
  for (const PackedMatrix* expert : experts) bytes += expert->bytes();
}

const int32_t* ExpertsNode::active(const Run& run) const {
  return run.at<const int32_t>(counts) + (run.team.size() + 1) * counts.ld;
}

bool ExpertsNode::are_tiled(const Run& run) const {
  constexpr int64_t kLeastRows = 64;  // of an expert, in the mean; see the builder, which gives `x` space for its tiles
  const int64_t held = static_cast<int64_t>(experts.size());
  return run.table.takes_tiled_rows && (active(run) - counts.ld)[held] >= kLeastRows * held;
}

// The shared expert comes last.
ExpertsNode::Part ExpertsNode::part(const Run& run, int64_t index) const {
  const int32_t* listed = active(run);
  if (index == listed[0])
    return {shared, nullptr, shared_x, shared_out, shared_widened, 0, rows(run), 0, 0, false, false};
  const int32_t expert = listed[index + 1], *firsts = listed - counts.ld;
  const PackedMatrix& weight = *experts[static_cast<size_t>(expert)];
  const float* own = bias == nullptr ? nullptr : bias + expert * weight.padded_n();
  const int64_t first = firsts[expert], tiled = listed[counts.ld + expert];
  const bool tiled_x = reads_alone && are_tiled(run), tiled_out = read_alone && are_tiled(run);
  return {&weight,
          own,
          x,
          out,
          widened,
          first,
          firsts[expert + 1] - first,
          tiled_x ? tiled : first,
          tiled_out ? tiled : first,
          tiled_x,
          tiled_out};
}

// Up to some number of rows (sixteen in bf16), a product takes as long as reading its weights. A rank without columns
// of the experts writes zeros.
ExpertsNode::PairCost ExpertsNode::pair_cost(const Part& part) {
  constexpr int64_t kReadingRows = 16;
  const PackedMatrix& weight = *part.weight;
  const int64_t reading = kReadingRows * weight.bytes() / std::max<int64_t>(weight.n_panels() / 2, 1);
  const int64_t computing = part.rows * weight.depth() * 2 * kTileN * static_cast<int64_t>(sizeof(bf16));
  return {std::max<int64_t>({reading, computing, 1}), computing > reading};
}

// While all products only read, equal bytes take equal times. From how many rows on a product takes longer depends on
// the bandwidth of a thread: eight rows in int8 where a core may read at 40 GB/s, and hundreds where 43 threads share a
// node. Threads that take items when they are free are done at the same time on either.
void ExpertsNode::run(Run& run, int thread) const {
  if (sums(run)) return multiply_and_sum(run, thread);
  // Items of a thread. Few threads share the bandwidth well, and an item that ends within an expert reads its rows
  // again.
  const int64_t most = run.team.size() > 8 ? 16 : 8;
  int64_t total = 0;
  bool computes = false;
  for (int64_t i = 0; i < num_parts(run); ++i) {
    const Part each = part(run, i);
    const PairCost cost = pair_cost(each);
    total += cost.value * (each.weight->n_panels() / 2);
    computes |= cost.computes;
    if (thread == 0) count(each);
  }
  const int64_t items = run.team.size() * (computes && run.team.size() > 1 ? most : 1);
  hand_out(run, counter, items, thread, [&](int64_t item, int64_t) {
    multiply_between(run, thread, item, {total * item / items, total * (item + 1) / items});
  });
}

void ExpertsNode::multiply_between(Run& run, int thread, int64_t item, Range costs) const {
  int64_t before = 0;
  for (int64_t i = 0; i < num_parts(run) && before < costs.end; ++i) {
    const Part each = part(run, i);
    const int64_t cost = pair_cost(each).value, pairs = each.weight->n_panels() / 2;
    const auto pair_at = [&](int64_t at) {
      return std::clamp<int64_t>(ceil_div(std::max<int64_t>(at - before, 0), cost), 0, pairs);
    };
    const Range mine{pair_at(costs.begin), pair_at(costs.end)};
    before += cost * pairs;
    if (mine.begin == mine.end) continue;
    const std::byte* next = before < costs.end ? weights_at(run, i + 1, 0) : nullptr;
    multiply(run, thread, each, mine, results_of(run, each), next, item);
  }
}

// The results of all experts together, or those of the shared one.
int64_t ExpertsNode::result_bytes(const Run& run, const Part& part) const {
  const int32_t* firsts = active(run) - counts.ld;
  const int64_t all_rows = part.weight == shared ? part.rows : firsts[experts.size()];
  return all_rows * part.out.ld * static_cast<int64_t>(activation != Activation::kNone ? sizeof(bf16) : sizeof(float));
}

const std::byte* ExpertsNode::weights_at(const Run& run, int64_t index, int64_t pair) const {
  if (index >= num_parts(run)) return nullptr;
  const PackedMatrix& weight = *part(run, index).weight;
  return weight.view().data + pair * (weight.bytes() / std::max<int64_t>(weight.n_panels() / 2, 1));
}

ExpertsNode::Results ExpertsNode::results_of(Run& run, const Part& part) const {
  const int64_t item = activation != Activation::kNone ? sizeof(bf16) : sizeof(float);
  return {run.at<std::byte>(part.out) + part.out_row * part.out.ld * item, part.out.ld};
}

void ExpertsNode::multiply(Run& run, int thread, const Part& part, Range pairs, const Results& to,
                           const std::byte* next, int64_t item) const {
  PackedWeights packed = part.weight->view();
  if (part.widened) packed.depth = round_up(part.weight->k(), kTileK);
  const bool rounded = activation != Activation::kNone;
  run.table.gemm_share({.a = run.at<std::byte>(part.x) + part.x_row * part.x.ld * item_bytes,
                        .lda = part.x.ld,
                        .b = packed,
                        .widened = part.widened,
                        .blocking = run.blocking,
                        .m = part.rows,
                        .bias = part.bias,
                        .activation = activation,
                        .accumulate = false,
                        .out_f32 = rounded ? nullptr : reinterpret_cast<float*>(to.first),
                        .out_bf16 = rounded ? reinterpret_cast<bf16*>(to.first) : nullptr,
                        .ldo = to.ld,
                        .limit = limit,
                        .result_bytes = item < 0 ? 0 : result_bytes(run, part),
                        .tiled_rows = part.tiled_x,
                        .tiled_results = part.tiled_out},
                       {{0, part.rows}, {2 * pairs.begin, 2 * pairs.end}, item, next}, run.scratch<void>(thread));
}

void ExpertsNode::count(const Part& part) const {
  done_.bytes += part.weight->bytes();
  done_.flops += 2 * part.weight->n() * part.weight->k() * part.rows;
}

Cost ExpertsNode::cost(const Step&) const {
  Cost cost = done_;
  if (!experts.empty()) cost.format = widened ? WeightFormat::kBf16 : experts.front()->format();
  return cost;
}

void CombineNode::run(Run& run, int thread) const {
  if (experts != nullptr && experts->sums(run)) return experts->move_sums(run, thread);
  run.table.combine({.y = run.at<float>(y),
                     .ldy = y.ld,
                     .shared = has_shared ? run.at<float>(shared) : nullptr,
                     .lds = shared.ld,
                     .routes = run.at<int32_t>(routes),
                     .ldr = routes.ld,
                     .top_k = top_k,
                     .out = run.at<float>(out),
                     .ldo = out.ld,
                     .tokens = rows(run),
                     .accumulate = accumulate},
                    thread, run.team.size());
}

}  // namespace numaserve
