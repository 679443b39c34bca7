// Random matrices and the nodes that every layer is made of, for a Program that has no model behind it.
//
// What workers/program/recording/recorder.py does for a real model, with one difference: buffers share no memory and
// lie apart, and what lies between them is poisoned for the address sanitizer. So are the pages of the KV cache that no
// sequence holds.
#pragma once

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/runtime/adapters/shrink_node.h"
#include "kernels/runtime/exchange/reduce_node.h"
#include "kernels/runtime/program/program.h"
#include "kernels/runtime/recurrent/delta_node.h"
#include "tests/kernels/random_adapters.h"
#include "tests/kernels/random_models.h"

namespace numaserve::testing {

// The Program of a rank, and what its parts are made with.
class RandomNodes {
 public:
  // `ring` is null with one rank.
  RandomNodes(const Model& model, int rank, ring::Ring* ring)
      : model_(model),
        shape_(model.shape),
        rank_(rank),
        keys_(own_keys()),
        queries_(own_queries()),
        inter_(part_of(shape_.intermediate, model, rank, kTileK)),
        vocab_(part_of(shape_.vocabulary, model, rank, kTileN)),
        ring_(ring),
        team_(std::vector<int>(static_cast<size_t>(model.threads[static_cast<size_t>(rank)]), -1)),
        program_(*model.table, team_, ring,
                 {.limits = limits(),
                  .caches = kinds(),
                  .states = states(),
                  .kv_dtype = model.kv_dtype,
                  .parallel = parallel(),
                  .arena_bytes = kArenaBytes}) {
    ASAN_POISON_MEMORY_REGION(program_.arena().data(), program_.arena().bytes());
    ASAN_POISON_MEMORY_REGION(program_.kv().buffer().data(), program_.kv().buffer().bytes());
  }
  ~RandomNodes() {
    ASAN_UNPOISON_MEMORY_REGION(program_.arena().data(), program_.arena().bytes());
    ASAN_UNPOISON_MEMORY_REGION(program_.kv().buffer().data(), program_.kv().buffer().bytes());
  }
  RandomNodes(const RandomNodes&) = delete;
  RandomNodes& operator=(const RandomNodes&) = delete;

  const Model& model() const { return model_; }
  int rank() const { return rank_; }
  Program& program() { return program_; }

  // Loads an adapter that no request names, and removes it.
  void reload_adapter() { adapters_.reload(); }

  // Says whether some sequence holds a page of a page table.
  void hold_page(size_t table, int32_t page, bool held) const {
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      if (program_.kv().table(cache_of(layer)) != table) continue;
      const KvLayer kv = program_.kv().layer(cache_of(layer));
      const size_t bytes = static_cast<size_t>(kv.page_stride);
      if (held)
        ASAN_UNPOISON_MEMORY_REGION(kv.k + page * kv.page_stride, bytes);
      else
        ASAN_POISON_MEMORY_REGION(kv.k + page * kv.page_stride, bytes);
    }
  }

 protected:
  static constexpr int64_t kArenaBytes = 256 << 20;  // touched where it is used only
  static constexpr int64_t kGap = 4096;
  static constexpr int64_t kDividedRows = 5;

  int32_t group() const { return shape_.q_heads / shape_.kv_heads; }
  bool divides_queries() const { return shape_.latent() || shape_.cuts_groups; }
  Range own_keys() const {
    if (!divides_queries()) return part_of(shape_.kv_heads, model_, rank_);
    const auto [begin, end] = part_of(shape_.q_heads, model_, rank_);
    return {begin / group(), begin < end ? ceil_div(end, group()) : begin / group()};
  }
  Range own_queries() const {
    if (divides_queries()) return part_of(shape_.q_heads, model_, rank_);
    return {keys_.begin * group(), keys_.end * group()};
  }
  HeadGeometry heads(int64_t layer = 0) const {
    const bool shares = shape_.cuts_groups && keys_.begin < keys_.end;
    return {.q_heads = static_cast<int32_t>(queries_.end - queries_.begin),
            .kv_heads = static_cast<int32_t>(keys_.end - keys_.begin),
            .head_dim = layer % 2 == 1 && shape_.odd_head_dim > 0 ? shape_.odd_head_dim : shape_.head_dim,
            .value_dim = shape_.latent() ? shape_.value_dim : shape_.narrow_dim,
            .latent = shape_.latent(),
            .lower = shares ? static_cast<int32_t>(queries_.begin - keys_.begin * group()) : 0,
            .higher = shares ? static_cast<int32_t>(keys_.end * group() - queries_.end) : 0};
  }
  // Even layers are of the first kind, odd ones of the second.
  std::vector<CacheKind> kinds() const {
    if (shape_.window == 0) return {{.heads = heads(), .window = {}, .layers = shape_.layers}};
    return {{.heads = heads(), .window = {}, .layers = (shape_.layers + 1) / 2},
            {.heads = heads(1),
             .window = {.tokens = shape_.window, .aligned = shape_.chunked},
             .layers = shape_.layers / 2,
             .table = shape_.window_pages > 0}};
  }
  Limits limits() const {
    Limits all = model_.limits;
    if (shape_.window_pages > 0) all.window_pages = {shape_.window_pages};
    return all;
  }
  CacheIndex cache_of(int64_t layer) const {
    if (shape_.window == 0) return {0, layer};
    return {static_cast<int32_t>(layer % 2), layer / 2};
  }
  // Sequences are divided where every rank has heads, as workers/program/context_parallel.py has it.
  ContextParallel parallel() const {
    ContextParallel parallel;
    if (shape_.divided_from == 0 || model_.world() < 2) return parallel;
    parallel = {.head_bounds = {0},
                .world = model_.world(),
                .rank = rank_,
                .from = shape_.divided_from,
                .max_rows = kDividedRows};
    for (int rank = 0; rank < model_.world(); ++rank)
      parallel.head_bounds.push_back(static_cast<int32_t>(part_of(shape_.q_heads, model_, rank).end));
    return parallel;
  }

  static constexpr int32_t kTaps = 4, kKeyDim = 20;
  static int32_t gates_of(StateRule rule) {
    return rule == StateRule::kKeyDelta ? 1 + kKeyDim : rule == StateRule::kStateSpace ? 1 : 2;
  }
  Range delta_keys() const { return part_of(shape_.delta_keys, model_, rank_); }
  DeltaHeads delta_heads() const {
    const auto keys = static_cast<int32_t>(delta_keys().end - delta_keys().begin);
    return {.keys = keys,
            .values = keys * (shape_.delta_values / shape_.delta_keys),
            .key_dim = kKeyDim,
            .value_dim = 40,
            .gates = gates_of(shape_.rule)};
  }
  static int64_t conv_state_bytes(const DeltaHeads& heads) {
    return round_up((kTaps - 1) * heads.convolved() * static_cast<int64_t>(sizeof(float)), kLineBytes);
  }
  std::vector<StateKind> states() const {
    if (shape_.delta_keys == 0) return {};
    const DeltaHeads heads = delta_heads();
    return {{.slot_bytes = conv_state_bytes(heads) + round_up(heads.state_bytes(), kLineBytes),
             .page_bytes = 0,
             .draft_bytes = draft_offset(heads) + round_up(heads.replayed() * int64_t{sizeof(float)}, kLineBytes),
             .layers = (shape_.layers + 1) / 2}};
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
  Place rows(int64_t cols, int64_t item_bytes) { return room(model_.limits.max_step_tokens, cols, item_bytes); }

  // As `room`, but in the ring's slot of the step's next collective when there are several ranks.
  Place collective(int64_t count, int64_t cols) {
    Place place = room(count, cols, sizeof(float));
    if (ring_ != nullptr) place.collective = collectives_++;
    return place;
  }
  Place partial() { return collective(model_.limits.max_step_tokens, shape_.hidden); }

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
    const int64_t rows = model_.limits.max_step_tokens * rows_per_token + (rows_per_token > 1 ? kTileN - 1 : 0);
    const Place out = room(rows, round_up(quantized_bytes(weight.k(), weight.group()), kLineBytes), 1);
    program_.add(std::make_unique<QuantizeNode>(x, Quantized{out, weight.k(), weight.group()}, rows_per_token, false));
    return out;
  }

  // A product that adapters update, if the shape has some.
  void linear(const char* name, Place x, const PackedMatrix& weight, Place out,
              Activation activation = Activation::kNone) {
    if (!shape_.adapters || weight.n() == 0 || weight.k() == 0) return product(name, x, weight, out, activation);
    const AdapterWeights& adapters = adapters_.make(weight, ++tensors_);
    const Place shrunk = rows(adapters.shrunk_columns(), sizeof(float));
    program_.add(std::make_unique<ShrinkNode>(x, shrunk, adapters));
    product(name, x, weight, out, activation);
    LinearNode& updated = *program_.last<LinearNode>();
    updated.adapters = &adapters;
    updated.shrunk = shrunk;
  }
  void product(const char* name, Place x, const PackedMatrix& weight, Place out,
               Activation activation = Activation::kNone, bool logits = false) {
    const Place rows = operand(x, weight);
    auto node = std::make_unique<LinearNode>(name, rows, weight, out);
    RowsNode* before = program_.last<RowsNode>();
    const bool is_only_reader = joins_before_ || rows.offset != x.offset;
    if (is_only_reader && !logits && before != nullptr && before->made().offset == rows.offset) {
      before->has_product = true;
      node->before = before;
    }
    node->activation = activation;
    node->logits = logits;
    program_.add(std::move(node));
  }

  // residual += the sum of `part` over the ranks; returns the input of the next product.
  Place add_reduced(Place part, Place residual) {
    reduce(part, residual, false);
    return normed(residual);
  }
  // residual = the sum, with `assign`.
  void reduce(Place part, Place residual, bool assign) {
    const bool post = shape_.extras && !assign;
    auto node = std::make_unique<ReduceNode>(part, residual, post ? rows(shape_.hidden, sizeof(float)) : residual,
                                             shape_.hidden);
    node->assign = assign;
    node->bias = assign ? nullptr : extra(shape_.hidden, 0.0f);
    node->post_norm = assign ? nullptr : extra(shape_.hidden, 1.0f);
    node->eps = 1e-5f;
    if (LinearNode* const product = program_.last<LinearNode>()) {
      product->sum = node.get();
      node->product = product;
    }
    program_.add(std::move(node));
  }
  Place normed(Place residual) {
    const Place out = rows(shape_.hidden, sizeof(bf16));
    const float* weight = shape_.plain_inputs ? nullptr : vector(shape_.hidden, 1.0f).data();
    program_.add(std::make_unique<NormNode>(residual, weight, shape_.hidden, out, 1e-5f));
    return out;
  }

  const Model& model_;
  const Shape& shape_;
  int rank_;
  Range keys_, queries_, inter_, vocab_;
  ring::Ring* ring_;
  Team team_;
  Program program_;
  int64_t used_ = kGap;
  int32_t collectives_ = 0;
  uint64_t tensors_ = 0;
  bool joins_before_ = false;  // whether a product right after a norm is all that reads it
  std::deque<PackedMatrix> matrices_;
  RandomAdapters adapters_;
  std::deque<Vector> vectors_;
  Vector cos_, sin_;
};

}  // namespace numaserve::testing
