// The nodes of a mixture of experts, for Program.
#include <memory>
#include <utility>

#include "kernels/program_module.h"
#include "kernels/runtime/moe_nodes.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

Scoring scoring_of(const std::string& name) {
  if (name == "softmax") return Scoring::kSoftmax;
  if (name == "sigmoid") return Scoring::kSigmoid;
  throw std::invalid_argument("experts are scored by softmax or sigmoid");
}

GroupScore group_score_of(const std::string& name) {
  if (name == "max") return GroupScore::kMax;
  if (name == "top2") return GroupScore::kTop2;
  throw std::invalid_argument("groups of experts are scored by max or top2");
}

}  // namespace

RouteArgs routing(int32_t num_experts, int32_t top_k, const std::string& scoring, bool renormalize, float scale,
                  const PaddedVector* correction, int32_t num_groups, int32_t top_groups,
                  const std::string& group_score) {
  const std::string node = "moe_route";
  require(num_experts >= 1 && num_experts <= kMaxExperts && top_k >= 1 && top_k <= kMaxTopK, node,
          "too many experts, or none");
  require(num_groups >= 1 && num_experts % num_groups == 0 && top_groups >= 1 && top_groups <= num_groups, node,
          "the experts cannot be divided into so many groups");
  require(top_k <= num_experts / num_groups * top_groups, node, "more experts are wanted than can be chosen");
  require_size(correction, num_experts, node);
  return {.logits = nullptr,
          .ldl = 0,
          .num_experts = num_experts,
          .top_k = top_k,
          .scoring = scoring_of(scoring),
          .renormalize = renormalize,
          .scale = scale,
          .correction = data_or_null(correction),
          .num_groups = num_groups,
          .top_groups = top_groups,
          .group_score = group_score_of(group_score)};
}

namespace {

void add_route(Program& p, const PlaceTuple& logits, const PlaceTuple& x, const PlaceTuple& sorted,
               const PlaceTuple& routes, const PlaceTuple& counts, int64_t item_bytes, int32_t first_expert,
               int32_t local_experts, bool shared_gate, int32_t num_experts, int32_t top_k, const std::string& scoring,
               bool renormalize, float scale, const PaddedVector* correction, int32_t num_groups, int32_t top_groups,
               const std::string& group_score) {
  const RouteArgs choice =
      routing(num_experts, top_k, scoring, renormalize, scale, correction, num_groups, top_groups, group_score);
  require(first_expert >= 0 && local_experts >= 0 && first_expert + local_experts <= num_experts, "moe_route",
          "there are no such experts");
  require(place(logits).ld >= num_experts + (shared_gate ? 1 : 0) && place(x).ld == place(sorted).ld &&
              place(routes).ld >= 2 * top_k + 1 && place(counts).ld >= local_experts + 1,
          "moe_route", "a matrix is too narrow");
  auto node = std::make_unique<RouteNode>(place(logits), place(x), place(sorted),
                                          MoePlaces{place(routes), place(counts)}, choice);
  node->item_bytes = item_bytes;
  node->first_expert = first_expert;
  node->num_experts = local_experts;
  node->shared_gate = shared_gate;
  p.add(std::move(node));
}

// Checks that products of `weight` can be taken from and to these.
void require_product(const std::string& name, const PackedMatrix& weight, const Place& x, const Place& out,
                     Activation activation, bool widened) {
  require(!widened || is_grouped(weight.format()), name, "only codes in groups are widened");
  require(x.ld >= operand_columns(weight, widened), name, "the input is narrower than the weight");
  require(out.ld >= weight.padded_n() / (activation == Activation::kNone ? 1 : 2), name,
          "the output is narrower than the weight");
}

void add_experts(Program& p, const std::string& name, const PlaceTuple& x, const std::vector<PackedMatrix*>& weights,
                 const PaddedVector* bias, const PlaceTuple& out, const PlaceTuple& counts, const PackedMatrix* shared,
                 const PlaceTuple& shared_x, const PlaceTuple& shared_out, const std::string& activation, float limit,
                 int64_t item_bytes, bool widened, bool shared_widened) {
  auto node = std::make_unique<ExpertsNode>(name, place(x), place(out), place(counts),
                                            std::vector<const PackedMatrix*>(weights.begin(), weights.end()));
  node->activation = activation_of(activation);
  node->limit = limit;
  node->item_bytes = item_bytes;
  node->widened = widened;
  node->shared_widened = shared_widened;
  if (!weights.empty()) require_size(bias, static_cast<int64_t>(weights.size()) * weights.front()->padded_n(), name);
  node->bias = data_or_null(bias);
  require(activation != "swiglu_oai" || limit > 0.0f, name, "the limit must be above 0");
  require(place(counts).ld > static_cast<int64_t>(weights.size()), name, "there is no room to count all experts");
  for (const PackedMatrix* weight : weights) {
    require(weight->format() == weights.front()->format() && weight->n() == weights.front()->n(), name,
            "the experts differ in format or size");
    require_product(name, *weight, node->x, node->out, node->activation, widened);
  }
  if (shared != nullptr) {
    node->shared = shared;
    node->shared_x = place(shared_x);
    node->shared_out = place(shared_out);
    node->bytes += shared->bytes();
    require_product(name, *shared, node->shared_x, node->shared_out, node->activation, shared_widened);
  }
  p.add(std::move(node));
}

void add_combine(Program& p, const PlaceTuple& y, const PlaceTuple& routes, int32_t top_k,
                 const std::optional<PlaceTuple>& shared, bool accumulate, const PlaceTuple& out) {
  auto node = std::make_unique<CombineNode>(place(y), place(routes), place(out), top_k);
  require(node->y.ld >= node->out.ld && (!shared || place(*shared).ld >= node->out.ld), "moe_combine",
          "what is summed is narrower than the sum");
  require(top_k >= 1 && top_k <= kMaxTopK && node->routes.ld >= 2 * top_k + 1, "moe_combine",
          "the routes are too narrow");
  node->accumulate = accumulate;
  node->has_shared = shared.has_value();
  if (shared) node->shared = place(*shared);
  p.add(std::move(node));
}

}  // namespace

void bind_moe(nb::class_<Program>& program) {
  program
      .def("moe_route", &add_route, nb::arg("logits"), nb::arg("x"), nb::arg("sorted"), nb::arg("routes"),
           nb::arg("counts"), nb::arg("item_bytes"), nb::arg("first_expert"), nb::arg("local_experts"),
           nb::arg("shared_gate"), nb::arg("num_experts"), nb::arg("top_k"), nb::arg("scoring"), nb::arg("renormalize"),
           nb::arg("scale"), nb::arg("correction").none(), nb::arg("num_groups"), nb::arg("top_groups"),
           nb::arg("group_score"), nb::keep_alive<1, 16>())
      .def("moe_experts", &add_experts, nb::arg("name"), nb::arg("x"), nb::arg("weights"), nb::arg("bias").none(),
           nb::arg("out"), nb::arg("counts"), nb::arg("shared").none(), nb::arg("shared_x"), nb::arg("shared_out"),
           nb::arg("activation"), nb::arg("limit"), nb::arg("item_bytes"), nb::arg("widened"),
           nb::arg("shared_widened"), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 8>())
      .def("moe_combine", &add_combine, nb::arg("y"), nb::arg("routes"), nb::arg("top_k"), nb::arg("shared").none(),
           nb::arg("accumulate"), nb::arg("out"));
}

}  // namespace numaserve
