#include "kernels/bindings/operations.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/bindings/arguments.h"
#include "kernels/runtime/latent_operations.h"
#include "kernels/runtime/moe_operations.h"
#include "kernels/runtime/operations.h"

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
};

void add_operation(Program& program, const std::string& kind, const nb::dict& fields) {
  for (const Builder& builder : kBuilders) {
    if (builder.kind != kind) continue;
    Kept kept;
    builder.add(program, fields, kept);
    // Nodes point into weights, vectors and tables: these live as long as the Program.
    for (nb::object& object : kept) program.keep(std::make_shared<nb::object>(std::move(object)));
    return;
  }
  throw std::invalid_argument("there is no operation '" + kind + "'");
}

// The operation as a method: positional arguments are the first fields.
template <class Operation>
void bind_method(nb::class_<Program>& program, const char* name) {
  program.def(name, [](Program& self, const nb::args& args, const nb::kwargs& kwargs) {
    nb::dict fields(kwargs);
    size_t index = 0;
    Operation{}.visit([&](const char* field, auto&) {
      if (index < args.size()) fields[field] = args[index];
      ++index;
    });
    if constexpr (requires { Operation::sinks; })
      if (!fields.contains("sinks")) fields["sinks"] = nb::none();
    add_operation(self, Operation::kKind, fields);
  });
}

}  // namespace

void bind_operations(nb::class_<Program>& program) {
  program.def("add", &add_operation, nb::arg("kind"), nb::arg("fields"));
  bind_method<operation::Embed>(program, "embed");
  bind_method<operation::RmsNorm>(program, "rms_norm");
  bind_method<operation::Quantize>(program, "quantize");
  bind_method<operation::Linear>(program, "linear");
  bind_method<operation::Reduce>(program, "reduce");
  bind_method<operation::RopeStore>(program, "rope_store");
  bind_method<operation::Attention>(program, "attention");
  bind_method<operation::Gather>(program, "gather");
  bind_method<operation::GatherColumns>(program, "gather_columns");
  bind_method<operation::Sample>(program, "sample");
  bind_method<operation::MoeRoute>(program, "moe_route");
  bind_method<operation::MoeExperts>(program, "moe_experts");
  bind_method<operation::MoeCombine>(program, "moe_combine");
  bind_method<operation::LatentStore>(program, "mla_store");
  bind_method<operation::HeadLinear>(program, "head_linear");
  bind_method<operation::QuantizeHeads>(program, "quantize_heads");
  bind_method<operation::GatherQueries>(program, "gather_queries");
  bind_method<operation::DividedAttention>(program, "divided_attention");
}

}  // namespace numaserve
