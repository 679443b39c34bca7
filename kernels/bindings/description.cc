// Descriptions of a Program, for tools that compare two.
#include "kernels/runtime/description.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "kernels/bindings/program.h"
#include "kernels/runtime/weight_file.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

nb::dict describe_operand(const Description::Operand& operand) {
  nb::dict out;
  out["role"] = operand.role;
  out["access"] = operand.access;
  out["type"] = operand.type;
  out["place"] = nb::make_tuple(operand.place.offset, operand.place.ld, operand.place.collective);
  return out;
}

nb::dict describe_weight(const Description::Weight& weight) {
  const PackedMatrix& matrix = *weight.matrix;
  nb::dict out;
  out["role"] = weight.role;
  out["shape"] = nb::make_tuple(matrix.n(), matrix.k());
  out["format"] = weight_format_name(matrix.format());
  out["group"] = matrix.group();
  out["offsets"] = offsets_name(matrix.offsets());
  out["checksum"] = checksum(matrix.data(), matrix.bytes());
  return out;
}

nb::dict describe_node(const Node& node, const Program& program, const Step& step) {
  Description told(step, program.kv().buffer().data());
  node.describe(told);
  nb::dict out, attributes;
  nb::list operands, weights, vectors;
  for (const auto& [name, value] : told.attributes) attributes[name.c_str()] = value;
  for (const auto& operand : told.operands) operands.append(describe_operand(operand));
  for (const auto& weight : told.weights) weights.append(describe_weight(weight));
  for (const auto& values : told.vectors) vectors.append(nb::make_tuple(values.role, values.count, values.checksum));
  out["name"] = node.name;
  out["attributes"] = attributes;
  out["operands"] = operands;
  out["weights"] = weights;
  out["vectors"] = vectors;
  return out;
}

nb::dict describe(Program& program) {
  const ContextParallel& parallel = program.context_parallel();
  nb::list nodes;
  for (const auto& node : program.nodes()) nodes.append(describe_node(*node, program, program.step()));
  nb::dict out;
  out["arena_bytes"] = program.arena().bytes();
  out["kv_bytes"] = program.kv().buffer().bytes();
  out["collectives"] = program.collectives();
  out["context_parallel"] = nb::make_tuple(parallel.world, parallel.from, parallel.max_rows);
  out["nodes"] = nodes;
  return out;
}

}  // namespace

void bind_describe(nb::class_<Program>& program) { program.def("describe", &describe); }

}  // namespace numaserve
