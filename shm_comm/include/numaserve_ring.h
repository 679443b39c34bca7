// A lock-free ring in shared memory through which the ranks (processes) of a group exchange partial results.
//
// One collective of the fused kernels, on every thread ("lane") of every rank; n counts collectives from 0, without
// gaps, and is the same on all ranks:
//
//   acquire(lane, n)             the slot n % 3 of this rank's part may be overwritten
//   ... GEMM writes part(n, rank()) ...
//   local team barrier           all lanes of this rank have written
//   arrive_and_wait(lane, n, 0)  lane i arrives, and waits until lane i of every other rank has arrived
//   ... read part(n, r) for r = 0 .. world-1, in this order ...
//   done(lane, n)                this lane reads slot n % 3 no more
//
// Every lane accounts for every n: a lane that takes no part in a collective still calls done(lane, n). One lane may
// call acquire() for the whole rank if a team barrier lies between the call and the first write.
//
// Writers of each line. Each line has one writer for its whole lifetime, so nothing here is a read-modify-write:
//   arrived[rank][lane], done[rank][lane], waits[rank][lane]   thread `lane` of that rank, plain release stores
//   slots of a part                                            the threads of that rank, between acquire and arrive
//   pid, beat                                                  the rank that attached
//   abort line                                                 the winner of the compare-and-swap of the abort word
//
// Why there is no exit barrier. A rank that has left collective n may run ahead, but it writes slot n % 3 again only in
// n + 3. acquire(n + 3) has seen done >= n + 1 of every lane of every rank, including its own lanes, which read its
// part too. done is stored with release after the reads and loaded with acquire before the writes, so the reads are
// over. With one slot, acquire would be an exit barrier in disguise. With three, the condition already holds when it is
// checked, because arriving at n + 1 and n + 2 took all ranks through the end of n.
//
// A collective may have several phases. A lane arrives at them in the order of their numbers, and waits for a phase
// later (wait_for_all): in between it does other work. The lane must arrive and wait in the same order on all ranks,
// and wait only for phases that it has arrived at. There is then no deadlock, because the rank that has come least far
// finds all others at the phase that it waits for.
//
// Why arrived may be compared with >=. It grows monotonically (kPhases * n + phase + 1). A rank that is ahead has, by
// the same release, published all its data of n. Its part of n is intact because this rank's done(n) is still missing.
//
// The death of a peer:
//   before it arrives at n   all others wait in arrive_and_wait(n): aborted if the supervisor aborts, else deadline
//   between two phases of n  the same as the first case, for the second phase
//   between arrive and done  the others finish n (its part lives in the memfd, not in the process) and wait at n + 1
//   between done(n) and n+1  the same as the first case, for n + 1
//   while aborting           the word is set, the reason is missing: the others report an abort without reason
//   killed after a deadline  the first waiter whose deadline passes aborts the ring, so the others leave at once
// Stopping and resuming a whole group is none of these cases: see numaserve_patience.h. An aborted ring stays aborted:
// the group is ended, and a new group gets a new segment with a new nonce.
//
// Include this file only in translation units built for the baseline instruction set: inline functions are weak
// symbols, and the linker may keep the copy of the widest instruction set for all callers.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "shm_comm/include/numaserve_ring_layout.h"
#include "shm_comm/include/numaserve_ring_wait.h"

namespace numaserve::ring {

// The details of an abort, for the error message.
struct AbortNote {
  std::int32_t origin = -1;
  std::int32_t missing = -1;
  std::int32_t lane = -1;
  std::uint64_t collective = 0;
};

// Sets the abort word of a mapped header. The first abort wins; returns whether it was this one.
inline bool abort_segment(Header& header, const AbortNote& note, std::string_view reason) {
  AbortLine& line = header.abort;
  std::uint32_t expected = static_cast<std::uint32_t>(AbortState::running);
  if (!line.word.compare_exchange_strong(expected, static_cast<std::uint32_t>(AbortState::aborting))) return false;
  line.origin = note.origin;
  line.missing = note.missing;
  line.lane = note.lane;
  line.collective = note.collective;
  const std::size_t length = std::min(reason.size(), sizeof(line.reason) - 1);
  std::memcpy(line.reason, reason.data(), length);
  line.reason[length] = '\0';
  line.word.store(static_cast<std::uint32_t>(AbortState::aborted), std::memory_order_release);
  return true;
}

// The reason of an abort; empty when the ring is running.
inline std::string abort_message(const Header& header) {
  const AbortLine& line = header.abort;
  const auto state = static_cast<AbortState>(line.word.load(std::memory_order_acquire));
  if (state == AbortState::running) return {};
  if (state != AbortState::aborted) return "the ring was aborted (no reason given)";
  const std::string_view reason(line.reason, ::strnlen(line.reason, sizeof(line.reason)));
  const std::string who = line.origin < 0 ? "the supervisor" : "rank " + std::to_string(line.origin);
  return "the ring was aborted by " + who + ": " + std::string(reason);
}

class Ring {
 public:
  // Attaches to a mapped segment as `rank`. `base` must stay mapped as long as the object exists. world = 0 accepts any
  // world size. Throws Error when the segment is not the expected one or the rank is taken.
  Ring(void* base, std::size_t bytes, int rank, std::uint64_t nonce, int world = 0)
      : header_(static_cast<Header*>(base)), layout_(read_layout(base, bytes)), rank_(rank) {
    if (header_->geometry.nonce != nonce) throw Error("ring: the segment belongs to another launch (wrong nonce)");
    if (world != 0 && static_cast<std::uint32_t>(world) != layout_.world) {
      throw Error("ring: the segment is for " + std::to_string(layout_.world) + " ranks, but " + std::to_string(world) +
                  " were expected");
    }
    if (rank < 0 || static_cast<std::uint32_t>(rank) >= layout_.world) {
      throw Error("ring: rank " + std::to_string(rank) + " is out of range for world size " +
                  std::to_string(layout_.world));
    }
    std::uint64_t nobody = 0;
    if (!rank_line(rank).pid.compare_exchange_strong(nobody, static_cast<std::uint64_t>(getpid()))) {
      throw Error("ring: rank " + std::to_string(rank) + " is already taken by process " + std::to_string(nobody));
    }
    rank_line(rank).attach_cycles.store(cycles(), std::memory_order_relaxed);
    rank_line(rank).attach_ns.store(monotonic_ns(), std::memory_order_relaxed);
    beat();
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(layout_.world); }
  int lanes() const { return static_cast<int>(layout_.lanes); }
  std::size_t slot_bytes() const { return layout_.slot_bytes; }
  const Layout& layout() const { return layout_; }
  std::byte* base() const { return reinterpret_cast<std::byte*>(header_); }

  // Number of the next collective. Kept here because the native step and the plain collectives of the same worker must
  // count as one; written between collectives, by the thread that starts the step.
  std::uint64_t position() const { return position_; }
  void set_position(std::uint64_t n) { position_ = n; }

  // Sets the maximum time of one wait, in nanoseconds during which this thread runs.
  void set_deadline(std::uint64_t ns) { policy_.deadline_ns = ns; }

  // Makes waits sleep, for ranks that share cores: a wait that holds a core may delay the very peer that it waits for.
  // All ranks of the group have to call it, because each wakes the others.
  void share_cores() { policy_.pauses = policy_.umwaits = 0, policy_.sleeps = true; }

  // Leaves it to the front end to end a wait for a rank that hangs, by an abort (numaserve_progress.h), as long as it
  // holds the write end of `lifeline`. The descriptor must outlive the ring.
  void leave_verdict(int lifeline) { policy_.lifeline = lifeline; }

  // Offset and length of a rank's part in the segment, both multiples of a page: bind this to the rank's node.
  struct Range {
    std::size_t offset;
    std::size_t bytes;
  };
  Range part_range(int rank) const {
    return {layout_.part_offset(static_cast<std::size_t>(rank)), layout_.part_bytes()};
  }

  // Touches every page of this rank's slots, so that they are allocated (on the node that the part is bound to). Call
  // it only before the first collective, because it writes.
  void prefault() {
    for (std::uint64_t n = 0; n < kSlots; ++n) {
      std::byte* slot = part(n, rank_);
      for (std::size_t at = 0; at < layout_.slot_bytes; at += kPage) *const_cast<volatile std::byte*>(slot + at) = {};
    }
  }

  // Returns a rank's part of the slot of collective n: slot_bytes() bytes, page-aligned.
  std::byte* part(std::uint64_t n, int rank) const {
    return base() + layout_.part_offset(static_cast<std::size_t>(rank)) + layout_.control_bytes() +
           (n % kSlots) * layout_.slot_bytes;
  }

  // Waits until collective n - 3 has been read by every lane of every rank.
  [[nodiscard]] Status acquire(int lane, std::uint64_t n) {
    if (n < kSlots) return Status::ok;
    const std::uint64_t needed = n - kSlots + 1;
    // Reading world x lanes lines is expensive. A meeting usually proves the same (note_all_left), and then no line is
    // read. One lane's finding holds for its neighbours, and often for n + 1 too.
    if (free_.load(std::memory_order_acquire) >= needed) return Status::ok;
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (int peer = 0; peer < world(); ++peer) {
      for (int other = 0; other < lanes(); ++other) {
        std::uint64_t seen = 0;
        const Status status = await(lane, lane_lines(peer, other).done, needed, seen);
        if (status != Status::ok) return fail(status, peer, other, n);
        least = std::min(least, seen);
      }
    }
    free_.store(least, std::memory_order_release);  // a race may store a smaller value: then a lane reads again
    return Status::ok;
  }

  // Publishes all that this lane (and, through the team barrier, this rank) wrote for phase `phase` of collective n.
  // This does not order non-temporal stores, which need an sfence after them.
  void arrive(int lane, std::uint64_t n, int phase) { publish(lane_lines(rank_, lane).arrived, arrival(n, phase)); }

  // Waits for the same lane of one other rank.
  [[nodiscard]] Status wait_for(int lane, std::uint64_t n, int phase, int peer) {
    std::uint64_t seen = 0;
    const Status status = await(lane, lane_lines(peer, lane).arrived, arrival(n, phase), seen);
    return status == Status::ok ? status : fail(status, peer, lane, n);
  }

  // Waits for the same lane of all other ranks.
  [[nodiscard]] Status wait_for_all(int lane, std::uint64_t n, int phase) {
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank_) continue;
      const Status status = wait_for(lane, n, phase, peer);
      if (status != Status::ok) return status;
    }
    return Status::ok;
  }

  // arrive(), then wait_for_all().
  [[nodiscard]] Status arrive_and_wait(int lane, std::uint64_t n, int phase) {
    arrive(lane, n, phase);
    return wait_for_all(lane, n, phase);
  }

  // Records that every lane of every rank has left the collectives before n. A lane knows this when it has met its
  // peers at n, if every rank arrives at n after a team barrier that its lanes enter after done(n - 1).
  void note_all_left(std::uint64_t n) {
    if (free_.load(std::memory_order_relaxed) < n) free_.store(n, std::memory_order_release);
  }

  // Marks the slots of collectives up to n as no longer read by this lane.
  void done(int lane, std::uint64_t n) { publish(lane_lines(rank_, lane).done, n + 1); }

  // Ends every wait of every rank with Status::aborted. Only the first reason is stored.
  void abort(std::string_view reason) { abort_segment(*header_, AbortNote{.origin = rank_}, reason); }
  bool aborted() const { return header_->abort.word.load(std::memory_order_acquire) != 0; }

  // Records that this rank makes progress; shown by ring-stat.
  void beat() { rank_line(rank_).beat_ns.store(monotonic_ns(), std::memory_order_relaxed); }

  // Time that a lane has spent waiting since it attached, in nanoseconds.
  std::uint64_t wait_ns(int lane) const {
    const RankLine& line = rank_line(rank_);
    const double ns = static_cast<double>(monotonic_ns() - line.attach_ns.load(std::memory_order_relaxed));
    const double ticks = static_cast<double>(cycles() - line.attach_cycles.load(std::memory_order_relaxed));
    const auto waited = lane_lines(rank_, lane).waits.cycles.load(std::memory_order_relaxed);
    return ticks > 0 ? static_cast<std::uint64_t>(static_cast<double>(waited) * ns / ticks) : 0;
  }

  // Throws Aborted or DeadlineExceeded for a status that is not ok.
  void check(Status status) const {
    if (status == Status::aborted) throw Aborted(abort_message(*header_));
    if (status == Status::deadline) throw DeadlineExceeded(abort_message(*header_));
  }

  // The lines of a lane, for inspection.
  LaneLines& lane_lines(int rank, int lane) const {
    std::byte* lines = base() + layout_.part_offset(static_cast<std::size_t>(rank)) + sizeof(RankLine);
    return reinterpret_cast<LaneLines*>(lines)[lane];
  }

 private:
  static std::uint64_t arrival(std::uint64_t n, int phase) {
    return kPhases * n + static_cast<std::uint64_t>(phase) + 1;
  }

  RankLine& rank_line(int rank) const {
    return *reinterpret_cast<RankLine*>(base() + layout_.part_offset(static_cast<std::size_t>(rank)));
  }

  // A waiter that read the word before sleeps only if it has not changed since: no wake-up is lost.
  void publish(Epoch& epoch, std::uint64_t value) const {
    epoch.value.store(value, std::memory_order_release);
    if (policy_.sleeps) wake_all(epoch.value);
  }

  // await_epoch, with its time recorded. The clock is read only if the lane has to wait.
  Status await(int lane, const Epoch& epoch, std::uint64_t target, std::uint64_t& seen) {
    seen = epoch.value.load(std::memory_order_acquire);
    if (seen >= target) return Status::ok;
    const std::uint64_t begin = cycles();
    const Status status = await_epoch(epoch.value, target, header_->abort.word, policy_, seen);
    auto& waits = lane_lines(rank_, lane).waits;
    waits.count.store(waits.count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    waits.cycles.store(waits.cycles.load(std::memory_order_relaxed) + cycles() - begin, std::memory_order_relaxed);
    return status;
  }

  Status fail(Status status, int peer, int lane, std::uint64_t n) {
    if (status != Status::deadline) return status;
    const std::string reason = "waited " + std::to_string(policy_.deadline_ns / 1'000'000) + " ms for rank " +
                               std::to_string(peer) + " (lane " + std::to_string(lane) + ", collective " +
                               std::to_string(n) + ")";
    abort_segment(*header_, AbortNote{.origin = rank_, .missing = peer, .lane = lane, .collective = n}, reason);
    return status;
  }

  Header* header_;
  Layout layout_;
  int rank_;
  WaitPolicy policy_;
  std::uint64_t position_ = 0;
  alignas(kLine) std::atomic<std::uint64_t> free_{0};  // every lane of every rank has done at least this
};

}  // namespace numaserve::ring
