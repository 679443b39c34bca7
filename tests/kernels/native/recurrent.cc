// Operations with a state of each sequence, see module.cc
#include <algorithm>
#include <vector>

#include "kernels/include/recurrent_args.h"
#include "kernels/runtime/machine/memory.h"
#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

void causal_conv(const std::string& isa, Array<const float, 2> x, Array<const float, 2> weight,
                 Maybe<const float, 1> bias, bool silu, Maybe<const float, 2> before, Array<float, 2> after,
                 Array<float, 2> out, int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t taps = size(weight, 0), cols = size(weight, 1);
  require(taps >= 2 && taps <= kMaxConvTaps, "a convolution has from 2 to 8 taps");
  require(size(x, 1) >= cols && size(out, 1) % kPad == 0 && size(out, 1) >= cols && size(out, 0) == size(x, 0),
          "the input or the output has another shape");
  require(size(after, 0) == taps - 1 && size(after, 1) == cols, "the state has another shape");
  require(!before || (size(*before, 0) == taps - 1 && size(*before, 1) == cols), "the state has another shape");
  require(!bias || size(*bias, 0) == cols, "there is no bias for each column");
  const ConvArgs args{.x = x.data(),
                      .ldx = size(x, 1),
                      .count = size(x, 0),
                      .weight = weight.data(),
                      .ldw = cols,
                      .bias = data_or_null(bias),
                      .taps = static_cast<int32_t>(taps),
                      .silu = silu,
                      .before = data_or_null(before),
                      .after = after.data(),
                      .lds = cols,
                      .kept = nullptr,
                      .drafted = nullptr,
                      .ldd = 0,
                      .replayed = 0,
                      .out = out.data(),
                      .ldo = size(out, 1),
                      .cols = cols};
  play_threads(threads, [&](int thread) { table.causal_conv(args, thread, threads); });
}

// `segments`: rows of (row, count, load, store) of one sequence, in order; an item has `strips` of `columns`. With
// `skip` and `steps`, the least and the most one, it is a state space; without `decay_bias`, which is empty then, each
// dimension of keys decays by itself.
void gated_delta(const std::string& isa, Array<const float, 2> x, Array<const float, 2> gates,
                 Array<const float, 1> decay, Array<const float, 1> decay_bias, int32_t key_heads, int32_t key_dim,
                 int32_t value_dim, Array<const int32_t, 2> segments, Array<float, 2> states, Array<float, 2> out,
                 int32_t columns, int32_t strips, Maybe<const float, 1> skip, Maybe<const float, 1> steps) {
  const KernelTable& table = *table_by_name(isa);
  const auto heads = static_cast<int32_t>(size(decay, 0));
  const bool by_key = size(decay_bias, 0) == 0;
  require(key_heads > 0 && heads % key_heads == 0 && (by_key || size(decay_bias, 0) == heads),
          "the heads do not fit each other");
  const int32_t gates_each = by_key ? 1 + key_dim : skip ? 1 : 2;
  require(size(x, 1) >= 2 * key_heads * key_dim + heads * value_dim && size(gates, 1) >= gates_each * heads,
          "the input has too few columns");
  require(size(gates, 0) == size(x, 0) && size(out, 0) == size(x, 0) && size(out, 1) >= heads * value_dim,
          "the input or the output has another shape");
  require(size(states, 1) == heads * (key_dim * value_dim + ceil_div(value_dim, kScaleColumns)),
          "the states have another size");
  require(skip.has_value() == steps.has_value(), "a state space has factors and a range of steps");
  require(!skip || (size(*skip, 0) == heads && size(*steps, 0) == 2), "there is no factor for each head");
  require(columns == 16 || columns == kStripColumns, "a strip has 16 or 32 columns");
  require(strips >= 1, "an item has strips");
  std::vector<StateSegment> chain;
  for (int64_t i = 0; i < size(segments, 0); ++i) {
    chain.push_back({segments(i, 0), segments(i, 1), segments(i, 2), segments(i, 3), 0});
    const StateSegment& s = chain.back();
    require(s.row >= 0 && s.count >= 0 && s.row + s.count <= size(x, 0), "a segment has rows that there are not");
    require(s.load < size(states, 0) && s.store >= 0 && s.store < size(states, 0), "there is no such state");
  }
  const DeltaArgs args{.x = x.data(),
                       .ldx = size(x, 1),
                       .gates = gates.data(),
                       .ldg = size(gates, 1),
                       .decay = decay.data(),
                       .decay_bias = decay_bias.data(),
                       .key_heads = key_heads,
                       .value_heads = heads,
                       .key_dim = key_dim,
                       .value_dim = value_dim,
                       .states = reinterpret_cast<std::byte*>(states.data()),
                       .state_bytes = size(states, 1) * static_cast<int64_t>(sizeof(float)),
                       .drafts = nullptr,
                       .slot_bytes = 0,
                       .ldd = 0,
                       .out = out.data(),
                       .ldo = size(out, 1),
                       .skip = data_or_null(skip),
                       .least_step = steps ? (*steps)(0) : 0.0f,
                       .most_step = steps ? (*steps)(1) : 0.0f};
  const auto apply = by_key ? table.key_delta : skip ? table.state_space : table.gated_delta;
  const LargeBuffer scratch(static_cast<size_t>(kDeltaScratch));
  for (int32_t head = 0; head < heads; ++head)
    for (int32_t column = 0; column < value_dim; column += columns * strips)
      apply(args,
            {.segments = chain.data(),
             .num_segments = static_cast<int64_t>(chain.size()),
             .head = head,
             .column = column,
             .columns = columns,
             .strips = std::min(strips, static_cast<int32_t>(ceil_div(value_dim - column, columns))),
             .ahead = nullptr},
            scratch.data());
}

void gated_head_norm(const std::string& isa, Array<const float, 2> x, Array<const float, 2> gate,
                     Array<const float, 1> weight, float eps, int64_t heads, Array<bf16, 2> out, int threads,
                     bool silu) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t cols = heads * size(weight, 0);
  require(size(x, 1) >= cols && size(gate, 1) >= cols && size(out, 1) >= round_up(cols, kPad), "too few columns");
  require(size(gate, 0) == size(x, 0) && size(out, 0) == size(x, 0), "the numbers of rows differ");
  const GatedNormArgs args{.x = x.data(),
                           .ldx = size(x, 1),
                           .gate = gate.data(),
                           .ldg = size(gate, 1),
                           .weight = weight.data(),
                           .out = out.data(),
                           .ldo = size(out, 1),
                           .rows = size(x, 0),
                           .heads = heads,
                           .dim = size(weight, 0),
                           .eps = eps,
                           .silu = silu};
  play_threads(threads, [&](int thread) { table.gated_norm(args, thread, threads); });
}

void key_decays(const std::string& isa, Array<const float, 2> b, Array<const float, 2> x, Array<const float, 1> decay,
                Array<const float, 1> bias, int64_t key_dim, Array<float, 2> out, int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t rows = size(b, 0), heads = size(decay, 0), cols = heads * key_dim;
  require(size(x, 0) == rows && size(out, 0) == rows, "the numbers of rows differ");
  require(size(b, 1) >= heads && size(x, 1) >= cols && size(bias, 0) == cols && size(out, 1) >= heads + cols,
          "too few columns");
  const KeyDecaysArgs args{.b = b.data(),
                           .ldb = size(b, 1),
                           .x = x.data(),
                           .ldx = size(x, 1),
                           .decay = decay.data(),
                           .bias = bias.data(),
                           .out = out.data(),
                           .ldo = size(out, 1),
                           .rows = rows,
                           .heads = heads,
                           .key_dim = key_dim};
  play_threads(threads, [&](int thread) { table.key_decays(args, thread, threads); });
}

void sigmoid_gate(const std::string& isa, Array<bf16, 2> x, Array<const float, 2> gate, int64_t cols, int threads) {
  const KernelTable& table = *table_by_name(isa);
  require(size(x, 1) >= round_up(cols, kPad) && size(gate, 1) >= cols, "too few columns");
  require(size(gate, 0) == size(x, 0), "the numbers of rows differ");
  const SigmoidGateArgs args{
      .x = x.data(), .ldx = size(x, 1), .gate = gate.data(), .ldg = size(gate, 1), .rows = size(x, 0), .cols = cols};
  play_threads(threads, [&](int thread) { table.sigmoid_gate(args, thread, threads); });
}

}  // namespace

void bind_recurrent(nb::module_& ops) {
  ops.def("causal_conv", &causal_conv, "isa"_a, "x"_a, "weight"_a, "bias"_a.none(), "silu"_a, "before"_a.none(),
          "after"_a, "out"_a, "threads"_a);
  ops.def("gated_delta", &gated_delta, "isa"_a, "x"_a, "gates"_a, "decay"_a, "decay_bias"_a, "key_heads"_a, "key_dim"_a,
          "value_dim"_a, "segments"_a, "states"_a, "out"_a, "columns"_a, "strips"_a, "skip"_a = nb::none(),
          "steps"_a = nb::none());
  ops.def("gated_head_norm", &gated_head_norm, "isa"_a, "x"_a, "gate"_a, "weight"_a, "eps"_a, "heads"_a, "out"_a,
          "threads"_a, "silu"_a = true);
  ops.def("key_decays", &key_decays, "isa"_a, "b"_a, "x"_a, "decay"_a, "bias"_a, "key_dim"_a, "out"_a, "threads"_a);
  ops.def("sigmoid_gate", &sigmoid_gate, "isa"_a, "x"_a, "gate"_a, "cols"_a, "threads"_a);
}

}  // namespace numaserve
