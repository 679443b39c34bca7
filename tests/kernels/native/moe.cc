// Routing and summing of a mixture of experts, see module.cc
#include <vector>

#include "kernels/runtime/experts/moe_operations.h"
#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

void route(const std::string& isa, Array<const float, 2> logits, int32_t num_experts, int32_t top_k,
           const std::string& scoring, bool renormalize, float scale, Maybe<const float, 1> correction,
           Maybe<const float, 1> factors, int32_t num_groups, int32_t top_groups, const std::string& group_score,
           Array<int32_t, 2> experts, Array<float, 2> weights) {
  const int64_t tokens = size(logits, 0);
  require(size(logits, 1) >= num_experts, "there are fewer logits than experts");
  require(size(experts, 0) == tokens && size(experts, 1) == top_k && size(weights, 0) == tokens &&
              size(weights, 1) == top_k,
          "the output has another shape");
  require(!correction || size(*correction, 0) == num_experts, "there is no correction for each expert");
  require(!factors || size(*factors, 0) == num_experts, "there is no factor for each expert");
  const std::optional<PaddedVector> added =
      correction ? std::optional<PaddedVector>({correction->data(), num_experts}) : std::nullopt;
  const RouteArgs args{.logits = logits.data(),
                       .ldl = size(logits, 1),
                       .num_experts = num_experts,
                       .top_k = top_k,
                       .scoring = scoring_of(scoring),
                       .renormalize = renormalize,
                       .scale = scale,
                       .correction = added ? added->padded.data() : nullptr,
                       .factors = data_or_null(factors),
                       .num_groups = num_groups,
                       .top_groups = top_groups,
                       .group_score = group_score_of(group_score)};
  operation::require_choice(args);
  for (int64_t t = 0; t < tokens; ++t)
    table_by_name(isa)->route(args, t, experts.data() + t * top_k, weights.data() + t * top_k);
}

void combine(const std::string& isa, Array<const float, 2> y, Array<const int32_t, 2> rows,
             Array<const float, 2> weights, Maybe<const float, 2> shared, bool accumulate, Array<float, 2> out,
             int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t tokens = size(out, 0), top_k = size(rows, 1);
  require(top_k >= 1 && top_k <= kMaxTopK, "too many experts for a token");
  require(size(rows, 0) == tokens && size(weights, 0) == tokens && size(weights, 1) == top_k + 1,
          "routes and weights differ in shape");
  require(size(out, 1) % kPad == 0 && size(y, 1) >= size(out, 1) &&
              (!shared || (size(*shared, 0) == tokens && size(*shared, 1) >= size(out, 1))),
          "what is summed is narrower than the sum");
  const int64_t ldr = 2 * top_k + 1;
  std::vector<int32_t> routes(static_cast<size_t>(tokens * ldr));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t row = rows(t, k);
      require(row < size(y, 0), "there is no such row");
      routes[static_cast<size_t>(t * ldr + k)] = row;
    }
    __builtin_memcpy(&routes[static_cast<size_t>(t * ldr + top_k)], weights.data() + t * (top_k + 1),
                     static_cast<size_t>(top_k + 1) * sizeof(float));
  }
  const CombineArgs args{.y = y.data(),
                         .ldy = size(y, 1),
                         .shared = data_or_null(shared),
                         .lds = shared ? size(*shared, 1) : 0,
                         .routes = routes.data(),
                         .ldr = ldr,
                         .top_k = static_cast<int32_t>(top_k),
                         .out = out.data(),
                         .ldo = size(out, 1),
                         .tokens = tokens,
                         .accumulate = accumulate};
  play_threads(threads, [&](int thread) { table.combine(args, thread, threads); });
}

void weigh_row(const std::string& isa, Array<const bf16, 1> x, float weight, Array<bf16, 1> out) {
  require(size(x, 0) == size(out, 0) && size(x, 0) % 16 == 0, "the rows differ in length, or end within a register");
  table_by_name(isa)->weigh_row(x.data(), weight, size(x, 0), out.data());
}

}  // namespace

void bind_moe(nb::module_& ops) {
  ops.def("route", &route, "isa"_a, "logits"_a, "num_experts"_a, "top_k"_a, "scoring"_a, "renormalize"_a, "scale"_a,
          "correction"_a.none(), "factors"_a.none(), "num_groups"_a, "top_groups"_a, "group_score"_a, "experts"_a,
          "weights"_a);
  ops.def("combine", &combine, "isa"_a, "y"_a, "rows"_a, "weights"_a, "shared"_a.none(), "accumulate"_a, "out"_a,
          "threads"_a);
  ops.def("weigh_row", &weigh_row, "isa"_a, "x"_a, "weight"_a, "out"_a);
}

}  // namespace numaserve
