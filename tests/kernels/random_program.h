// A small random transformer as one Program per rank, built from C++ nodes, for tests that play ranks as threads: what
// workers/layers/decoder.py does for a real model.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/runtime/experts/moe_nodes.h"
#include "kernels/runtime/program/image_nodes.h"
#include "kernels/runtime/program/stream_nodes.h"
#include "tests/kernels/random_attention.h"

namespace numaserve::testing {

class RankProgram : public AttentionNodes {
 public:
  RankProgram(const Model& model, int rank, ring::Ring* ring) : AttentionNodes(model, rank, ring) { build(); }

 private:
  Place mixed(Place x, int64_t layer) {
    if (shape_.delta_keys > 0 && layer % 2 == 0) return recurrent(x, layer);
    return shape_.latent() ? latent_attention(x, layer) : attention(x, layer);
  }

  int64_t inner_columns() const { return round_up(inter_.end - inter_.begin, kTileK); }
  PackedMatrix& gate_up_matrix(WeightFormat format) {
    PackedMatrix& weight = matrix(2 * inner_columns(), shape_.hidden, format);
    for (int64_t half = 0; half < 2; ++half)
      pack(weight, shape_.intermediate, shape_.hidden, {inter_}, 0, {0, 2, half});
    return weight;
  }
  PackedMatrix& down_matrix(WeightFormat format) {
    PackedMatrix& weight = matrix(shape_.hidden, inter_.end - inter_.begin, format);
    pack(weight, shape_.hidden, shape_.intermediate, {{0, shape_.hidden}}, inter_.begin, {0, 1, 0});
    return weight;
  }

  void multiply(const char* name, std::array<Place, 2> from, const std::vector<const PackedMatrix*>& experts,
                const PackedMatrix& shared, std::array<Place, 2> to, Place counts, Activation activation) {
    auto node = std::make_unique<ExpertsNode>(name, from[0], to[0], counts, experts, program_.next_counter());
    node->shared = &shared;
    node->shared_x = from[1];
    node->shared_out = to[1];
    node->item_bytes = takes_int8(model_.format) ? 1 : 2;
    node->activation = activation;
    program_.add(std::move(node));
  }

  Place mixture(Place x) {
    constexpr int32_t kTopK = 3;
    PackedMatrix& router = matrix(shape_.experts + 1, shape_.hidden, WeightFormat::kBf16);
    pack(router, shape_.experts + 1, shape_.hidden, {{0, shape_.experts + 1}}, 0, {0, 1, 0});
    std::vector<const PackedMatrix*> gate_up, down;
    for (int32_t i = 0; i < shape_.experts; ++i) {
      gate_up.push_back(&gate_up_matrix(model_.format));
      down.push_back(&down_matrix(model_.format));
    }
    PackedMatrix &shared_gate_up = gate_up_matrix(model_.shared_format),
                 &shared_down = down_matrix(model_.shared_format);
    const Place logits = rows(router.n(), sizeof(float));
    product("moe_router", x, router, logits);

    // Tiles of the last expert's rows may end after them.
    const int64_t routed = model_.limits.max_step_tokens * kTopK + kTileN - 1,
                  item_bytes = takes_int8(model_.format) ? 1 : 2;
    const Place token = operand(x, *gate_up.front()), sorted = room(routed, token.ld, item_bytes);
    const MoePlaces places{rows(2 * kTopK + 1, sizeof(int32_t)),
                           room(team_.size() + 3, shape_.experts + 1, sizeof(int32_t))};
    auto route = std::make_unique<RouteNode>(logits, token, sorted, places,
                                             RouteArgs{.logits = nullptr,
                                                       .ldl = 0,
                                                       .num_experts = shape_.experts,
                                                       .top_k = kTopK,
                                                       .scoring = Scoring::kSoftmax,
                                                       .renormalize = true,
                                                       .scale = 1.0f,
                                                       .correction = nullptr,
                                                       .num_groups = 1,
                                                       .top_groups = 1,
                                                       .group_score = GroupScore::kMax});
    route->item_bytes = item_bytes;
    route->num_experts = shape_.experts;
    route->shared_gate = true;
    route->weighs_input = !shape_.pools;
    route->cols = shape_.hidden;
    route->group = gate_up.front()->group();
    program_.add(std::move(route));

    const std::array<Place, 2> middle{room(routed, inner_columns(), sizeof(bf16)), rows(inner_columns(), sizeof(bf16))};
    multiply("moe_gate_up", {sorted, operand(x, shared_gate_up)}, gate_up, shared_gate_up, middle, places.counts,
             Activation::kSilu);
    const std::array<Place, 2> y{room(routed, shape_.hidden, sizeof(float)), rows(shape_.hidden, sizeof(float))};
    multiply("moe_down", {operand(middle[0], *down.front(), kTopK), operand(middle[1], shared_down)}, down, shared_down,
             y, places.counts, Activation::kNone);
    const Place part = partial();
    auto combine = std::make_unique<CombineNode>(y[0], places.routes, part, kTopK);
    combine->shared = y[1];
    combine->has_shared = true;
    ExpertsNode& results = *program_.last<ExpertsNode>();
    // Several threads are compared with one: this one keeps the results of its experts, the others sum them at once.
    if (team_.size() > 1) results.kept_bytes = 0;
    join(results, *combine);
    program_.add(std::move(combine));
    return part;
  }

  Place mlp(Place x, int64_t layer) {
    if (shape_.experts > 0 && layer % 2 == 1) return mixture(x);
    PackedMatrix& gate_up = gate_up_matrix(model_.format);
    const Place middle = rows(inner_columns(), sizeof(bf16));
    joins_before_ = true;
    linear("gate_up", x, gate_up, middle, shape_.extras ? Activation::kGeluTanh : Activation::kSilu);
    joins_before_ = false;
    PackedMatrix& down = down_matrix(model_.format);
    const Place part = partial();
    linear("linear_partial", middle, down, part);
    return part;
  }

  // Rows of images in place of the embeddings that a step names.
  void place_features(Place residual) {
    const Place pool = room(shape_.features, shape_.hidden, sizeof(bf16));
    std::ranges::copy(random_bf16(shape_.features * pool.ld, ++tensors_, 3.0f),
                      reinterpret_cast<bf16*>(program_.arena().data() + pool.offset));
    program_.step().allow_placing(shape_.features);
    program_.add(std::make_unique<PlaceRowsNode>(residual, pool, shape_.hidden, /*add=*/tensors_ % 2 == 0));
  }

  void pool(Place residual) {
    const Place out = room(model_.limits.max_slots, shape_.hidden, sizeof(float));
    const float* const weight = vector(shape_.hidden, 1.0f).data();
    program_.add(std::make_unique<PoolNode>(residual, Pooling::kLast, weight, shape_.hidden, out, 1e-5f));
    program_.pool_to(out, shape_.hidden);
    program_.step().allow_pooling();  // not Program::pool: the nodes after it work on rows of logits
  }

  // More layers, which work on the rows of logits alone and read what the last layers have stored.
  Place narrow_layers(Place residual) {
    const Place few = rows(shape_.hidden, sizeof(float));
    program_.add(std::make_unique<NarrowNode>(residual, few));
    program_.narrow();
    Place x = normed(few);
    for (int64_t layer = shape_.layers - 2; layer < shape_.layers; ++layer) {
      x = add_reduced(attention(x, layer, KvSource::kCached), few);
      x = add_reduced(mlp(x, layer), few);
    }
    return x;
  }

  void sample(Place x, const PackedMatrix& head) {
    const int64_t logit_rows = model_.limits.max_logit_rows;
    Place gathered = x;
    if (!shape_.narrows) {
      gathered = room(logit_rows, shape_.hidden, sizeof(bf16));
      program_.add(std::make_unique<GatherNode>(x, gathered));
    }
    const Place logits = collective(logit_rows, head.n());
    product("lm_head", gathered, head, logits, Activation::kNone, true);
    std::vector<int64_t> bounds{0};
    for (int rank = 0; rank < model_.world(); ++rank)
      bounds.push_back(part_of(shape_.vocabulary, model_, rank, kTileN).end);
    program_.add(std::make_unique<SampleNode>(logits, collective(logit_rows, 1), bounds, shape_.softcap));
  }

  void build() {
    const int64_t half = (shape_.head_dim - shape_.value_dim) / 2;
    cos_ = random_values(model_.context() * half, 1000, 1.0f);
    sin_ = random_values(model_.context() * half, 2000, 1.0f);
    program_.step().limit_positions(model_.context());
    if (shape_.adapters) program_.step().allow_adapters(RandomAdapters::kNamed);
    PackedMatrix& embedding = matrix(vocab_.end - vocab_.begin, shape_.hidden, WeightFormat::kBf16);
    pack(embedding, shape_.vocabulary, shape_.hidden, {vocab_}, 0, {0, 1, 0});
    const Place residual = rows(shape_.hidden, sizeof(float)), embedded = partial();
    const int32_t* tokens = program_.row_indices(row_index_of("token"));
    program_.add(std::make_unique<EmbedNode>(tokens, embedding, vocab_.begin, 3.0f, embedded));
    reduce(embedded, residual, true);
    if (shape_.features > 0) place_features(residual);
    Place x = normed(residual);
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      x = add_reduced(mixed(x, layer), residual);
      x = add_reduced(mlp(x, layer), residual);
    }
    if (shape_.narrows) x = narrow_layers(residual);
    if (shape_.pools) pool(residual);
    if (shape_.samples) sample(x, embedding);
    program_.set_collectives(collectives_);
  }
};

}  // namespace numaserve::testing
