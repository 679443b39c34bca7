#include "shm_comm/mask_module.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "shm_comm/include/numaserve_masks.h"
#include "shm_comm/mapping.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve::masks {
namespace {

using MappedBoard = ring::Mapped<Board>;

std::uint64_t board_bytes(std::uint32_t rows, std::uint32_t row_bytes) {
  const Layout layout{.rows = rows, .row_bytes = row_bytes};
  layout.validate();
  return layout.total_bytes();
}

void format_descriptor(int fd, std::uint32_t rows, std::uint32_t row_bytes, std::uint64_t nonce) {
  const ring::Mapping mapping = ring::map_fresh("token masks", fd, board_bytes(rows, row_bytes));
  format_board(mapping.base(), {.rows = rows, .row_bytes = row_bytes}, nonce);
}

void check_row(const Board& board, std::uint32_t row) {
  if (row >= board.rows()) throw nb::index_error("token masks: the row is out of range");
}

// The GIL is kept: releasing it and taking it again costs about as much as the work.
void publish(const Board& board, std::uint64_t step, std::uint32_t row, int state, std::uintptr_t bits) {
  check_row(board, row);
  if (state < static_cast<int>(State::mask) || state > static_cast<int>(State::drop))
    throw nb::value_error("token masks: the state must be 1 (apply the mask), 2 (no mask) or 3 (drop the sequence)");
  if (state == static_cast<int>(State::mask) && bits == 0)
    throw nb::value_error("token masks: the address of the bits is missing");
  board.publish(step, row, static_cast<State>(state), reinterpret_cast<const void*>(bits));
}

int wait(const Board& board, std::uint64_t step, std::uint32_t row, double seconds) {
  check_row(board, row);
  const nb::gil_scoped_release released;
  const auto ns = static_cast<std::uint64_t>(std::clamp(seconds, 0.0, 86400.0) * 1e9);
  return static_cast<int>(board.wait(step, row, ring::monotonic_ns() + ns));
}

nb::bytes bits(const Board& board, std::uint64_t step, std::uint32_t row) {
  check_row(board, row);
  return nb::bytes(board.bits(step, row), board.row_bytes());
}

}  // namespace

void bind_masks(nb::module_& m) {
  nb::class_<Board>(m, "BoardBase");
  nb::class_<MappedBoard, Board>(m, "Board")
      .def(
          "__init__",
          [](MappedBoard* self, int fd, std::uint64_t nonce) { new (self) MappedBoard("token masks", fd, nonce); },
          "fd"_a, "nonce"_a)
      .def_prop_ro("rows", &Board::rows)
      .def_prop_ro("row_bytes", &Board::row_bytes)
      .def("publish", &publish, "step"_a, "row"_a, "state"_a, "bits"_a = 0)
      .def("wait", &wait, "step"_a, "row"_a, "seconds"_a)
      .def("bits", &bits, "step"_a, "row"_a);
  m.def("board_bytes", &board_bytes, "rows"_a, "row_bytes"_a);
  m.def("format_board", &format_descriptor, "fd"_a, "rows"_a, "row_bytes"_a, "nonce"_a);
}

}  // namespace numaserve::masks
