#include "kernels/runtime/experts/moe_operations.h"

#include <memory>
#include <stdexcept>

#include "kernels/runtime/experts/moe_nodes.h"

namespace numaserve {

Scoring scoring_of(std::string_view name) {
  if (name == "softmax") return Scoring::kSoftmax;
  if (name == "sigmoid") return Scoring::kSigmoid;
  throw std::invalid_argument("the score function of experts must be softmax or sigmoid");
}

GroupScore group_score_of(std::string_view name) {
  if (name == "max") return GroupScore::kMax;
  if (name == "top2") return GroupScore::kTop2;
  throw std::invalid_argument("the score function of expert groups must be max or top2");
}

namespace operation {
namespace {

// Checks that products of `weight` fit these operands and results.
void require_product(const std::string& name, const PackedMatrix& weight, const Place& x, const Place& out,
                     Activation activation, bool widened) {
  require(!widened || is_grouped(weight.format()), name,
          "only weights that are quantized in groups can be expanded to bf16");
  require(x.ld >= operand_columns(weight, widened), name, "the input has too few columns for the weight");
  require(out.ld >= weight.padded_n() / (is_gated(activation) ? 2 : 1), name,
          "the output has too few columns for the weight");
}

// Lets experts read what the experts before them make in the order of tiles.
void read_alone(ExpertsNode& product, const Program& p) {
  auto* maker = p.last<ExpertsNode>();
  require(maker != nullptr && maker->activation != Activation::kNone && maker->counts.offset == product.counts.offset &&
              maker->out.offset == product.x.offset && maker->out.ld == product.x.ld,
          product.name,
          "the operation directly before experts that read its result alone must be the experts that make it");
  require(!product.experts.empty() && product.experts.front()->format() == WeightFormat::kBf16, product.name,
          "only experts with bf16 weights take rows in the order of tiles");
  maker->read_alone = product.reads_alone = true;
}

}  // namespace

void require_choice(const RouteArgs& choice) {
  const char* kind = MoeRoute::kKind;
  require(choice.num_experts >= 1 && choice.num_experts <= kMaxExperts && choice.top_k >= 1 && choice.top_k <= kMaxTopK,
          kind, "the number of experts, or of experts per token, is out of range");
  require(choice.num_groups >= 1 && choice.num_experts % choice.num_groups == 0 && choice.top_groups >= 1 &&
              choice.top_groups <= choice.num_groups,
          kind, "expert groups must have the same size, and at least one group must be chosen");
  require(choice.top_k <= choice.num_experts / choice.num_groups * choice.top_groups, kind,
          "a token needs more experts than the chosen groups contain");
}

void add(Program& p, const MoeRoute& f) {
  const RouteArgs choice{.logits = nullptr,
                         .ldl = 0,
                         .num_experts = f.num_experts,
                         .top_k = f.top_k,
                         .scoring = f.scoring,
                         .renormalize = f.renormalize,
                         .scale = f.scale,
                         .correction = data_or_null(f.correction),
                         .factors = data_or_null(f.factors),
                         .num_groups = f.num_groups,
                         .top_groups = f.top_groups,
                         .group_score = f.group_score};
  require_choice(choice);
  require_size(f.correction, f.num_experts, f.kKind);
  require_size(f.factors, f.num_experts, f.kKind);
  require(f.first_expert >= 0 && f.local_experts >= 0 && f.first_expert + f.local_experts <= f.num_experts, f.kKind,
          "the experts of the rank must be experts of the model");
  require(f.logits.ld >= f.num_experts + (f.shared_gate ? 1 : 0) && f.x.ld == f.sorted.ld &&
              f.routes.ld >= 2 * f.top_k + 1 && f.counts.ld >= f.local_experts + 1,
          f.kKind, "the logits, the input, the chosen experts or the token counts have too few columns");
  require(f.cols >= 0 && f.group >= 0 && (f.item_bytes != 1 || f.x.ld >= quantized_bytes(f.cols, f.group)), f.kKind,
          "the rows of the input have no space for their scales");
  auto node = std::make_unique<RouteNode>(f.logits, f.x, f.sorted, MoePlaces{f.routes, f.counts}, choice);
  node->item_bytes = f.item_bytes;
  node->first_expert = f.first_expert;
  node->num_experts = f.local_experts;
  node->shared_gate = f.shared_gate;
  node->weighs_input = f.weighs_input;
  node->cols = f.cols;
  node->group = f.group;
  p.add(std::move(node));
}

void add(Program& p, const MoeExperts& f) {
  if (!f.weights.empty())
    require_size(f.bias, static_cast<int64_t>(f.weights.size()) * f.weights.front()->padded_n(), f.name);
  require(f.activation != Activation::kSwigluOai || f.limit > 0.0f, f.name,
          "the limit of the activation function must be above 0");
  require(f.counts.ld > static_cast<int64_t>(f.weights.size()), f.name,
          "the matrix of token counts needs a column for each expert");
  for (const PackedMatrix* weight : f.weights) {
    require(weight->format() == f.weights.front()->format() && weight->n() == f.weights.front()->n(), f.name,
            "all experts must have the same format and size");
    require_product(f.name, *weight, f.x, f.out, f.activation, f.widened);
  }
  auto node = std::make_unique<ExpertsNode>(f.name, f.x, f.out, f.counts, f.weights, p.next_counter());
  node->activation = f.activation;
  node->limit = f.limit;
  node->item_bytes = f.item_bytes;
  node->widened = f.widened;
  node->shared_widened = f.shared_widened;
  node->bias = data_or_null(f.bias);
  if (f.reads_alone) read_alone(*node, p);
  if (f.shared) {
    require_product(f.name, **f.shared, f.shared_x, f.shared_out, f.activation, f.shared_widened);
    node->shared = *f.shared;
    node->shared_x = f.shared_x;
    node->shared_out = f.shared_out;
    node->bytes += node->shared->bytes();
  }
  p.add(std::move(node));
}

void add(Program& p, const MoeCombine& f) {
  require(f.y.ld >= f.out.ld && (!f.shared || f.shared->ld >= f.out.ld), f.kKind,
          "the input has fewer columns than the output");
  require(f.top_k >= 1 && f.top_k <= kMaxTopK && f.routes.ld >= 2 * f.top_k + 1, f.kKind,
          "the matrix of chosen experts has too few columns");
  auto node = std::make_unique<CombineNode>(f.y, f.routes, f.out, f.top_k);
  node->accumulate = f.accumulate;
  node->has_shared = f.shared.has_value();
  if (f.shared) node->shared = *f.shared;
  if (auto* experts = p.last<ExpertsNode>(); experts != nullptr) join(*experts, *node);
  p.add(std::move(node));
}

}  // namespace operation
}  // namespace numaserve
