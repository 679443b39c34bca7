// A small random transformer as one Program per rank, built from C++ nodes, for tests that play ranks as threads.
//
// What workers/program.py does for a real model, with one difference: buffers share no memory and lie apart, and what
// lies between them is poisoned for the address sanitizer. So are the pages of the KV cache that no sequence holds.
#pragma once

#include <sanitizer/asan_interface.h>

#include <array>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/runtime/moe_nodes.h"
#include "kernels/runtime/program.h"

namespace numaserve::testing {

struct Shape {
  int32_t q_heads, kv_heads, head_dim;
  int64_t hidden, intermediate, vocabulary, layers;
  int32_t window = 0;  // of the odd layers
  float softcap = 0.0f;
  bool extras = false;  // biases, q and k norms, norms after the sums
  int32_t experts = 0;  // of the odd layers, two for each token and a shared one; 0: none
};

struct Model {
  Shape shape;
  Limits limits;             // its vocabulary is the shape's
  std::vector<int> threads;  // of each rank's team
  const KernelTable* table;
  KvDtype kv_dtype = KvDtype::kBf16;
  WeightFormat format = WeightFormat::kBf16;  // of all matrices but the embedding, which is the head too

  int world() const { return static_cast<int>(threads.size()); }
  uint32_t lanes() const { return static_cast<uint32_t>(*std::min_element(threads.begin(), threads.end())); }
  int64_t context() const { return limits.pages_per_slot * kPageTokens - 5; }  // not all of the last page
};

// The same random numbers for a tensor on every rank: each packs its own rows and columns of them.
inline std::vector<float> random_values(int64_t count, uint64_t key, float scale, float offset = 0.0f) {
  std::mt19937_64 random(key);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = offset + scale * (static_cast<float>(random() >> 40) / float{1 << 23} - 1.0f);
  return values;
}

inline Range part_of(int64_t count, const Model& model, int rank, int64_t unit = 1) {
  return split(count, model.world(), rank, unit);
}

class RankProgram {
 public:
  // `ring` is null with one rank.
  RankProgram(const Model& model, int rank, ring::Ring* ring)
      : model_(model),
        shape_(model.shape),
        rank_(rank),
        kv_heads_(part_of(shape_.kv_heads, model, rank)),
        inter_(part_of(shape_.intermediate, model, rank, kTileK)),
        vocab_(part_of(shape_.vocabulary, model, rank, kTileN)),
        ring_(ring),
        team_(std::vector<int>(static_cast<size_t>(model.threads[static_cast<size_t>(rank)]), -1)),
        program_(*model.table, team_, ring, model.limits, heads(), {}, shape_.layers, model.kv_dtype, kArenaBytes) {
    ASAN_POISON_MEMORY_REGION(program_.arena().data(), program_.arena().bytes());
    ASAN_POISON_MEMORY_REGION(program_.kv().buffer().data(), program_.kv().buffer().bytes());
    build();
  }
  ~RankProgram() {
    ASAN_UNPOISON_MEMORY_REGION(program_.arena().data(), program_.arena().bytes());
    ASAN_UNPOISON_MEMORY_REGION(program_.kv().buffer().data(), program_.kv().buffer().bytes());
  }
  RankProgram(const RankProgram&) = delete;
  RankProgram& operator=(const RankProgram&) = delete;

  const Model& model() const { return model_; }
  int rank() const { return rank_; }
  Program& program() { return program_; }

  // Says whether some sequence holds a page.
  void hold_page(int32_t page, bool held) const {
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      const KvLayer kv = program_.kv().layer(layer);
      const size_t bytes = static_cast<size_t>(kv.page_stride);
      if (held)
        ASAN_UNPOISON_MEMORY_REGION(kv.k + page * kv.page_stride, bytes);
      else
        ASAN_POISON_MEMORY_REGION(kv.k + page * kv.page_stride, bytes);
    }
  }

 private:
  static constexpr int64_t kArenaBytes = 256 << 20;  // touched where it is used only
  static constexpr int64_t kGap = 4096;

  int32_t group() const { return shape_.q_heads / shape_.kv_heads; }
  HeadGeometry heads() const {
    const auto count = static_cast<int32_t>(kv_heads_.end - kv_heads_.begin);
    return {.q_heads = count * group(), .kv_heads = count, .head_dim = shape_.head_dim};
  }

  // Room of the arena for rows * cols elements; rows and columns are padded.
  Place room(int64_t rows, int64_t cols, int64_t item_bytes) {
    const Place place{.offset = used_, .ld = round_up(cols, kPad), .collective = -1};
    const int64_t bytes = round_up(rows, kPad) * place.ld * item_bytes;
    ASAN_UNPOISON_MEMORY_REGION(program_.arena().data() + used_, static_cast<size_t>(bytes));
    used_ += round_up(bytes, kGap) + kGap;
    if (used_ > kArenaBytes) throw std::logic_error("the model does not fit the test's arena");
    return place;
  }
  Place rows(int64_t cols, int64_t item_bytes) { return room(model_.limits.max_tokens, cols, item_bytes); }

  // As `room`, but in the ring's slot of the step's next collective when there are several ranks.
  Place collective(int64_t count, int64_t cols) {
    Place place = room(count, cols, sizeof(float));
    if (ring_ != nullptr) place.collective = collectives_++;
    return place;
  }
  Place partial() { return collective(model_.limits.max_tokens, shape_.hidden); }

  const Vector& vector(int64_t count, float offset) {
    return vectors_.emplace_back(random_values(count, ++tensors_, 0.1f, offset));
  }
  const float* padded_vector(Vector values) {
    values.resize(static_cast<size_t>(round_up(static_cast<int64_t>(values.size()), kPad)));
    return vectors_.emplace_back(std::move(values)).data();
  }
  const float* extra(int64_t count, float offset) {
    Vector values = random_values(count, ++tensors_, 0.1f, offset);
    return shape_.extras ? padded_vector(std::move(values)) : nullptr;
  }

  // Packs columns `cols` of the chosen rows of a random tensor [n, k] to consecutive rows of `matrix`.
  void pack(PackedMatrix& matrix, int64_t n, int64_t k, std::vector<Range> chosen, int64_t first_col,
            PackTarget target) {
    const std::vector<float> values = random_values(n * k, ++tensors_, 1.7f / std::sqrt(static_cast<float>(k)));
    std::vector<int32_t> indices;
    for (const Range& range : chosen)
      for (int64_t row = range.begin; row < range.end; ++row) indices.push_back(static_cast<int32_t>(row));
    if (indices.empty() || matrix.k() == 0) return;
    matrix.pack(team_,
                {.data = reinterpret_cast<const uint8_t*>(values.data()),
                 .bytes = n * k * static_cast<int64_t>(sizeof(float)),
                 .type = SourceType::kF32,
                 .rows = {.cols = k,
                          .rows = indices.data(),
                          .num_rows = static_cast<int64_t>(indices.size()),
                          .first_col = first_col}},
                target);
  }
  PackedMatrix& matrix(int64_t n, int64_t k, WeightFormat format) {
    return matrices_.emplace_back(n, k, format, is_grouped(format) ? 32 : 0);
  }
  PackedMatrix& matrix(int64_t n, int64_t k) { return matrix(n, k, model_.format); }

  Place operand(Place x, const PackedMatrix& weight, int64_t rows_per_token = 1) {
    if (!takes_int8(weight.format())) return x;
    const Place out = room(model_.limits.max_tokens * rows_per_token,
                           round_up(quantised_bytes(weight.k(), weight.group()), kLineBytes), 1);
    program_.add(std::make_unique<QuantizeNode>(x, Quantized{out, weight.k(), weight.group()}, rows_per_token, false));
    return out;
  }

  void linear(const char* name, Place x, const PackedMatrix& weight, Place out, const float* bias = nullptr,
              Activation activation = Activation::kNone, bool logits = false) {
    auto node = std::make_unique<LinearNode>(name, operand(x, weight), weight, out);
    node->bias = bias;
    node->activation = activation;
    node->logits = logits;
    program_.add(std::move(node));
  }

  // residual += the sum of `part` over the ranks; returns its norm.
  Place add_reduced(Place part, Place residual, bool assign) {
    const bool post = shape_.extras && !assign;
    auto node = std::make_unique<ReduceNode>(part, residual, post ? rows(shape_.hidden, sizeof(float)) : residual,
                                             shape_.hidden);
    node->assign = assign;
    node->bias = assign ? nullptr : extra(shape_.hidden, 0.0f);
    node->post_norm = assign ? nullptr : extra(shape_.hidden, 1.0f);
    node->eps = 1e-5f;
    program_.add(std::move(node));
    const Place out = rows(shape_.hidden, sizeof(bf16));
    program_.add(std::make_unique<NormNode>(residual, vector(shape_.hidden, 1.0f), out, 1e-5f));
    return out;
  }

  Place attention(Place x, int64_t layer) {
    const HeadGeometry own = heads();
    const int64_t dim = shape_.head_dim, q_cols = int64_t{own.q_heads} * dim, kv_cols = int64_t{own.kv_heads} * dim;
    PackedMatrix& qkv_weight = matrix(q_cols + 2 * kv_cols, shape_.hidden);
    const Range q_rows{kv_heads_.begin * group() * dim, kv_heads_.end * group() * dim};
    const int64_t q_all = shape_.q_heads * dim, kv_all = shape_.kv_heads * dim;
    const Range k_rows{q_all + kv_heads_.begin * dim, q_all + kv_heads_.end * dim};
    const Range v_rows{k_rows.begin + kv_all, k_rows.end + kv_all};
    pack(qkv_weight, q_all + 2 * kv_all, shape_.hidden, {q_rows, k_rows, v_rows}, 0, {0, 1, 0});
    const Place qkv = rows(qkv_weight.n(), sizeof(float));
    linear("linear", x, qkv_weight, qkv);
    const Place q = rows(own.q_heads * own.head_tiles() * kTileK, sizeof(bf16));
    auto rope = std::make_unique<RopeStoreNode>(qkv, q, own, program_.kv().layer(layer));
    rope->rot_dim = static_cast<int32_t>(dim / 2 * 2);
    rope->cos = cos_.data();
    rope->sin = sin_.data();
    rope->q_norm = extra(dim, 1.0f);
    rope->k_norm = extra(dim, 1.0f);
    rope->eps = 1e-5f;
    program_.add(std::move(rope));
    const Place out = rows(q_cols, sizeof(bf16));
    const Place split_results = room(AttentionPlanner::partial_rows(model_.limits.pages_per_slot),
                                     own.head_tiles() * kTileK + 16, sizeof(float));
    auto node = std::make_unique<AttentionNode>(q, out, split_results, own, program_.kv().layer(layer));
    node->scale = 1.0f / std::sqrt(static_cast<float>(dim));
    node->softcap = shape_.softcap;
    node->work = program_.step().add_window(layer % 2 == 1 ? shape_.window : 0);
    program_.add(std::move(node));
    PackedMatrix& o = matrix(shape_.hidden, q_cols);
    pack(o, shape_.hidden, q_all, {{0, shape_.hidden}}, q_rows.begin, {0, 1, 0});
    const Place part = partial();
    linear("linear_partial", out, o, part);
    return part;
  }

  int64_t inner_columns() const { return round_up(inter_.end - inter_.begin, kTileK); }
  PackedMatrix& gate_up_matrix() {
    PackedMatrix& weight = matrix(2 * inner_columns(), shape_.hidden);
    for (int64_t half = 0; half < 2; ++half)
      pack(weight, shape_.intermediate, shape_.hidden, {inter_}, 0, {0, 2, half});
    return weight;
  }
  PackedMatrix& down_matrix() {
    PackedMatrix& weight = matrix(shape_.hidden, inter_.end - inter_.begin);
    pack(weight, shape_.hidden, shape_.intermediate, {{0, shape_.hidden}}, inter_.begin, {0, 1, 0});
    return weight;
  }

  void multiply(const char* name, std::array<Place, 2> from, const std::vector<const PackedMatrix*>& experts,
                const PackedMatrix& shared, std::array<Place, 2> to, Place counts, Activation activation) {
    auto node = std::make_unique<ExpertsNode>(name, from[0], to[0], counts, experts);
    node->shared = &shared;
    node->shared_x = from[1];
    node->shared_out = to[1];
    node->item_bytes = takes_int8(shared.format()) ? 1 : 2;
    node->activation = activation;
    program_.add(std::move(node));
  }

  Place mixture(Place x) {
    constexpr int32_t kTopK = 2;
    PackedMatrix& router = matrix(shape_.experts + 1, shape_.hidden, WeightFormat::kBf16);
    pack(router, shape_.experts + 1, shape_.hidden, {{0, shape_.experts + 1}}, 0, {0, 1, 0});
    std::vector<const PackedMatrix*> gate_up, down;
    for (int32_t i = 0; i < shape_.experts; ++i) {
      gate_up.push_back(&gate_up_matrix());
      down.push_back(&down_matrix());
    }
    PackedMatrix &shared_gate_up = gate_up_matrix(), &shared_down = down_matrix();
    const Place logits = rows(router.n(), sizeof(float));
    linear("moe_router", x, router, logits);

    const int64_t routed = model_.limits.max_tokens * kTopK, item_bytes = takes_int8(shared_gate_up.format()) ? 1 : 2;
    const Place token = operand(x, shared_gate_up), sorted = room(routed, token.ld, item_bytes);
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
    program_.add(std::move(route));

    const std::array<Place, 2> middle{room(routed, inner_columns(), sizeof(bf16)), rows(inner_columns(), sizeof(bf16))};
    multiply("moe_gate_up", {sorted, token}, gate_up, shared_gate_up, middle, places.counts, Activation::kSilu);
    const std::array<Place, 2> y{room(routed, shape_.hidden, sizeof(float)), rows(shape_.hidden, sizeof(float))};
    multiply("moe_down", {operand(middle[0], shared_down, kTopK), operand(middle[1], shared_down)}, down, shared_down,
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
    PackedMatrix& gate_up = gate_up_matrix();
    const Place middle = rows(inner_columns(), sizeof(bf16));
    linear("gate_up", x, gate_up, middle, nullptr, shape_.extras ? Activation::kGeluTanh : Activation::kSilu);
    PackedMatrix& down = down_matrix();
    const Place part = partial();
    linear("linear_partial", middle, down, part);
    return part;
  }

  void build() {
    const int64_t half = shape_.head_dim / 2;
    cos_ = random_values(model_.context() * half, 1000, 1.0f);
    sin_ = random_values(model_.context() * half, 2000, 1.0f);
    program_.step().limit_positions(model_.context());
    PackedMatrix& embedding = matrix(vocab_.end - vocab_.begin, shape_.hidden, WeightFormat::kBf16);
    pack(embedding, shape_.vocabulary, shape_.hidden, {vocab_}, 0, {0, 1, 0});
    const Place residual = rows(shape_.hidden, sizeof(float)), embedded = partial();
    program_.add(std::make_unique<EmbedNode>(embedding, vocab_.begin, 3.0f, embedded));
    Place x = add_reduced(embedded, residual, true);
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      x = add_reduced(attention(x, layer), residual, false);
      x = add_reduced(mlp(x, layer), residual, false);
    }
    const int64_t logit_rows = model_.limits.max_logit_rows;
    const Place gathered = room(logit_rows, shape_.hidden, sizeof(bf16));
    program_.add(std::make_unique<GatherNode>(x, gathered));
    const Place logits = collective(logit_rows, embedding.n());
    linear("lm_head", gathered, embedding, logits, nullptr, Activation::kNone, true);
    std::vector<int64_t> bounds{0};
    for (int rank = 0; rank < model_.world(); ++rank)
      bounds.push_back(part_of(shape_.vocabulary, model_, rank, kTileN).end);
    program_.add(std::make_unique<SampleNode>(logits, collective(logit_rows, 1), bounds, shape_.softcap));
    program_.set_collectives(collectives_);
  }

  const Model& model_;
  const Shape& shape_;
  int rank_;
  Range kv_heads_, inter_, vocab_;
  ring::Ring* ring_;
  Team team_;
  Program program_;
  int64_t used_ = kGap;
  int32_t collectives_ = 0;
  uint64_t tensors_ = 0;
  std::deque<PackedMatrix> matrices_;
  std::deque<Vector> vectors_;
  Vector cos_, sin_;
};

}  // namespace numaserve::testing
