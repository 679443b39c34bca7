// A small random transformer as one Program per rank, built from C++ nodes, for tests that play ranks as threads: what
// workers/layers/decoder.py does for a real model.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/runtime/attention/attention_nodes.h"
#include "kernels/runtime/attention/context_parallel.h"
#include "kernels/runtime/attention/latent_nodes.h"
#include "kernels/runtime/exchange/divided_norm.h"
#include "kernels/runtime/exchange/gather_columns.h"
#include "kernels/runtime/experts/moe_nodes.h"
#include "tests/kernels/random_recurrent.h"

namespace numaserve::testing {

class RankProgram : public RecurrentNodes {
 public:
  RankProgram(const Model& model, int rank, ring::Ring* ring) : RecurrentNodes(model, rank, ring) { build(); }

 private:
  // Columns of a head of a latent model: of its queries those without positions, and of its values.
  static constexpr int32_t kPlain = 32, kValues = 32;

  Place mixed(Place x, int64_t layer) {
    if (shape_.delta_keys > 0 && layer % 2 == 0) return recurrent(x, layer);
    return shape_.latent() ? latent_attention(x, layer) : attention(x, layer);
  }

  Place attention(Place x, int64_t layer) {
    const HeadGeometry own = heads(layer);
    const int64_t dim = own.head_dim, q_cols = int64_t{own.q_heads} * dim, kv_cols = int64_t{own.kv_heads} * dim;
    PackedMatrix& qkv_weight = matrix(q_cols + 2 * kv_cols, shape_.hidden);
    const Range q_rows{heads_.begin * group() * dim, heads_.end * group() * dim};
    const int64_t q_all = shape_.q_heads * dim, kv_all = shape_.kv_heads * dim;
    const Range k_rows{q_all + heads_.begin * dim, q_all + heads_.end * dim};
    const Range v_rows{k_rows.begin + kv_all, k_rows.end + kv_all};
    pack(qkv_weight, q_all + 2 * kv_all, shape_.hidden, {q_rows, k_rows, v_rows}, 0, {0, 1, 0});
    const Place qkv = rows(qkv_weight.n(), sizeof(float));
    joins_norm_ = true;
    linear("linear", x, qkv_weight, qkv);
    joins_norm_ = false;
    if (shape_.divided_norms) divided_norms(qkv, q_rows, {k_rows.begin - q_all, k_rows.end - q_all});
    const Place q = rows(own.q_heads * own.head_tiles() * kTileK, sizeof(bf16));
    auto rope = std::make_unique<RopeStoreNode>(qkv, q, own, program_.kv().layer(cache_of(layer)));
    rope->rot_dim = shape_.head_dim / 2 * 2;
    rope->distance = shape_.head_dim / 2;
    rope->cos = cos_.data();
    rope->sin = sin_.data();
    rope->norm = shape_.extras ? HeadNorm::kBefore : HeadNorm::kNone;
    rope->q_norm = extra(dim, 1.0f);
    rope->k_norm = extra(dim, 1.0f);
    rope->eps = 1e-5f;
    rope->table = program_.kv().table(cache_of(layer));
    RopeStoreNode* before = rope.get();
    program_.add(std::move(rope));
    const Place out = rows(q_cols, sizeof(bf16));
    const Place split_results = room(AttentionPlanner::partial_rows(model_.limits.pages_per_slot),
                                     own.head_tiles() * kTileK + 16, sizeof(float));
    auto node = std::make_unique<AttentionNode>(q, out, split_results, own, program_.kv().layer(cache_of(layer)),
                                                program_.next_turn());
    node->scale = 1.0f / std::sqrt(static_cast<float>(dim));
    node->softcap = shape_.softcap;
    node->work = cache_of(layer).kind;
    node->rope = before;
    before->attention = node->work;
    program_.add(std::move(node));
    PackedMatrix& o = matrix(shape_.hidden, q_cols);
    pack(o, shape_.hidden, q_all, {{0, shape_.hidden}}, q_rows.begin, {0, 1, 0});
    const Place part = partial();
    linear("linear_partial", out, o, part);
    return part;
  }

  void divided_norms(Place qkv, Range q, Range k) {
    std::vector<DividedVector> vectors;
    for (const auto& [own, heads] : {std::pair{q, shape_.q_heads}, std::pair{k, shape_.kv_heads}}) {
      const int64_t all = int64_t{heads} * shape_.head_dim, cols = own.end - own.begin;
      const std::vector<float> weight = random_values(all, ++tensors_, 0.1f, 1.0f);
      vectors.push_back({padded_vector({weight.begin() + own.begin, weight.begin() + own.end}), cols, cols, all});
    }
    const Place sums = collective(model_.limits.max_tokens, 2);
    program_.add(std::make_unique<DividedNormNode>(qkv, sums, std::move(vectors), 1e-5f));
  }

  // What makes latents is divided among the ranks, whose parts are put together; of heads each has its own.
  Place latent_attention(Place x, int64_t layer) {
    const HeadGeometry own = heads();
    const int64_t latent = own.value_dim, rotated = own.head_dim - latent, query_dim = kPlain + rotated;
    const Place kv = latents(x);
    PackedMatrix& q_weight = own_rows(query_dim, shape_.hidden);
    pack_own(q_weight, query_dim);
    const Place q = rows(q_weight.n(), sizeof(float));
    linear("linear", x, q_weight, q);
    const Place plain = rows(own.q_heads * kPlain, sizeof(bf16)),
                query = rows(own.q_heads * own.head_dim, sizeof(bf16));
    auto store = std::make_unique<LatentStoreNode>(q, kv, plain, query, own, program_.kv().layer(cache_of(layer)));
    store->nope_dim = kPlain;
    store->cos = cos_.data();
    store->sin = sin_.data();
    store->norm = padded_vector(random_values(latent, ++tensors_, 0.1f, 1.0f));
    store->eps = 1e-5f;
    program_.add(std::move(store));
    PackedMatrix &w_uk = own_rows(latent, kPlain), &w_uv = own_rows(kValues, latent);
    pack_own(w_uk, latent);
    pack_own(w_uv, kValues);
    head_linear("latent_absorb", plain, kPlain, w_uk, query, own.head_dim);
    const Place attended = rows(own.q_heads * latent, sizeof(bf16)), out = rows(own.q_heads * kValues, sizeof(bf16));
    attend_latents(query, attended, layer, 1.0f / std::sqrt(static_cast<float>(query_dim)));
    head_linear("latent_values", attended, latent, w_uv, out, kValues);
    PackedMatrix& o = matrix(shape_.hidden, own.q_heads * kValues);
    pack(o, shape_.hidden, shape_.q_heads * kValues, {{0, shape_.hidden}}, heads_.begin * kValues, {0, 1, 0});
    const Place part = partial();
    linear("linear_partial", out, o, part);
    return part;
  }

  Place latents(Place x) {
    std::vector<int32_t> bounds{0};
    for (int rank = 0; rank < model_.world(); ++rank)
      bounds.push_back(static_cast<int32_t>(part_of(shape_.head_dim, model_, rank, kPad).end));
    const Range own = part_of(shape_.head_dim, model_, rank_, kPad);
    PackedMatrix& weight = matrix(own.end - own.begin, shape_.hidden);
    pack(weight, shape_.head_dim, shape_.hidden, {own}, 0, {0, 1, 0});
    const Place kv = rows(shape_.head_dim, sizeof(float));
    const Place part = ring_ == nullptr ? kv : collective(model_.limits.max_tokens, weight.n());
    linear("linear", x, weight, part);
    if (ring_ != nullptr) program_.add(std::make_unique<GatherColumnsNode>(part, kv, bounds));
    return kv;
  }

  // `height` rows for each of the rank's heads.
  PackedMatrix& own_rows(int64_t height, int64_t k) { return matrix((heads_.end - heads_.begin) * height, k); }
  void pack_own(PackedMatrix& weight, int64_t height) {
    pack(weight, shape_.q_heads * height, weight.k(), {{heads_.begin * height, heads_.end * height}}, 0, {0, 1, 0});
  }

  void head_linear(const char* name, Place x, int64_t x_stride, const PackedMatrix& weight, Place out,
                   int64_t out_stride) {
    const int32_t count = heads().q_heads;
    if (takes_int8(weight.format())) {
      const int64_t stride = round_up(quantized_bytes(weight.k(), weight.group()), kLineBytes);
      const Place codes = rows(count * stride, 1);
      auto node = std::make_unique<QuantizeNode>(x, Quantized{codes, weight.k(), weight.group()}, 1, /*logits=*/false);
      node->heads = count;
      node->x_stride = x_stride;
      node->out_stride = stride;
      program_.add(std::move(node));
      x = codes;
      x_stride = stride;
    }
    program_.add(std::make_unique<HeadLinearNode>(name, x, x_stride, weight, count, out, out_stride));
  }

  // Every rank attends sequences for its own heads, but for those that ranks divide.
  void attend_latents(Place query, Place out, int64_t layer, float scale) {
    const HeadGeometry own = heads();
    const ContextParallel& divided = program_.context_parallel();
    const int64_t result = own.value_dim + kPartialExtra;
    const Place split_results =
        room(AttentionPlanner::partial_rows(model_.limits.pages_per_slot), result, sizeof(float));
    auto node = std::make_unique<AttentionNode>(query, out, split_results, own, program_.kv().layer(cache_of(layer)),
                                                program_.next_turn());
    node->scale = scale;
    node->block_groups = divided.world;
    node->work = cache_of(layer).kind;
    program_.add(std::move(node));
    if (divided.world == 1) return;
    const HeadGeometry all = divided.all_heads(own);
    const Place gathered = room(kDividedRows, all.q_heads * own.head_dim, sizeof(bf16));
    const Place queries = collective(kDividedRows * own.q_heads, own.head_dim);
    const Place results = collective(kDividedRows * all.q_heads, result);
    program_.add(std::make_unique<GatherQueriesNode>(query, queries, gathered, own.head_dim, divided.head_bounds));
    auto attention = std::make_unique<DividedAttentionNode>(gathered, results, out, split_results, all,
                                                            program_.kv().layer(cache_of(layer)), divided.head_bounds,
                                                            program_.next_turn());
    attention->scale = scale;
    program_.add(std::move(attention));
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
    auto node = std::make_unique<ExpertsNode>(name, from[0], to[0], counts, experts);
    node->shared = &shared;
    node->shared_x = from[1];
    node->shared_out = to[1];
    node->item_bytes = takes_int8(model_.format) ? 1 : 2;
    node->activation = activation;
    program_.add(std::move(node));
  }

  Place mixture(Place x) {
    constexpr int32_t kTopK = 2;
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
    linear("moe_router", x, router, logits);

    // Tiles of the last expert's rows may end after them.
    const int64_t routed = model_.limits.max_tokens * kTopK + kTileN - 1,
                  item_bytes = takes_int8(model_.format) ? 1 : 2;
    const Place token = operand(x, *gate_up.front()), sorted = room(routed, token.ld, item_bytes);
    const MoePlaces places{rows(2 * kTopK + 1, sizeof(int32_t)),
                           room(team_.size() + 1, shape_.experts + 1, sizeof(int32_t))};
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
    program_.add(std::move(combine));
    return part;
  }

  Place mlp(Place x, int64_t layer) {
    if (shape_.experts > 0 && layer % 2 == 1) return mixture(x);
    PackedMatrix& gate_up = gate_up_matrix(model_.format);
    const Place middle = rows(inner_columns(), sizeof(bf16));
    joins_norm_ = true;
    linear("gate_up", x, gate_up, middle, nullptr, shape_.extras ? Activation::kGeluTanh : Activation::kSilu);
    joins_norm_ = false;
    PackedMatrix& down = down_matrix(model_.format);
    const Place part = partial();
    linear("linear_partial", middle, down, part);
    return part;
  }

  void pool(Place residual) {
    const Place out = room(model_.limits.max_slots, shape_.hidden, sizeof(float));
    program_.add(std::make_unique<PoolNode>(residual, vector(shape_.hidden, 1.0f), out, 1e-5f));
    program_.pool_to(out, shape_.hidden);
  }

  void sample(Place x, const PackedMatrix& head) {
    const int64_t logit_rows = model_.limits.max_logit_rows;
    const Place gathered = room(logit_rows, shape_.hidden, sizeof(bf16));
    program_.add(std::make_unique<GatherNode>(x, gathered));
    const Place logits = collective(logit_rows, head.n());
    linear("lm_head", gathered, head, logits, nullptr, Activation::kNone, true);
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
    PackedMatrix& embedding = matrix(vocab_.end - vocab_.begin, shape_.hidden, WeightFormat::kBf16);
    pack(embedding, shape_.vocabulary, shape_.hidden, {vocab_}, 0, {0, 1, 0});
    const Place residual = rows(shape_.hidden, sizeof(float)), embedded = partial();
    program_.add(std::make_unique<EmbedNode>(embedding, vocab_.begin, 3.0f, embedded));
    Place x = add_reduced(embedded, residual, true);
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      x = add_reduced(mixed(x, layer), residual, false);
      x = add_reduced(mlp(x, layer), residual, false);
    }
    if (shape_.pools) pool(residual);
    if (shape_.samples) sample(x, embedding);
    program_.set_collectives(collectives_);
  }
};

}  // namespace numaserve::testing
