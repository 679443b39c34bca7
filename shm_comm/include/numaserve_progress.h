// The progress board: one memfd. Ranks count their barriers there, and the front end reads them.
//
//   page 0          Geometry, written once by the creator
//   then per rank   one part: PassedLine | ThreadLine x kMaxThreads
//
// The node of a part does not matter: no thread of a step reads it, so each line stays in the cache of its writer.
//
// A deadline must not depend on the clock alone. A rank that gets little processor time passes its barriers late, while
// a rank that hangs passes none. Only the front end can distinguish the two: it also sees the processor time of every
// rank (server/supervisor/judge.py). It is therefore the only judge, and aborts the ring when a rank hangs. Ranks that
// wait for each other have no deadline as long as it exists. With one that began again at each of its looks, a rank
// gave up when the front end had been stopped after it had sent a plan to this rank and not to the other yet.
//
// Writers of each line. Each has one writer for its whole lifetime, and no store orders any other memory:
//   barriers[rank]           thread 0 of the rank, at each barrier of its team
//   waiting[rank][thread]    that thread: its id while it waits for another thread or rank, otherwise 0
// All stores are relaxed. A late or torn-apart view of two lines is only an old view: the front end looks again before
// any deadline passes, and a thread is excused only if it waited at two looks without a barrier in between.
//
// The death of a writer leaves its line as it was:
//   a rank        its barriers stand still. Its pidfd reports the death, long before any deadline.
//   the front end the ranks' lifeline closes: the deadline of a wait passes, and aborts the ring. A front end that only
//                 hangs is ended by its own supervisor.
//
// The waiting threads are marked and not the working ones, so that a thread of which the board knows nothing counts.
// Such threads carry messages (ZeroMQ's) or have not reached native code yet. A thread that spins for another one uses
// processor time or yields it, and neither says anything about the rank. One mark for a rank was rejected: thread 0 may
// wait at a barrier for a thread that hangs, while the other rank waits for that thread in the ring.
//
// Include this file only in translation units built for the baseline instruction set, like the ring's headers.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "shm_comm/include/numaserve_ring_layout.h"

namespace numaserve::progress {

using ring::Error;
using ring::kLine;
using ring::kPage;

inline constexpr std::uint64_t kMagic = 0x474f5250414d554eULL;  // "NUMAPROG"
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint32_t kMaxThreads = ring::kMaxLanes;  // the threads of a rank beyond are not marked

struct alignas(kLine) Geometry {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t world;
  std::uint64_t nonce;
};
struct alignas(kLine) PassedLine {
  std::atomic<std::uint64_t> barriers;
};
struct alignas(kLine) ThreadLine {
  std::atomic<std::uint64_t> waiting;
};
struct alignas(kPage) Part {
  PassedLine passed;
  ThreadLine threads[kMaxThreads];
};

inline std::size_t board_bytes(std::uint32_t world) {
  if (world < 1 || world > ring::kMaxWorld)
    throw Error("progress board: the number of ranks is " + std::to_string(world) + "; it must be from 1 to 64");
  return kPage + world * sizeof(Part);
}

// Writes the header of a fresh, zero-filled mapping of board_bytes(world) bytes.
inline void format_board(void* base, std::uint32_t world, std::uint64_t nonce) {
  *static_cast<Geometry*>(base) = Geometry{.magic = kMagic, .version = kVersion, .world = world, .nonce = nonce};
}

// The end of one rank. Without a board it does nothing.
class Rank {
 public:
  Rank() = default;
  explicit Rank(Part* part) : part_(part) {}

  // For thread 0: the rank has passed `count` barriers.
  void pass(std::uint64_t count) const {
    if (part_ != nullptr) part_->passed.barriers.store(count, std::memory_order_relaxed);
  }
  // For the thread itself.
  void wait(int thread, bool waits) const {
    thread_local const auto id = static_cast<std::uint64_t>(gettid());
    if (part_ != nullptr && static_cast<std::uint32_t>(thread) < kMaxThreads)
      part_->threads[thread].waiting.store(waits ? id : 0, std::memory_order_relaxed);
  }

 private:
  Part* part_ = nullptr;
};

// Marks the calling thread as waiting while this object exists.
class Waiting {
 public:
  Waiting(const Rank& rank, int thread) : rank_(rank), thread_(thread) { rank_.wait(thread_, true); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { rank_.wait(thread_, false); }

 private:
  const Rank& rank_;
  int thread_;
};

// One end of a board. `base` must stay mapped as long as the object exists.
class Board {
 public:
  // Throws Error when the mapping of `bytes` bytes is not the expected board.
  Board(void* base, std::size_t bytes, std::uint64_t nonce) : base_(static_cast<std::byte*>(base)) {
    const Geometry geometry = *static_cast<const Geometry*>(base);
    if (geometry.magic != kMagic)
      throw Error("progress board: the descriptor is not a progress board (wrong magic number)");
    if (geometry.version != kVersion)
      throw Error("progress board: version " + std::to_string(geometry.version) + ", but this build needs version " +
                  std::to_string(kVersion) + "; front end and workers must come from one installation");
    if (board_bytes(geometry.world) != bytes)
      throw Error("progress board: the shared memory has " + std::to_string(bytes) + " bytes, but " +
                  std::to_string(geometry.world) + " ranks need " + std::to_string(board_bytes(geometry.world)));
    if (geometry.nonce != nonce)
      throw Error("progress board: the shared memory belongs to another launch (wrong nonce)");
    world_ = geometry.world;
  }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int world() const { return static_cast<int>(world_); }
  Rank rank(int rank) const { return Rank(&part(rank)); }

  std::uint64_t barriers(int rank) const { return part(rank).passed.barriers.load(std::memory_order_relaxed); }
  // The ids of the threads that wait for another thread or rank; `threads` is the number of threads to look at.
  std::vector<std::uint64_t> waiting(int rank, int threads) const {
    std::vector<std::uint64_t> found;
    for (int i = 0; i < threads && static_cast<std::uint32_t>(i) < kMaxThreads; ++i)
      if (const auto id = part(rank).threads[i].waiting.load(std::memory_order_relaxed); id != 0) found.push_back(id);
    return found;
  }

 private:
  Part& part(int rank) const {
    return *reinterpret_cast<Part*>(base_ + kPage + static_cast<std::size_t>(rank) * sizeof(Part));
  }

  std::byte* base_;
  std::uint32_t world_ = 0;
};

}  // namespace numaserve::progress
