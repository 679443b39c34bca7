// The Python binding of the kernels: objects are built in Python, and each step is one call that releases the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/bindings/adapters.h"
#include "kernels/bindings/copies.h"
#include "kernels/bindings/program.h"
#include "kernels/bindings/released.h"
#include "kernels/cpu_features.h"
#include "kernels/runtime/exchange/reduce_node.h"
#include "kernels/runtime/machine/ceilings.h"
#include "kernels/runtime/machine/team.h"
#include "kernels/runtime/weights/packed_matrix.h"
#include "kernels/runtime/weights/weight_file.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using GroupValues = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ranges = std::vector<std::pair<std::uintptr_t, int64_t>>;  // addresses and bytes

std::vector<Memory> memory_of(const Ranges& ranges) {
  std::vector<Memory> parts;
  for (const auto& [address, bytes] : ranges) parts.push_back({reinterpret_cast<const std::byte*>(address), bytes});
  return parts;
}

void pack(PackedMatrix& matrix, Team& team, const Bytes& data, const std::string& type, int64_t source_cols,
          const Indices& rows, int64_t dst_row, int64_t first_col, int64_t panel_stride, int64_t panel_offset) {
  const PackSource source{.data = data.data(),
                          .bytes = static_cast<int64_t>(data.size()),
                          .type = source_type(type),
                          .rows = {.cols = source_cols,
                                   .rows = rows.data(),
                                   .num_rows = static_cast<int64_t>(rows.size()),
                                   .first_col = first_col}};
  const PackTarget target{.dst_row = dst_row, .panel_stride = panel_stride, .panel_offset = panel_offset};
  const nb::gil_scoped_release released;
  matrix.pack(team, source, target);
}

void pack_codes(PackedMatrix& matrix, Team& team, const Codes& codes, const GroupValues& scales,
                const std::optional<GroupValues>& offsets, const std::optional<GroupValues>& factors,
                int64_t source_group, bool offsets_are_zeros, const Indices& rows, int64_t dst_row, int64_t first_col,
                int64_t panel_stride, int64_t panel_offset) {
  const auto tensor_rows = static_cast<int64_t>(codes.shape(0)), cols = static_cast<int64_t>(codes.shape(1));
  const auto fits = [&](const GroupValues& values) {
    return source_group > 0 && values.shape(0) == codes.shape(0) &&
           static_cast<int64_t>(values.shape(1)) == ceil_div(cols, source_group);
  };
  if (!fits(scales) || (offsets && !fits(*offsets)))
    throw std::invalid_argument(
        "pack: scales and offsets must have a row for each weight row and a column for each group");
  if (factors && (factors->shape(0) != codes.shape(0) || factors->shape(1) != 1))
    throw std::invalid_argument("pack: there must be one factor for each weight row");
  const CodedSource source{
      .codes = codes.data(),
      .tensor_rows = tensor_rows,
      .scales = scales.data(),
      .offsets = offsets ? offsets->data() : nullptr,
      .kind = offsets_are_zeros ? Offsets::kZeros : Offsets::kMinima,
      .factors = factors ? factors->data() : nullptr,
      .group = source_group,
      .rows = {
          .cols = cols, .rows = rows.data(), .num_rows = static_cast<int64_t>(rows.size()), .first_col = first_col}};
  const PackTarget target{.dst_row = dst_row, .panel_stride = panel_stride, .panel_offset = panel_offset};
  const nb::gil_scoped_release released;
  matrix.pack_codes(team, source, target);
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> unpack(const PackedMatrix& matrix) {
  auto values = std::make_unique<float[]>(static_cast<size_t>(matrix.n() * matrix.k()));
  matrix.unpack(values.get());
  float* data = values.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return {data, {static_cast<size_t>(matrix.n()), static_cast<size_t>(matrix.k())}, owner};
}

// The memory of `self`, which lives as long as the view does.
nb::ndarray<nb::memview, uint8_t, nb::ndim<1>> buffer(nb::handle_t<PackedMatrix> self) {
  auto& matrix = nb::cast<PackedMatrix&>(self);
  return {matrix.data(), {static_cast<size_t>(matrix.bytes())}, self};
}

std::vector<uint64_t> read_packed(Team& team, int fd, const std::vector<PackedMatrix*>& matrices,
                                  const std::vector<int64_t>& offsets) {
  if (matrices.size() != offsets.size())
    throw std::invalid_argument("read_packed: the number of offsets must equal the number of matrices");
  std::vector<FilePart> parts;
  for (size_t i = 0; i < matrices.size(); ++i) parts.push_back({matrices[i]->data(), matrices[i]->bytes(), offsets[i]});
  try {
    const nb::gil_scoped_release released;
    return read_parts(team, fd, parts);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
}

void bind_constants(nb::module_& m) {
  m.attr("PAD") = kPad;
  m.attr("ROW_BLOCK") = kRowBlock;
  m.attr("TILE_ROWS") = kTileN;
  m.attr("TILE_COLUMNS") = kTileDepth<bf16>;
  m.attr("INT8_TILE_COLUMNS") = kTileDepth<int8_t>;
  m.attr("CACHE_LINE") = kLineBytes;
  m.attr("GROUP_SCALE_BYTES") = sizeof(GroupScale);
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("ATTENTION_BLOCK") = kAttentionBlock;
  m.attr("ATTENTION_ROWS") = kAttentionRows;
  m.attr("PARTIAL_SEQUENCES") = kPartialSequences;
  m.attr("PARTIAL_EXTRA") = kPartialExtra;
  m.attr("SCALE_COLUMNS") = kScaleColumns;
  m.attr("MAX_HEAD_DIM") = kMaxHeadDim;
  m.attr("MAX_LATENT_DIM") = kMaxLatentDim;
  m.attr("MAX_KEY_DIM") = kMaxKeyDim;
  m.attr("MAX_CONV_TAPS") = kMaxConvTaps;
  m.attr("MAX_EXPERTS") = kMaxExperts;
  m.attr("MAX_TOP_K") = kMaxTopK;
  m.attr("MAX_MASKED_DRAFTS") = kMaxMaskedDrafts;
  m.attr("MAX_LOGPROBS") = kMaxLogprobs;
  m.attr("SIGMOID_GAIN") = kSigmoidGain;
  m.attr("ONE_SHOT_BYTES") = kOneShotBytes;
  m.attr("OVERLAPPED_ROWS") = kOverlappedRows;
  m.attr("PIECE_COLUMNS") = kPiecePairs * kPad;
  m.attr("CHECKSUM_UNIT") = kChecksumUnit;
}

}  // namespace

NB_MODULE(_native, m) {
  bind_constants(m);
  m.def("available_isas", &available_isas, "Instruction sets that can run on this machine, best first.");
  m.def("unbuilt_isa", &unbuilt_isa,
        "The best instruction set of this processor, if it is better than all that this build has; else empty.");
  m.def(
      "isa", [] { return std::string(default_table()->name); },
      "The instruction set in use: the best available one, or the one that NUMASERVE_ISA names.");

  nb::class_<Team>(m, "Team", "A pinned thread team; thread 0 is the caller.")
      .def(nb::new_([](const std::vector<int>& cpus, const progress::Board* progress, int rank) {
             if (progress != nullptr && (rank < 0 || rank >= progress->world()))
               throw nb::index_error("progress board: the rank is out of range");
             return std::make_unique<Team>(cpus, progress == nullptr ? progress::Rank() : progress->rank(rank));
           }),
           nb::arg("cpus"), nb::arg("progress") = nb::none(), nb::arg("rank") = 0, nb::keep_alive<0, 3>())
      .def_static(
          "in_turns", [](int threads) { return std::make_unique<Team>(Team::InTurns{threads}); }, nb::arg("threads"))
      .def_prop_ro("size", &Team::size)
      .def("act_as_first_of", &Team::act_as_first_of, nb::arg("threads"));

  nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight [n, k] in tile order.")
      .def(nb::new_([](int64_t n, int64_t k, const std::string& format, int64_t group, const std::string& offsets) {
             return std::make_unique<PackedMatrix>(n, k, weight_format(format), group, offsets_kind(offsets));
           }),
           nb::arg("n"), nb::arg("k"), nb::arg("format") = "bf16", nb::arg("group") = 0, nb::arg("offsets") = "none")
      .def("pack", &pack, nb::arg("team"), nb::arg("data"), nb::arg("dtype"), nb::arg("source_cols"), nb::arg("rows"),
           nb::arg("dst_row"), nb::arg("first_col") = 0, nb::arg("panel_stride") = 1, nb::arg("panel_offset") = 0)
      .def("pack_codes", &pack_codes, nb::arg("team"), nb::arg("codes"), nb::arg("scales"), nb::arg("offsets").none(),
           nb::arg("factors").none() = nb::none(), nb::kw_only(), nb::arg("source_group"), nb::arg("offsets_are_zeros"),
           nb::arg("rows"), nb::arg("dst_row"), nb::arg("first_col") = 0, nb::arg("panel_stride") = 1,
           nb::arg("panel_offset") = 0)
      .def("to_numpy", &unpack)
      .def("buffer", &buffer)
      .def_prop_ro("n", &PackedMatrix::n)
      .def_prop_ro("k", &PackedMatrix::k)
      .def_prop_ro("format", [](const PackedMatrix& self) { return std::string(weight_format_name(self.format())); })
      .def_prop_ro("group", &PackedMatrix::group)
      .def_prop_ro("offsets", [](const PackedMatrix& self) { return std::string(offsets_name(self.offsets())); })
      .def_prop_ro("nbytes", &PackedMatrix::bytes)
      .def_prop_ro("address", [](const PackedMatrix& self) { return reinterpret_cast<uintptr_t>(self.data()); });

  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def(
      "read_bandwidth", [](Team& team, int64_t bytes) { return read_bandwidth(*default_table(), team, bytes); },
      nb::arg("team"), nb::arg("nbytes"), released, "Bytes per second that the team reads from memory.");
  m.def(
      "read_seconds",
      [](Team& team, const Ranges& ranges, bool fetch_ahead) {
        return read_seconds(*default_table(), team, memory_of(ranges), fetch_ahead);
      },
      nb::arg("team"), nb::arg("ranges"), nb::arg("fetch_ahead"), released,
      "Seconds that the team takes to read these memory ranges, each an address and a number of bytes.");
  m.def(
      "evict", [](Team& team, const Ranges& ranges) { evict(team, memory_of(ranges)); }, nb::arg("team"),
      nb::arg("ranges"), released, "Evicts these memory ranges from all caches.");
  m.def(
      "peak_flops",
      [](Team& team, const std::string& format, int passes, bool random, int64_t rounds) {
        const auto of = format == "fp32" ? std::nullopt : std::optional(weight_format(format));
        const auto operands = random ? PeakOperands::kRandom : PeakOperands::kEqual;
        return peak_flops(*default_table(), team, of, operands, passes, rounds);
      },
      nb::arg("team"), nb::arg("format") = "bf16", nb::arg("passes") = 7, nb::arg("random") = false,
      nb::arg("rounds") = kPeakRounds, released,
      "Operations per second of the tiles of the instruction set in use, on all threads of the team.");
  m.def(
      "nest_flops",
      [](Team& team, const std::string& format, int passes) {
        return nest_flops(*default_table(), team, weight_format(format), passes);
      },
      nb::arg("team"), nb::arg("format") = "bf16", nb::arg("passes") = 4, released,
      "Operations per second of the nest of a large product on the calling thread; None without tile registers.");
  m.def("barrier_ns", &barrier_ns, nb::arg("team"), released, "Nanoseconds of one barrier of the team.");

  m.def("read_packed", &read_packed, nb::arg("team"), nb::arg("fd"), nb::arg("matrices"), nb::arg("offsets"));
  m.def(
      "checksum",
      [](const Bytes& data) {
        const auto bytes = static_cast<int64_t>(data.size());
        const Released no_lock(bytes);
        return checksum(reinterpret_cast<const std::byte*>(data.data()), bytes);
      },
      nb::arg("data"));

  bind_adapters(m);
  bind_copies(m);
  bind_program(m);
}

}  // namespace numaserve
