#include "shm_comm/progress_module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "shm_comm/include/numaserve_progress.h"
#include "shm_comm/mapping.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve::progress {
namespace {

using ring::Mapping;

// A board that owns its mapping. Python sees one type; the other extension module receives a progress::Board*.
class MappedBoard : public Board {
 public:
  MappedBoard(Mapping mapping, std::uint64_t nonce)
      : Board(mapping.base(), mapping.bytes(), nonce), mapping_(std::move(mapping)) {}

 private:
  Mapping mapping_;
};

void format_descriptor(int fd, std::uint32_t world, std::uint64_t nonce) {
  const Mapping mapping("progress board", fd, PROT_READ | PROT_WRITE);
  if (mapping.bytes() != board_bytes(world))
    throw Error("progress board: the size of the descriptor does not match the number of ranks");
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
          [](MappedBoard* self, int fd, std::uint64_t nonce) {
            new (self) MappedBoard(Mapping("progress board", fd, PROT_READ | PROT_WRITE), nonce);
          },
          "fd"_a, "nonce"_a)
      .def_prop_ro("world_size", &Board::world)
      .def_prop_ro("looks", [](const Board& board) { return board.looks().load(std::memory_order_relaxed); })
      .def("look", &Board::look)
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
