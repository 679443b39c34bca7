// Operations that take each row for itself, see module.cc
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/runtime/program/operations.h"
#include "kernels/runtime/weights/packed_matrix.h"
#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

void layer_inputs(const std::string& isa, Array<const float, 2> x, Array<const float, 1> weight, float eps,
                  Array<const int32_t, 1> tokens, const PackedMatrix& packed, float scale, Array<float, 2> out,
                  int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t width = size(weight, 0);
  require(packed.format() == WeightFormat::kBf16 && packed.k() % width == 0, "the table must be bf16, of whole layers");
  require(size(x, 0) == size(tokens, 0) && size(out, 0) == size(tokens, 0), "the numbers of rows differ");
  require(size(x, 1) >= packed.k() && size(out, 1) >= packed.k(), "too few columns");
  const LayerInputsArgs args{.x = x.data(),
                             .ldx = size(x, 1),
                             .groups = packed.k() / width,
                             .width = width,
                             .weight = weight.data(),
                             .eps = eps,
                             .tokens = tokens.data(),
                             .table = reinterpret_cast<const bf16*>(packed.data()),
                             .k_tiles = packed.depth() / kTileK,
                             .num_rows = packed.n(),
                             .scale = scale,
                             .out = out.data(),
                             .ldo = size(out, 1),
                             .rows = size(tokens, 0)};
  play_threads(threads, [&](int thread) { table.layer_inputs(args, thread, threads); });
}

void embed(const std::string& isa, Array<const int32_t, 1> tokens, const PackedMatrix& packed, int64_t first_row,
           float scale, bool accumulate, Array<float, 2> out, int threads) {
  const KernelTable& table = *table_by_name(isa);
  require(packed.format() == WeightFormat::kBf16, "the table must be bf16");
  require(size(out, 0) >= size(tokens, 0) && size(out, 1) >= packed.depth(), "the output is too small");
  const EmbedArgs args{.indices = tokens.data(),
                       .table = reinterpret_cast<const bf16*>(packed.data()),
                       .k_tiles = packed.depth() / kTileK,
                       .first_row = first_row,
                       .num_rows = packed.n(),
                       .scale = scale,
                       .accumulate = accumulate,
                       .out = out.data(),
                       .ld = size(out, 1),
                       .rows = size(tokens, 0)};
  play_threads(threads, [&](int thread) { table.embed(args, thread, threads); });
}

// Layer norms in fp32 or in bf16; in fp32 maybe in place.
template <class T>
void layer_norm(const std::string& isa, Array<const float, 2> x, Array<const float, 1> weight,
                std::optional<Array<const float, 1>> bias, float eps, Array<T, 2> out, int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t rows = size(x, 0), cols = size(weight, 0), ldo = size(out, 1);
  require(size(x, 1) >= cols && ldo >= cols && ldo % kPad == 0 && size(out, 0) == rows, "the sizes differ");
  require(!bias || size(*bias, 0) == cols, "the bias has another number of columns");
  LayerNormArgs args{.x = x.data(),
                     .ldx = size(x, 1),
                     .weight = weight.data(),
                     .bias = bias ? bias->data() : nullptr,
                     .out_f32 = nullptr,
                     .out_bf16 = nullptr,
                     .ldo = ldo,
                     .rows = rows,
                     .cols = cols,
                     .eps = eps};
  if constexpr (std::is_same_v<T, float>)
    args.out_f32 = out.data();
  else
    args.out_bf16 = out.data();
  play_threads(threads, [&](int thread) { table.layer_norm(args, thread, threads); });
}

// out [sequences, columns] = the vectors of sequences, given by their first row of x and the number of their rows.
void pool(const std::string& isa, Array<const float, 2> x, Array<const int32_t, 2> sequences,
          const std::string& pooling, std::optional<Array<const float, 1>> weight, int64_t cols, float eps,
          Array<float, 2> out, int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t count = size(sequences, 0);
  require(size(sequences, 1) == 2 && size(out, 0) == count, "the numbers of sequences differ");
  require(size(x, 1) >= cols && size(out, 1) >= cols && size(out, 1) % kPad == 0, "too few columns");
  std::vector<PooledRows> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back({sequences.data()[2 * i], sequences.data()[2 * i + 1]});
    require(rows.back().first >= 0 && rows.back().count > 0 && rows.back().first + rows.back().count <= size(x, 0),
            "a sequence has other rows than x");
  }
  const PoolArgs args{.x = x.data(),
                      .ldx = size(x, 1),
                      .sequences = rows.data(),
                      .num_sequences = count,
                      .pooling = pooling_of(pooling),
                      .weight = weight ? weight->data() : nullptr,
                      .out = out.data(),
                      .ldo = size(out, 1),
                      .cols = cols,
                      .eps = eps};
  play_threads(threads, [&](int thread) { table.pool(args, thread, threads); });
}

// Products in fp32 or in bf16; activations alone without x.
template <class T>
void multiply(const std::string& isa, std::optional<Array<const float, 2>> x, Array<const float, 2> y,
              const std::string& activation, int64_t cols, Array<T, 2> out, int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t rows = size(y, 0), ldo = size(out, 1);
  require((!x || size(*x, 1) >= cols) && size(y, 1) >= cols && ldo >= cols && ldo % kPad == 0, "too few columns");
  require((!x || size(*x, 0) == rows) && size(out, 0) == rows, "the numbers of rows differ");
  MultiplyArgs args{.x = x ? x->data() : nullptr,
                    .ldx = x ? size(*x, 1) : 0,
                    .y = y.data(),
                    .ldy = size(y, 1),
                    .activation = activation_of(activation),
                    .out_f32 = nullptr,
                    .out_bf16 = nullptr,
                    .ldo = ldo,
                    .rows = rows,
                    .cols = cols};
  if constexpr (std::is_same_v<T, float>)
    args.out_f32 = out.data();
  else
    args.out_bf16 = out.data();
  play_threads(threads, [&](int thread) { table.multiply(args, thread, threads); });
}

}  // namespace

void bind_rows(nb::module_& ops) {
  ops.def("layer_inputs", &layer_inputs, "isa"_a, "x"_a, "weight"_a, "eps"_a, "tokens"_a, "table"_a, "scale"_a, "out"_a,
          "threads"_a);
  ops.def("embed", &embed, "isa"_a, "tokens"_a, "table"_a, "first_row"_a, "scale"_a, "accumulate"_a, "out"_a,
          "threads"_a);
  ops.def("multiply", &multiply<float>, "isa"_a, "x"_a.none(), "y"_a, "activation"_a, "cols"_a, "out"_a, "threads"_a);
  ops.def("multiply_rounded", &multiply<bf16>, "isa"_a, "x"_a.none(), "y"_a, "activation"_a, "cols"_a, "out"_a,
          "threads"_a);
  ops.def("pool", &pool, "isa"_a, "x"_a, "sequences"_a, "pooling"_a, "weight"_a.none(), "cols"_a, "eps"_a, "out"_a,
          "threads"_a);
  ops.def("layer_norm", &layer_norm<float>, "isa"_a, "x"_a, "weight"_a, "bias"_a.none(), "eps"_a, "out"_a, "threads"_a);
  ops.def("layer_norm_rounded", &layer_norm<bf16>, "isa"_a, "x"_a, "weight"_a, "bias"_a.none(), "eps"_a, "out"_a,
          "threads"_a);
}

}  // namespace numaserve
