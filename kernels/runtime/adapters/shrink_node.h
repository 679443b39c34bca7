// The node that begins the updates of a product by low-rank adapters, and its operation.
#pragma once

#include "kernels/runtime/adapters/adapter_weights.h"
#include "kernels/runtime/program/operations.h"

namespace numaserve {

// Multiplies the rows of sequences with an adapter by the A matrices of a product, which a later node adds. It runs
// only in steps that have such rows.
struct ShrinkNode : Node {
  ShrinkNode(Place x_in, Place out_in, const AdapterWeights& adapters_in)
      : Node("lora_shrink"), x(x_in), out(out_in), adapters(adapters_in) {
    of_adapters = true;
  }
  void run(Run& run, int thread) const override;
  std::span<const std::byte> reads_first(const Run& run, int thread, int64_t index) const override;
  Place x, out;
  const AdapterWeights& adapters;

 private:
  ShrinkArgs arguments(const Run& run) const;
};

namespace operation {

// out = the product of rows with an adapter and its A matrices, [rows, the columns of all parts].
struct Shrink {
  static constexpr const char* kKind = "lora_shrink";
  Place x, out;
  const AdapterWeights* adapters;
  void visit(auto&& field) { field("x", x), field("out", out), field("adapters", adapters); }
};

void add(Program& p, const Shrink& f);

}  // namespace operation
}  // namespace numaserve
