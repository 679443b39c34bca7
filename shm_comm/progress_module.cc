#include "shm_comm/progress_module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "shm_comm/include/numaserve_progress.h"
#include "shm_comm/mapping.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve::progress {
namespace {

using MappedBoard = ring::Mapped<Board>;

void format_descriptor(int fd, std::uint32_t world, std::uint64_t nonce) {
  const ring::Mapping mapping = ring::map_fresh("progress board", fd, board_bytes(world));
  format_board(mapping.base(), world, nonce);
}

int checked(const Board& board, int rank) {
  if (rank < 0 || rank >= board.world()) throw nb::index_error("progress board: the rank is out of range");
  return rank;
}

}  // namespace

void bind_progress(nb::module_& m) {
  nb::class_<Board>(m, "ProgressBase");
  nb::class_<MappedBoard, Board>(m, "Progress")
      .def(
          "__init__",
          [](MappedBoard* self, int fd, std::uint64_t nonce) { new (self) MappedBoard("progress board", fd, nonce); },
          "fd"_a, "nonce"_a)
      .def_prop_ro("world_size", &Board::world)
      .def(
          "barriers", [](const Board& board, int rank) { return board.barriers(checked(board, rank)); }, "rank"_a)
      .def(
          "waiting",
          [](const Board& board, int rank, int threads) { return board.waiting(checked(board, rank), threads); },
          "rank"_a, "threads"_a);
  m.def("progress_bytes", &board_bytes, "world_size"_a);
  m.def("format_progress", &format_descriptor, "fd"_a, "world_size"_a, "nonce"_a);
}

}  // namespace numaserve::progress
