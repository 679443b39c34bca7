// A random gated delta network: what workers/layers/mixers does for a real model.
#pragma once

#include <memory>
#include <vector>

#include "kernels/runtime/recurrent/conv_node.h"
#include "kernels/runtime/recurrent/delta_node.h"
#include "kernels/runtime/recurrent/gate_nodes.h"
#include "tests/kernels/random_nodes.h"

namespace numaserve::testing {

class RecurrentNodes : public RandomNodes {
 public:
  using RandomNodes::RandomNodes;

 protected:
  Place gated_delta(Place x, int64_t layer) {
    const DeltaHeads own = delta_heads();
    const int64_t key_dim = own.key_dim, value_dim = own.value_dim, group = shape_.delta_values / shape_.delta_keys;
    const Range keys = delta_keys(), values{keys.begin * group, keys.end * group};
    const int64_t keys_all = shape_.delta_keys * key_dim, values_all = shape_.delta_values * value_dim;
    const Range q{keys.begin * key_dim, keys.end * key_dim}, k{keys_all + q.begin, keys_all + q.end};
    const Range v{2 * keys_all + values.begin * value_dim, 2 * keys_all + values.end * value_dim};
    const Range z{v.begin + values_all, v.end + values_all};
    PackedMatrix& weight = matrix(own.convolved() + own.values * value_dim, shape_.hidden);
    pack(weight, 2 * keys_all + 2 * values_all, shape_.hidden, {q, k, v, z}, 0, {0, 1, 0});
    PackedMatrix& gate_weight = matrix(2 * own.values, shape_.hidden);
    const Range b = values, a{b.begin + shape_.delta_values, b.end + shape_.delta_values};
    pack(gate_weight, 2 * shape_.delta_values, shape_.hidden, {b, a}, 0, {0, 1, 0});
    const Place qkvz = rows(weight.n(), sizeof(float)), gates = rows(gate_weight.n(), sizeof(float));
    linear("linear", x, weight, qkvz);
    linear("linear", x, gate_weight, gates);

    const Place convolved = rows(own.convolved(), sizeof(float)), made = rows(own.values * value_dim, sizeof(float));
    const CacheIndex state{0, layer / 2};
    auto conv = std::make_unique<ConvNode>(qkvz, convolved, chosen(2 * keys_all + values_all, kTaps, 0.0f, {q, k, v}),
                                           kTaps, state);
    conv->silu = true;
    program_.add(std::move(conv));
    auto delta = std::make_unique<DeltaNode>(convolved, gates, made, own, state, conv_state_bytes(own));
    delta->decay = padded_vector(chosen(shape_.delta_values, 1, -0.3f, {values}));
    delta->decay_bias = padded_vector(chosen(shape_.delta_values, 1, 0.0f, {values}));
    program_.add(std::move(delta));
    const Place gate{
        .offset = qkvz.offset + own.convolved() * static_cast<int64_t>(sizeof(float)), .ld = qkvz.ld, .collective = -1};
    const Place out = rows(own.values * value_dim, sizeof(bf16));
    const float* norm = padded_vector(random_values(value_dim, ++tensors_, 0.1f, 1.0f));
    program_.add(std::make_unique<GatedNormNode>(made, gate, out, norm, own.values, value_dim, 1e-6f));
    PackedMatrix& o = matrix(shape_.hidden, own.values * value_dim);
    pack(o, shape_.hidden, values_all, {{0, shape_.hidden}}, values.begin * value_dim, {0, 1, 0});
    const Place part = partial();
    linear("linear_partial", out, o, part);
    return part;
  }

 private:
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
