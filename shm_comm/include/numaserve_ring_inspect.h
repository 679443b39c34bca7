// Inspects a ring from outside, through a mapping that may be read-only. Inspection changes nothing and waits for
// nothing, so it does not disturb a running group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "shm_comm/include/numaserve_ring.h"

namespace numaserve::ring {

// Epochs are numbers of collectives: arrived = how many a lane has arrived at, done = how many it has left.
struct RankSnapshot {
  std::uint64_t pid = 0;  // 0: not attached
  std::uint64_t arrived_min = 0;
  std::uint64_t arrived_max = 0;
  std::uint64_t done_min = 0;
  std::uint64_t done_max = 0;
  std::uint64_t waits = 0;  // over all lanes
  double wait_seconds = 0;  // mean over the lanes
  double wait_share = 0;    // wait_seconds / time since the rank attached
  double beat_age_seconds = 0;
};

struct Snapshot {
  std::uint32_t world = 0;
  std::uint32_t lanes = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t total_bytes = 0;
  bool aborted = false;
  std::string abort_reason;  // empty while the ring runs
  std::vector<RankSnapshot> ranks;
};

inline RankSnapshot inspect_rank(const std::byte* part, std::uint32_t lanes) {
  const auto& line = *reinterpret_cast<const RankLine*>(part);
  const auto* lane = reinterpret_cast<const LaneLines*>(part + sizeof(RankLine));
  RankSnapshot rank{.pid = line.pid.load(std::memory_order_acquire)};
  rank.arrived_min = rank.done_min = ~std::uint64_t{0};
  std::uint64_t waited = 0;
  for (std::uint32_t i = 0; i < lanes; ++i) {
    const std::uint64_t arrived = (lane[i].arrived.value.load(std::memory_order_acquire) + kPhases - 1) / kPhases;
    const std::uint64_t done = lane[i].done.value.load(std::memory_order_acquire);
    rank.arrived_min = std::min(rank.arrived_min, arrived);
    rank.arrived_max = std::max(rank.arrived_max, arrived);
    rank.done_min = std::min(rank.done_min, done);
    rank.done_max = std::max(rank.done_max, done);
    rank.waits += lane[i].waits.count.load(std::memory_order_relaxed);
    waited += lane[i].waits.cycles.load(std::memory_order_relaxed);
  }
  if (rank.pid == 0) return rank;
  const std::uint64_t now = monotonic_ns();
  const double seconds = static_cast<double>(now - line.attach_ns.load(std::memory_order_relaxed)) * 1e-9;
  const auto ticks = static_cast<double>(cycles() - line.attach_cycles.load(std::memory_order_relaxed));
  rank.wait_share = ticks > 0 ? static_cast<double>(waited) / lanes / ticks : 0;
  rank.wait_seconds = rank.wait_share * seconds;
  rank.beat_age_seconds = static_cast<double>(now - line.beat_ns.load(std::memory_order_relaxed)) * 1e-9;
  return rank;
}

// Throws Error when the mapping is not a ring.
inline Snapshot inspect_segment(const void* base, std::size_t bytes) {
  const Layout layout = read_layout(base, bytes);
  const auto& header = *static_cast<const Header*>(base);
  Snapshot snapshot{.world = layout.world,
                    .lanes = layout.lanes,
                    .slot_bytes = layout.slot_bytes,
                    .total_bytes = bytes,
                    .aborted = header.abort.word.load(std::memory_order_acquire) != 0,
                    .abort_reason = abort_message(header),
                    .ranks = {}};
  for (std::uint32_t rank = 0; rank < layout.world; ++rank) {
    const auto* part = static_cast<const std::byte*>(base) + layout.part_offset(rank);
    snapshot.ranks.push_back(inspect_rank(part, layout.lanes));
  }
  return snapshot;
}

}  // namespace numaserve::ring
