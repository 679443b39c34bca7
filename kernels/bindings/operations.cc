#include "kernels/bindings/operations.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/bindings/arguments.h"
#include "kernels/runtime/adapters/shrink_node.h"
#include "kernels/runtime/attention/latent_operations.h"
#include "kernels/runtime/experts/moe_operations.h"
#include "kernels/runtime/program/image_operations.h"
#include "kernels/runtime/program/operations.h"
#include "kernels/runtime/recurrent/recurrent_operations.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

struct Builder {
  std::string_view kind;
  void (*add)(Program& program, const nb::dict& fields, Kept& kept);
};

template <class Operation>
constexpr Builder kBuilder{Operation::kKind, [](Program& program, const nb::dict& fields, Kept& kept) {
                             add(program, arguments<Operation>(Operation::kKind, fields, kept));
                           }};

constexpr Builder kBuilders[] = {
    kBuilder<operation::Embed>,         kBuilder<operation::RmsNorm>,       kBuilder<operation::Quantize>,
    kBuilder<operation::Linear>,        kBuilder<operation::Reduce>,        kBuilder<operation::RopeStore>,
    kBuilder<operation::Attention>,     kBuilder<operation::Gather>,        kBuilder<operation::GatherColumns>,
    kBuilder<operation::Sample>,        kBuilder<operation::MoeRoute>,      kBuilder<operation::MoeExperts>,
    kBuilder<operation::MoeCombine>,    kBuilder<operation::LatentStore>,   kBuilder<operation::HeadLinear>,
    kBuilder<operation::QuantizeHeads>, kBuilder<operation::GatherQueries>, kBuilder<operation::DividedAttention>,
    kBuilder<operation::Pool>,          kBuilder<operation::CausalConv>,    kBuilder<operation::DividedNorm>,
    kBuilder<operation::GatedDelta>,    kBuilder<operation::GatedHeadNorm>, kBuilder<operation::SigmoidGate>,
    kBuilder<operation::StateSpace>,    kBuilder<operation::Narrow>,        kBuilder<operation::AddNorm>,
    kBuilder<operation::LayerInputs>,   kBuilder<operation::Multiply>,      kBuilder<operation::KeyDecays>,
    kBuilder<operation::KeyDelta>,      kBuilder<operation::GroupNorm>,     kBuilder<operation::LayerNorm>,
    kBuilder<operation::Pooled>,        kBuilder<operation::TokenRows>,     kBuilder<operation::PlaceRows>,
    kBuilder<operation::MergeRows>,     kBuilder<operation::Shrink>,        kBuilder<operation::RotaryRows>,
    kBuilder<operation::EmbedTaps>,     kBuilder<operation::MeanRows>,      kBuilder<operation::Clamp>,
};

void add_operation(Program& program, const std::string& kind, const nb::dict& fields) {
  for (const Builder& builder : kBuilders) {
    if (builder.kind != kind) continue;
    Kept kept;
    builder.add(program, fields, kept);
    // Nodes point into weights, vectors and tables, so these must live as long as the Program.
    for (nb::object& object : kept) program.keep(std::make_shared<nb::object>(std::move(object)));
    return;
  }
  throw std::invalid_argument("unknown operation '" + kind + "'");
}

}  // namespace

void bind_operations(nb::class_<Program>& program) {
  program.def("add", &add_operation, nb::arg("kind"), nb::arg("fields"));
}

}  // namespace numaserve
