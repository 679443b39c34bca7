// Kernels on NumPy arrays, for tests of how they work: orders of tiles, blocks, lines of memory, shares of threads.
// Programs of one operation show their results; see one_operation.py. A module of its own, which knows the classes of
// numaserve.kernels and is in no wheel.
//
// A call plays all threads of a team one after the other on the calling thread: the parts of an operation are
// independent between two barriers, so the result is that of a real team. Arrays come padded as the kernels want
// them; results are written to arrays of the caller.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/blocking.h"
#include "kernels/gemm/tiles/line_uses.h"
#include "kernels/include/shares.h"
#include "kernels/runtime/machine/memory.h"
#include "kernels/runtime/program/operations.h"
#include "kernels/runtime/weights/packed_matrix.h"
#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

QuantizeArgs quantize_args(const bf16* x, int64_t ldx, int8_t* out, int64_t ldo, int64_t rows, int64_t cols,
                           int64_t group) {
  return {.x = x,
          .ldx = ldx,
          .out = out,
          .ldo = ldo,
          .rows = rows,
          .cols = cols,
          .depth = quantized_depth(cols, group),
          .group = group};
}

// a as the GEMM of a format wants it: in int8, quantized rows, each followed by its scale.
struct Operand {
  const void* data;
  int64_t ld;
  LargeBuffer quantized;
};

Operand operand(const KernelTable& table, const Array<const bf16, 2>& a, int64_t m, const PackedMatrix& packed,
                bool widened, bool tiled, int threads) {
  if (widened || !takes_int8(packed.format())) return {a.data(), size(a, 1), LargeBuffer()};
  // Rows begin on cache lines, as those of a Program do.
  const int64_t ld = round_up(quantized_bytes(packed.k(), packed.group()), kLineBytes);
  Operand result{nullptr, ld, LargeBuffer(static_cast<size_t>(round_up(m, kPad) * ld))};
  result.data = result.quantized.as<int8_t>();
  QuantizeArgs args =
      quantize_args(a.data(), size(a, 1), result.quantized.as<int8_t>(), ld, m, packed.k(), packed.group());
  args.tiled = tiled;
  play_threads(threads, [&](int thread) { table.quantize(args, thread, threads); });
  return result;
}

using SharePanels = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // rows and panels, from the first to the last + 1

void gemm(const std::string& isa, Array<const bf16, 2> a, int64_t m, const PackedMatrix& packed,
          Maybe<const float, 1> bias, const std::string& activation, Maybe<float, 2> out_f32, Maybe<bf16, 2> out_bf16,
          float limit, bool widened, bool accumulate, bool in_parts, int threads, int64_t l1_bytes, int64_t l2_bytes,
          int64_t copied_pairs, int64_t row_block, bool tiled_rows, bool tiled_results,
          const std::optional<SharePanels>& only) {
  const KernelTable& table = *table_by_name(isa);
  Blocking sizes = blocking_for(table, {.l1d = l1_bytes, .l2 = l2_bytes}, {});
  if (copied_pairs >= 0) sizes.least_copied_pairs = copied_pairs;
  if (row_block > 0) sizes.row_block = row_block;
  const Activation act = activation_of(activation);
  const bool gated = act != Activation::kNone;
  const int64_t columns = gated ? packed.padded_n() / 2 : packed.padded_n();
  require(m >= 0 && size(a, 0) >= m && size(a, 1) >= round_up(packed.k(), kPad), "a is not padded");
  require(out_f32.has_value() != out_bf16.has_value() && !(gated && out_f32), "one output: bf16 with an activation");
  require(!accumulate || out_f32, "only fp32 is accumulated");
  require(!bias || size(*bias, 0) >= packed.padded_n(), "bias is not padded");
  const int64_t rows_out = out_f32 ? size(*out_f32, 0) : size(*out_bf16, 0);
  const int64_t ldo = out_f32 ? size(*out_f32, 1) : size(*out_bf16, 1);
  require(rows_out >= m && ldo >= columns, "the output is too small");
  const Operand x = operand(table, a, m, packed, widened, tiled_rows, threads);
  PackedWeights weights = packed.view();
  if (widened) weights.depth = round_up(packed.k(), kTileK);
  const GemmArgs args{.a = x.data,
                      .lda = x.ld,
                      .b = weights,
                      .widened = widened,
                      .blocking = sizes,
                      .m = m,
                      .bias = data_or_null(bias),
                      .activation = act,
                      .accumulate = accumulate,
                      .out_f32 = data_or_null(out_f32),
                      .out_bf16 = data_or_null(out_bf16),
                      .ldo = ldo,
                      .limit = limit,
                      .result_bytes = m * ldo * static_cast<int64_t>(out_f32 ? sizeof(float) : sizeof(bf16)),
                      .tiled_rows = tiled_rows,
                      .tiled_results = tiled_results};
  const LargeBuffer scratch(static_cast<size_t>(table.gemm_scratch));
  if (only) {
    const auto& [row, last_row, panel, last_panel] = *only;
    return table.gemm_share(args, {{row, last_row}, {panel, last_panel}}, scratch.data());
  }
  if (!in_parts) {
    play_threads(threads, [&](int thread) { table.gemm(args, scratch.data(), thread, threads); });
    return;
  }
  require(m <= kStreamedRows, "parts of k are divided for few rows only");
  const LargeBuffer sums(kPartSums * sizeof(float));
  play_threads(threads, [&](int thread) { table.gemm_parts(args, sums.data(), scratch.data(), thread, threads); });
  play_threads(threads, [&](int thread) { table.gemm_finish(args, sums.data(), thread, threads); });
}

// The rectangles of a thread's share of a product [m, n_panels].
std::vector<SharePanels> shares(int64_t m, int64_t n_panels, int thread, int threads) {
  std::vector<SharePanels> found;
  GemmArgs args{};
  args.m = m;
  args.b.n_panels = n_panels;
  for_share(args, kRowBlock, thread, threads, [&](const GemmShare& share) {
    found.emplace_back(share.rows.begin, share.rows.end, share.panels.begin, share.panels.end);
  });
  return found;
}

// The uses of lines by products of the amx_emulated set while `work` runs: addresses, and `LineUse` as numbers.
nb::tuple traced(int64_t room, const nb::callable& work) {
  std::vector<const void*> lines(static_cast<size_t>(room));
  std::vector<LineUse> uses(lines.size());
  LineTrace trace{lines.data(), uses.data(), room, 0};
  amx_emulated::trace_lines(&trace);
  work();
  amx_emulated::trace_lines(nullptr);
  require(trace.count <= room, "the trace has too little room");
  const auto count = static_cast<size_t>(trace.count);
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(lines.data()), count * sizeof(void*)),
                        nb::bytes(reinterpret_cast<const char*>(uses.data()), count));
}

NamedSizes blocking(const std::string& isa, int64_t l1_bytes, int64_t l2_bytes, const std::string& vendor,
                    unsigned family) {
  return named_sizes(blocking_for(*table_by_name(isa), {.l1d = l1_bytes, .l2 = l2_bytes}, {vendor, family}));
}

// `quantized` [rows, bytes]: what is normalised also in int8, by the same call if `fused`, and if `tiled` in the order
// of tiles. Without a `weight`, x is only rounded.
void rms_norm(const std::string& isa, Array<const float, 2> x, int64_t cols, Maybe<const float, 1> weight, float eps,
              Array<bf16, 2> out, Maybe<int8_t, 2> quantized, int64_t group, bool fused, int threads, bool tiled) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t rows = size(x, 0);
  require(size(out, 0) >= rows && size(out, 1) >= round_up(cols, kPad), "the output is too small");
  require(size(x, 1) >= cols && (!weight || size(*weight, 0) == cols), "x or weight has too few columns");
  require(!quantized || (size(*quantized, 0) >= rows && size(*quantized, 1) >= quantized_bytes(cols, group)),
          "the output is too small");
  const NormArgs args{.x = x.data(),
                      .ldx = size(x, 1),
                      .weight = data_or_null(weight),
                      .out = out.data(),
                      .ldo = size(out, 1),
                      .written = size(out, 1),
                      .rows = rows,
                      .cols = cols,
                      .eps = eps};
  if (!quantized || !fused) play_threads(threads, [&](int thread) { table.rms_norm(args, thread, threads); });
  if (!quantized) return;
  QuantizeArgs also =
      quantize_args(out.data(), size(out, 1), quantized->data(), size(*quantized, 1), rows, cols, group);
  also.tiled = tiled;
  const LargeBuffer scratch(static_cast<size_t>(size(out, 1)) * sizeof(bf16));
  play_threads(threads, [&](int thread) {
    if (fused)
      table.rms_norm_quantize(args, also, scratch.data(), thread, threads);
    else
      table.quantize(also, thread, threads);
  });
}

// `x` [ranks, rows, ld] has the columns of all vectors, of which the ranks have `counted` [ranks, vectors] themselves.
void divided_norm(const std::string& isa, Array<float, 3> x, const std::vector<std::vector<int64_t>>& cols,
                  const std::vector<std::vector<int64_t>>& counted, const std::vector<int64_t>& all_cols,
                  Array<const float, 3> weights, float eps, int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t ranks = size(x, 0), rows = size(x, 1), ld = size(x, 2);
  const auto vectors = static_cast<int64_t>(all_cols.size()), longest = size(weights, 2);
  require(size(weights, 0) == ranks && size(weights, 1) == vectors, "a rank has no weights");
  const LargeBuffer sums(static_cast<size_t>(ranks * rows * vectors) * sizeof(float));
  std::vector<const float*> parts;
  std::vector<std::vector<DividedVector>> own(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<size_t>(rank);
    int64_t used = 0;
    for (int64_t v = 0; v < vectors; ++v) {
      const auto of = static_cast<size_t>(v);
      const float* weight = weights.data() + (rank * vectors + v) * longest;
      require(cols.at(at).at(of) <= longest && counted.at(at).at(of) <= cols[at][of], "a weight is too short");
      own[at].push_back({weight, cols[at][of], counted[at][of], all_cols[of]});
      used += cols[at][of];
    }
    require(used <= ld, "x has too few columns");
    parts.push_back(sums.as<float>() + rank * rows * vectors);
  }
  const auto args = [&](int64_t rank) {
    return DividedNormArgs{.x = x.data() + rank * rows * ld,
                           .ldx = ld,
                           .rows = rows,
                           .vectors = own[static_cast<size_t>(rank)].data(),
                           .num_vectors = vectors,
                           .own_sums = sums.as<float>() + rank * rows * vectors,
                           .sums = parts.data(),
                           .num_parts = static_cast<int32_t>(ranks),
                           .ld_sums = vectors,
                           .eps = eps};
  };
  for (int64_t rank = 0; rank < ranks; ++rank)
    play_threads(threads, [&](int thread) { table.divided_norm_sums(args(rank), thread, threads); });
  for (int64_t rank = 0; rank < ranks; ++rank)
    play_threads(threads, [&](int thread) { table.divided_norm_scale(args(rank), thread, threads); });
}

void add_reduced(const std::string& isa, Array<const float, 3> parts, Array<float, 2> residual, int64_t cols,
                 Maybe<const float, 1> bias, Maybe<const float, 1> post_norm, float eps, bool assign, float scale,
                 int threads) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t rows = size(residual, 0), ld = size(residual, 1);
  require(size(parts, 0) >= 1 && size(parts, 1) == rows && size(parts, 2) == ld, "parts and residual differ in shape");
  require(ld % kPad == 0 && cols <= ld, "rows are not padded");
  require((!bias || size(*bias, 0) >= cols) && (!post_norm || size(*post_norm, 0) >= cols), "a vector is too short");
  std::vector<const float*> pointers;
  for (int64_t part = 0; part < size(parts, 0); ++part) pointers.push_back(parts.data() + part * rows * ld);
  const LargeBuffer sum(static_cast<size_t>(rows * ld) * sizeof(float));
  const ReduceArgs args{.parts = pointers.data(),
                        .num_parts = static_cast<int32_t>(pointers.size()),
                        .residual = residual.data(),
                        .ld = ld,
                        .rows = rows,
                        .cols = cols,
                        .bias = data_or_null(bias),
                        .post_norm = data_or_null(post_norm),
                        .sum = sum.as<float>(),
                        .eps = eps,
                        .assign = assign,
                        .scale = scale};
  play_threads(threads, [&](int thread) { table.reduce_add(args, split(rows * ld, threads, thread, kPad)); });
  if (post_norm) play_threads(threads, [&](int thread) { table.post_norm_add(args, thread, threads); });
}

// The operations of a nest over zeros, and whether it has written the sums of its pairs and no others; nothing without
// tile registers.
std::optional<std::pair<int64_t, bool>> nest(const std::string& isa, const std::string& format, int64_t pairs) {
  const KernelTable& table = *table_by_name(isa);
  if (table.nest == nullptr) return std::nullopt;
  const LargeBuffer read(static_cast<size_t>(pairs * kNestPairBytes + kNestRowBytes)), sums(kNestSumBytes);
  std::memset(sums.data(), 1, kNestSumBytes);
  const NestMemory memory{
      .rows = read.data() + pairs * kNestPairBytes, .weights = read.data(), .sums = sums.data(), .pairs = pairs};
  const int64_t operations = table.nest(weight_format(format), memory), written = pairs * kNestSumBytes / kNestSums;
  const auto all = [&](int64_t begin, int64_t end, std::byte value) {
    return std::all_of(sums.data() + begin, sums.data() + end, [&](std::byte found) { return found == value; });
  };
  return std::pair(operations, all(0, written, std::byte{0}) && all(written, kNestSumBytes, std::byte{1}));
}

int64_t peak(const std::string& isa, const std::string& format, bool random, int64_t rounds) {
  return table_by_name(isa)->peak(weight_format(format), random ? PeakOperands::kRandom : PeakOperands::kEqual, rounds);
}

void softcap(const std::string& isa, Array<float, 1> x, float cap) {
  table_by_name(isa)->softcap(x.data(), size(x, 0), cap);
}

}  // namespace

NB_MODULE(numaserve_kernel_tests, ops) {
  // Its arguments are instances of their classes.
  nb::module_::import_("numaserve.kernels");
  ops.def("gemm", &gemm, "isa"_a, "a"_a, "m"_a, "weight"_a, "bias"_a.none(), "activation"_a, "out_f32"_a.none(),
          "out_bf16"_a.none(), "limit"_a, "widened"_a, "accumulate"_a, "in_parts"_a, "threads"_a, "l1_bytes"_a,
          "l2_bytes"_a, "copied_pairs"_a = -1, "row_block"_a = 0, "tiled_rows"_a = false, "tiled_results"_a = false,
          "only"_a = nb::none());
  ops.def("shares", &shares, "m"_a, "n_panels"_a, "thread"_a, "threads"_a);
  ops.def("traced", &traced, "room"_a, "work"_a);
  ops.def("takes_tiled_rows", [](const std::string& isa) { return table_by_name(isa)->takes_tiled_rows; }, "isa"_a);
  ops.def("blocking", &blocking, "isa"_a, "l1_bytes"_a, "l2_bytes"_a, "vendor"_a = "", "family"_a = 0);
  ops.def("rms_norm", &rms_norm, "isa"_a, "x"_a, "cols"_a, "weight"_a.none(), "eps"_a, "out"_a, "quantized"_a.none(),
          "group"_a, "fused"_a, "threads"_a, "tiled"_a = false);
  ops.def("divided_norm", &divided_norm, "isa"_a, "x"_a, "cols"_a, "counted"_a, "all_cols"_a, "weights"_a, "eps"_a,
          "threads"_a);
  ops.def("add_reduced", &add_reduced, "isa"_a, "parts"_a, "residual"_a, "cols"_a, "bias"_a.none(),
          "post_norm"_a.none(), "eps"_a, "assign"_a, "scale"_a, "threads"_a);
  ops.def("nest", &nest, "isa"_a, "format"_a, "pairs"_a);
  ops.def("peak", &peak, "isa"_a, "format"_a, "random"_a, "rounds"_a);
  ops.def("softcap", &softcap, "isa"_a, "x"_a, "cap"_a);
  bind_amx(ops);
  bind_attention_plan(ops);
  bind_sampling(ops);
}

}  // namespace numaserve
