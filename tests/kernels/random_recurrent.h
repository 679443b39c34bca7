// A random recurrent layer of any rule: what workers/layers/mixers does for a real model.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/runtime/exchange/divided_norm.h"
#include "kernels/runtime/program/stream_nodes.h"
#include "kernels/runtime/recurrent/conv_node.h"
#include "kernels/runtime/recurrent/delta_node.h"
#include "kernels/runtime/recurrent/gate_nodes.h"
#include "tests/kernels/random_nodes.h"

namespace numaserve::testing {

class RecurrentNodes : public RandomNodes {
 public:
  using RandomNodes::RandomNodes;

 protected:
  Place recurrent(Place x, int64_t layer) {
    const DeltaHeads own = delta_heads();
    const int64_t key_dim = own.key_dim, value_dim = own.value_dim, group = shape_.delta_values / shape_.delta_keys;
    const Range keys = delta_keys(), values{keys.begin * group, keys.end * group};
    const int64_t keys_all = shape_.delta_keys * key_dim, values_all = shape_.delta_values * value_dim;
    const Range q{keys.begin * key_dim, keys.end * key_dim}, k{keys_all + q.begin, keys_all + q.end};
    const Range v{2 * keys_all + values.begin * value_dim, 2 * keys_all + values.end * value_dim};
    const Range z{v.begin + values_all, v.end + values_all};
    PackedMatrix& weight = matrix(own.convolved() + own.values * value_dim, shape_.hidden);
    pack(weight, 2 * keys_all + 2 * values_all, shape_.hidden, {q, k, v, z}, 0, {0, 1, 0});
    const Place qkvz = rows(weight.n(), sizeof(float));
    linear("linear", x, weight, qkvz);
    const Place gates = gates_of_heads(x, own, values);

    const Place convolved = rows(own.convolved(), sizeof(float)), made = rows(own.values * value_dim, sizeof(float));
    const CacheIndex state{0, layer / 2};
    auto conv = std::make_unique<ConvNode>(qkvz, convolved, chosen(2 * keys_all + values_all, kTaps, 0.0f, {q, k, v}),
                                           kTaps, state);
    conv->silu = true;
    program_.add(std::move(conv));
    const auto [name, apply] = function();
    auto delta = std::make_unique<DeltaNode>(convolved, gates, made, own, state, conv_state_bytes(own), name, apply);
    delta->decay = padded_vector(chosen(shape_.delta_values, 1, -0.3f, {values}));
    delta->decay_bias = padded_vector(chosen(shape_.delta_values, 1, 0.0f, {values}));
    delta->skip = padded_vector(chosen(shape_.delta_values, 1, 0.0f, {values}));
    delta->least_step = 0.1f;
    delta->most_step = 2.0f;
    const DeltaNode& rule = *delta;
    program_.add(std::move(delta));
    program_.add(std::make_unique<KeepDraftsNode>(rule));
    const Place gate{
        .offset = qkvz.offset + own.convolved() * static_cast<int64_t>(sizeof(float)), .ld = qkvz.ld, .collective = -1};
    const Place out = shape_.rule == StateRule::kStateSpace
                          ? gated_and_normed(made, gate, {values.begin * value_dim, values.end * value_dim})
                          : normed_and_gated(made, gate, own);
    PackedMatrix& o = matrix(shape_.hidden, own.values * value_dim);
    pack(o, shape_.hidden, values_all, {{0, shape_.hidden}}, values.begin * value_dim, {0, 1, 0});
    const Place part = partial();
    linear("linear_partial", out, o, part);
    return part;
  }

 private:
  std::pair<const char*, DeltaFunction> function() const {
    if (shape_.rule == StateRule::kKeyDelta) return {"key_delta", &KernelTable::key_delta};
    if (shape_.rule == StateRule::kStateSpace) return {"state_space", &KernelTable::state_space};
    return {"gated_delta", &KernelTable::gated_delta};
  }

  Place gates_of_heads(Place x, const DeltaHeads& own, Range values) {
    const int64_t all = own.gates * shape_.delta_values, rest = own.gates - 1;
    PackedMatrix& weight = matrix(own.gates * own.values, shape_.hidden);
    const Range others{shape_.delta_values + values.begin * rest, shape_.delta_values + values.end * rest};
    pack(weight, all, shape_.hidden, rest == 0 ? std::vector<Range>{values} : std::vector<Range>{values, others}, 0,
         {0, 1, 0});
    const Place made = rows(weight.n(), sizeof(float));
    linear("linear", x, weight, made);
    if (shape_.rule != StateRule::kKeyDelta) return made;
    const Place decays{
        .offset = made.offset + own.values * static_cast<int64_t>(sizeof(float)), .ld = made.ld, .collective = -1};
    const Place gates = rows(own.gates * own.values, sizeof(float));
    const float* const decay = padded_vector(chosen(shape_.delta_values, 1, -0.3f, {values}));
    const float* const bias = padded_vector(chosen(shape_.delta_values, own.key_dim, 0.0f, {values}));
    program_.add(std::make_unique<KeyDecaysNode>(made, decays, gates, decay, bias, own.values, own.key_dim));
    return gates;
  }

  Place normed_and_gated(Place made, Place gate, const DeltaHeads& own) {
    const Place out = rows(own.values * own.value_dim, sizeof(bf16));
    const float* norm = padded_vector(random_values(own.value_dim, ++tensors_, 0.1f, 1.0f));
    auto node = std::make_unique<GatedNormNode>(made, gate, out, norm, own.values, own.value_dim, 1e-6f);
    node->silu = shape_.rule == StateRule::kGatedDelta;
    program_.add(std::move(node));
    return out;
  }

  // The value heads of a key head are a group with a norm, where groups fill cache lines; else the norm is over the
  // columns of all ranks.
  Place gated_and_normed(Place made, Place gate, Range columns) {
    const int64_t cols = columns.end - columns.begin, all = int64_t{shape_.delta_values} * delta_heads().value_dim;
    const Place gated = rows(cols, sizeof(float)), out = rows(cols, sizeof(bf16));
    program_.add(std::make_unique<MultiplyNode>(made, gate, gated, Activation::kSilu, cols, /*rounded=*/false));
    const int64_t group = all / shape_.delta_keys;
    if (group % kPad == 0) {
      const float* const weight = padded_vector(chosen(all, 1, 1.0f, {columns}));
      std::vector<const float*> weights;
      for (int64_t at = 0; at < cols; at += group) weights.push_back(weight + at);
      program_.add(std::make_unique<GroupNormNode>(gated, std::move(weights), group, out, 1e-5f));
      return out;
    }
    std::vector<DividedVector> vectors{{padded_vector(chosen(all, 1, 1.0f, {columns})), cols, cols, all}};
    const Place sums = collective(model_.limits.max_step_tokens, 1);
    program_.add(std::make_unique<DividedNormNode>(gated, sums, std::move(vectors), 1e-5f));
    program_.add(std::make_unique<NormNode>(gated, nullptr, cols, out, 0.0f));
    return out;
  }

  // Values of the chosen ones of `count` columns, `each` of every column.
  Vector chosen(int64_t count, int64_t each, float offset, const std::vector<Range>& columns) {
    const Vector all = random_values(count * each, ++tensors_, 0.3f, offset);
    Vector own;
    for (const Range& range : columns)
      own.insert(own.end(), all.begin() + range.begin * each, all.begin() + range.end * each);
    return own;
  }
};

}  // namespace numaserve::testing
