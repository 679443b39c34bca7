// Operations with a state of each sequence, see module.cc
#include "kernels/include/recurrent_args.h"
#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

void causal_conv(const std::string& isa, Array<const float, 2> x, Array<const float, 2> weight,
                 Maybe<const float, 1> bias, bool silu, bool begins, Array<float, 2> state, Array<float, 2> out,
                 int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t taps = size(weight, 0), cols = size(weight, 1);
  require(taps >= 2 && taps <= kMaxConvTaps, "a convolution has from 2 to 8 taps");
  require(size(x, 1) >= cols && size(out, 1) % kPad == 0 && size(out, 1) >= cols && size(out, 0) == size(x, 0),
          "the input or the output has another shape");
  require(size(state, 0) == taps - 1 && size(state, 1) == cols, "the state has another shape");
  require(!bias || size(*bias, 0) == cols, "there is no bias for each column");
  const ConvArgs args{.x = x.data(),
                      .ldx = size(x, 1),
                      .count = size(x, 0),
                      .weight = weight.data(),
                      .ldw = cols,
                      .bias = data_or_null(bias),
                      .taps = static_cast<int32_t>(taps),
                      .silu = silu,
                      .begins = begins,
                      .state = state.data(),
                      .lds = cols,
                      .out = out.data(),
                      .ldo = size(out, 1),
                      .cols = cols};
  play_threads(threads, [&](int thread) { table.causal_conv(args, thread, threads); });
}

}  // namespace

void bind_recurrent(nb::module_& ops) {
  ops.def("causal_conv", &causal_conv, "isa"_a, "x"_a, "weight"_a, "bias"_a.none(), "silu"_a, "begins"_a, "state"_a,
          "out"_a, "threads"_a);
}

}  // namespace numaserve
