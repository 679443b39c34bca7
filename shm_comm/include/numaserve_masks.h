// The mask board: one memfd through which the front end gives rank 0 the tokens allowed for each constrained sequence.
//
//   page 0     Geometry, written once by the creator
//   then rows  two halves, one for each of the two plans that can be in flight: step s has half s % 2. A sequence has
//              the row of its slot. If it has draft tokens, the token after each has a further row, a multiple of the
//              number of slots later. A row is Word | Sleeper | bits, each on its own cache lines.
//
// One step, in which slot r samples a masked sequence:
//
//   front end                                        rank 0
//   sends the plan of step s                         runs the forward pass
//   writes the bits of row r                         samples the rows that are not masked
//   word = (s, generation, MASK), release            waits for word = (s, generation, ..), acquire
//   wakes rank 0 if the sleeper says that it sleeps  samples from the tokens whose bits are set
//
// Writers of each line. The front end writes bits and words, under a lock of its own. Rank 0 writes sleepers, each from
// the one thread that has the row in this step. Nothing is a read-modify-write, and neither side reads what the other
// might write at that time. A row of step s is written after plan s is made and before its result arrives. The row is
// written again for step s + 2, whose plan is made after that. A matcher that is late must therefore not write here,
// because it could overwrite the mask of step s + 2. It fills its own memory, which is copied while the row belongs to
// the step.
//
// A word of another step or another generation (the low bits of the nonce) carries no state: it is a zero of a fresh
// board, an older step, or garbage. A word of this step with none of the three states is taken as DROP.
//
// Failures:
//   front end before or during the bits or the word     rank 0 waits up to its limit and reports the row as late. It
//                                                       then finds its lifeline closed, and ends.
//   front end between the word and the wake             rank 0 sleeps up to its limit, sees the word and continues.
//   rank 0 while it waits, or before it reads           its sleeper may stay set: a wake then wakes no thread. The
//                                                       group ends, and the next group has a board of its own.
//   matcher fails                                       DROP, at once: the row is dropped.
//   matcher hangs or is slow                            no word in time: the row is late. The sequence is computed
//                                                       again from this position once its mask exists.
//   the sequence has ended, though the plan names it    DROP, at once.
// In all of these cases, rank 0 waits for all rows of a step together no longer than a part of the step (see `Masks`):
// a slow grammar must not delay the other sequences.
//
// Include this file only in translation units built for the baseline instruction set, like the ring's headers.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "shm_comm/include/numaserve_futex.h"
#include "shm_comm/include/numaserve_ring_layout.h"
#include "shm_comm/include/numaserve_ring_wait.h"

namespace numaserve::masks {

using ring::Error;
using ring::kLine;
using ring::kPage;

inline constexpr std::uint64_t kMagic = 0x4b53414d414d554eULL;  // "NUMAMASK"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint64_t kHalves = 2;
inline constexpr std::uint32_t kMaxRows = 1U << 16;
inline constexpr std::uint32_t kMaxRowBytes = 1U << 20;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "64-bit atomics must work between processes");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "32-bit atomics must work between processes");

enum class State : std::uint8_t { none = 0, mask = 1, free = 2, drop = 3 };

struct alignas(kLine) Geometry {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rows;
  std::uint32_t row_bytes;  // of bits
  std::uint32_t reserved;
  std::uint64_t nonce;
  std::uint64_t total_bytes;
};

struct alignas(kLine) Word {
  std::atomic<std::uint64_t> value;  // step (40 bits) | generation (16) | state (8)
};
struct alignas(kLine) Sleeper {
  std::atomic<std::uint32_t> value;  // whether a thread of rank 0 sleeps until the word changes
};
struct Row {
  Word word;
  Sleeper sleeper;
};
static_assert(sizeof(Row) == 2 * kLine);

struct Layout {
  std::uint32_t rows = 0;
  std::uint32_t row_bytes = 0;

  // Throws Error when a size is outside the bounds.
  void validate() const {
    if (rows < 1 || rows > kMaxRows)
      throw Error("token masks: the number of rows is " + std::to_string(rows) + "; it must be from 1 to 65536");
    if (row_bytes < 4 || row_bytes > kMaxRowBytes || row_bytes % 4 != 0)
      throw Error("token masks: " + std::to_string(row_bytes) +
                  " bytes per row are not a multiple of 4 from 4 to 1048576");
  }
  std::size_t row_stride() const { return sizeof(Row) + ring::round_up(row_bytes, kLine); }
  std::size_t total_bytes() const { return kPage + ring::round_up(kHalves * rows * row_stride(), kPage); }
};

// Writes the header of a fresh, zero-filled mapping of layout.total_bytes() bytes.
inline void format_board(void* base, const Layout& layout, std::uint64_t nonce) {
  layout.validate();
  *static_cast<Geometry*>(base) = Geometry{.magic = kMagic,
                                           .version = kVersion,
                                           .rows = layout.rows,
                                           .row_bytes = layout.row_bytes,
                                           .reserved = 0,
                                           .nonce = nonce,
                                           .total_bytes = layout.total_bytes()};
}

// One end of a board. `base` must stay mapped as long as the object exists.
class Board {
 public:
  // Throws Error when the mapping of `bytes` bytes is not the expected board.
  Board(void* base, std::size_t bytes, std::uint64_t nonce) : base_(static_cast<std::byte*>(base)) {
    if (bytes < kPage) throw Error("token masks: the shared memory is shorter than a page");
    const Geometry geometry = *static_cast<const Geometry*>(base);
    if (geometry.magic != kMagic)
      throw Error("token masks: the descriptor is not for token masks (wrong magic number)");
    if (geometry.version != kVersion)
      throw Error("token masks: version " + std::to_string(geometry.version) + ", but this build needs version " +
                  std::to_string(kVersion) + "; front end and workers must come from one installation");
    layout_ = {.rows = geometry.rows, .row_bytes = geometry.row_bytes};
    layout_.validate();
    if (layout_.total_bytes() != bytes || geometry.total_bytes != bytes)
      throw Error("token masks: the header implies " + std::to_string(layout_.total_bytes()) +
                  " bytes, but the shared memory has " + std::to_string(bytes));
    if (geometry.nonce != nonce) throw Error("token masks: the shared memory belongs to another launch (wrong nonce)");
    generation_ = nonce & 0xffff;
  }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  std::uint32_t rows() const { return layout_.rows; }
  std::uint32_t row_bytes() const { return layout_.row_bytes; }

  // The bits of a row: `row_bytes` bytes. Bit i of the uint32 words is set if token i is allowed.
  std::uint32_t* bits(std::uint64_t step, std::uint32_t row) const {
    return reinterpret_cast<std::uint32_t*>(base_ + offset(step, row) + sizeof(Row));
  }

  // For the front end: publishes the row's state for this step, and its bits if the state is `mask`.
  void publish(std::uint64_t step, std::uint32_t row, State state, const void* bits_in) const {
    Row& lines = at(step, row);
    if (state == State::mask) std::memcpy(bits(step, row), bits_in, layout_.row_bytes);
    // Sequentially consistent, like the sleeper's accesses: either the sleeper sees this word, or this thread sees the
    // sleeper.
    lines.word.value.store(key(step) | static_cast<std::uint64_t>(state), std::memory_order_seq_cst);
    if (lines.sleeper.value.load(std::memory_order_seq_cst) != 0) ring::wake_all(lines.word.value);
  }

  // For rank 0: returns the row's state for this step; `none` if no state was published yet.
  State peek(std::uint64_t step, std::uint32_t row) const {
    return state_of(at(step, row).word.value.load(std::memory_order_acquire), step);
  }

  // For rank 0: waits for the row's state; `none` once ring::monotonic_ns() has passed `limit_ns`. The pauses cover a
  // mask that is a few microseconds late. The sleep leaves the core to the thread that computes the mask.
  State wait(std::uint64_t step, std::uint32_t row, std::uint64_t limit_ns) const {
    constexpr int kPauses = 1000;
    for (int i = 0; i < kPauses; ++i) {
      if (const State state = peek(step, row); state != State::none) return state;
      _mm_pause();
    }
    Row& lines = at(step, row);
    lines.sleeper.value.store(1, std::memory_order_seq_cst);
    State state = State::none;
    while (true) {
      const std::uint64_t seen = lines.word.value.load(std::memory_order_seq_cst);
      state = state_of(seen, step);
      if (state != State::none) break;
      const std::uint64_t now = ring::monotonic_ns();
      if (now >= limit_ns) break;
      // The low half of the word holds the state and the low bits of the step: it changes with every publication.
      ring::sleep_while(lines.word.value, seen, limit_ns - now);
    }
    lines.sleeper.value.store(0, std::memory_order_relaxed);
    return state;
  }

 private:
  std::size_t offset(std::uint64_t step, std::uint32_t row) const {
    return kPage + (step % kHalves * layout_.rows + row) * layout_.row_stride();
  }
  Row& at(std::uint64_t step, std::uint32_t row) const { return *reinterpret_cast<Row*>(base_ + offset(step, row)); }

  std::uint64_t key(std::uint64_t step) const { return step << 24 | generation_ << 8; }
  State state_of(std::uint64_t word, std::uint64_t step) const {
    if (word >> 8 != key(step) >> 8) return State::none;
    const std::uint64_t state = word & 0xff;
    return state == 1 || state == 2 ? static_cast<State>(state) : State::drop;
  }

  std::byte* base_;
  Layout layout_;
  std::uint64_t generation_ = 0;
};

}  // namespace numaserve::masks
