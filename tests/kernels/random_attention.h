// Random attention, over keys and values of heads or over latents.
#pragma once

#include <memory>
#include <vector>

#include "kernels/runtime/attention/attention_nodes.h"
#include "kernels/runtime/attention/context_parallel.h"
#include "kernels/runtime/attention/latent_nodes.h"
#include "kernels/runtime/exchange/divided_norm.h"
#include "kernels/runtime/exchange/gather_columns.h"
#include "tests/kernels/random_recurrent.h"

namespace numaserve::testing {

class AttentionNodes : public RecurrentNodes {
 public:
  using RecurrentNodes::RecurrentNodes;

 protected:
  // Reads the cache of `layer`, and with keys and values of `x` stores them there first.
  Place attention(Place x, int64_t layer, KvSource source = KvSource::kProjected) {
    const HeadGeometry own = heads(layer);
    const int64_t dim = own.head_dim, value_dim = own.values(), q_cols = int64_t{own.q_heads} * dim;
    const bool cached = source == KvSource::kCached;
    PackedMatrix& qkv_weight = matrix(q_cols + (cached ? 0 : own.kv_heads * (dim + value_dim)), shape_.hidden);
    const Range q_rows{queries_.begin * dim, queries_.end * dim};
    const int64_t q_all = shape_.q_heads * dim, qk_all = q_all + shape_.kv_heads * dim;
    const Range k_rows{q_all + keys_.begin * dim, q_all + keys_.end * dim};
    const Range v_rows{qk_all + keys_.begin * value_dim, qk_all + keys_.end * value_dim};
    pack(qkv_weight, qk_all + shape_.kv_heads * value_dim, shape_.hidden,
         cached ? std::vector<Range>{q_rows} : std::vector<Range>{q_rows, k_rows, v_rows}, 0, {0, 1, 0});
    const Place qkv = rows(qkv_weight.n(), sizeof(float));
    joins_before_ = true;
    linear("linear", x, qkv_weight, qkv);
    joins_before_ = false;
    if (shape_.divided_norms) divided_norms(qkv);
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
    rope->source = source;
    RopeStoreNode* before = rope.get();
    program_.add(std::move(rope));
    const int64_t out_cols = own.q_heads * value_dim;
    const Place out = rows(out_cols, sizeof(bf16));
    const Place split_results = room(AttentionPlanner::partial_rows(model_.limits.pages_per_slot()),
                                     own.value_tiles() * kTileK + 16, sizeof(float));
    auto node = std::make_unique<AttentionNode>(q, out, split_results, own, program_.kv().layer(cache_of(layer)),
                                                program_.next_counter());
    node->scale = 1.0f / std::sqrt(static_cast<float>(dim));
    node->softcap = shape_.softcap;
    node->work = cache_of(layer).kind;
    node->rope = before;
    before->attention = node->work;
    program_.add(std::move(node));
    PackedMatrix& o = matrix(shape_.hidden, out_cols);
    pack(o, shape_.hidden, shape_.q_heads * value_dim, {{0, shape_.hidden}}, queries_.begin * value_dim, {0, 1, 0});
    const Place part = partial();
    linear("linear_partial", out, o, part);
    return part;
  }

  // A KV head that lower ranks have too is not counted.
  void divided_norms(Place qkv) {
    std::vector<DividedVector> vectors;
    const int64_t dim = shape_.head_dim, counted = keys_.end - std::min(ceil_div(queries_.begin, group()), keys_.end);
    const auto add = [&](int64_t heads, Range own, int64_t own_counted) {
      const std::vector<float> weight = random_values(heads * dim, ++tensors_, 0.1f, 1.0f);
      const float* padded = padded_vector({weight.begin() + own.begin * dim, weight.begin() + own.end * dim});
      vectors.push_back({padded, (own.end - own.begin) * dim, own_counted * dim, heads * dim});
    };
    add(shape_.q_heads, queries_, queries_.end - queries_.begin);
    add(shape_.kv_heads, keys_, counted);
    const Place sums = collective(model_.limits.max_step_tokens, 2);
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
    pack(o, shape_.hidden, shape_.q_heads * kValues, {{0, shape_.hidden}}, queries_.begin * kValues, {0, 1, 0});
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
    const Place part = ring_ == nullptr ? kv : collective(model_.limits.max_step_tokens, weight.n());
    linear("linear", x, weight, part);
    if (ring_ != nullptr) program_.add(std::make_unique<GatherColumnsNode>(part, kv, bounds));
    return kv;
  }

  // `height` rows for each of the rank's heads.
  PackedMatrix& own_rows(int64_t height, int64_t k) { return matrix((queries_.end - queries_.begin) * height, k); }
  void pack_own(PackedMatrix& weight, int64_t height) {
    pack(weight, shape_.q_heads * height, weight.k(), {{queries_.begin * height, queries_.end * height}}, 0, {0, 1, 0});
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
        room(AttentionPlanner::partial_rows(model_.limits.pages_per_slot()), result, sizeof(float));
    auto node = std::make_unique<AttentionNode>(query, out, split_results, own, program_.kv().layer(cache_of(layer)),
                                                program_.next_counter());
    node->scale = scale;
    node->block_groups = divided.world;
    node->work = cache_of(layer).kind;
    program_.add(std::move(node));
    if (divided.world == 1) return;
    const HeadGeometry all = divided.all_heads(own);
    const Place gathered = room(kDividedRows, all.q_heads * own.head_dim, sizeof(bf16));
    const Place queries = collective(kDividedRows * own.q_heads, own.head_dim);
    const Place results = collective(kDividedRows * all.q_heads, result);
    program_.add_divided(
        std::make_unique<GatherQueriesNode>(query, queries, gathered, own.head_dim, divided.head_bounds), queries);
    auto attention = std::make_unique<DividedAttentionNode>(gathered, results, out, split_results, all,
                                                            program_.kv().layer(cache_of(layer)), divided.head_bounds,
                                                            program_.next_counter());
    attention->scale = scale;
    program_.add_divided(std::move(attention), results);
  }

 private:
  // Columns of a head of a latent model: of its queries those without positions, and of its values.
  static constexpr int32_t kPlain = 32, kValues = 32;
};

}  // namespace numaserve::testing
