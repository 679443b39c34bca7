// The layout of a ring segment, and the owner of each byte. No other file knows offsets.
//
//   page 0          Header: Geometry, written once by the creator | AbortLine, written once by the first to abort
//   then per rank   one page-aligned part, to be bound to the rank's own node:
//                   RankLine | LaneLines x lanes | padding to a page | slot 0 | slot 1 | slot 2
//
// Only a rank itself writes its part; all ranks read it. A fresh memfd is all zeros, the right initial value of every
// epoch and counter. The creator therefore touches page 0 only, so that each rank first touches, and so places, the
// pages of its own part.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace numaserve::ring {

// The base of all ring errors; the message gives the remedy if the operator has one.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A peer or the supervisor has set the abort word.
struct Aborted : Error {
  using Error::Error;
};
// A peer did not arrive within the deadline.
struct DeadlineExceeded : Error {
  using Error::Error;
};

inline constexpr std::uint64_t kMagic = 0x474e4952414d554eULL;  // "NUMARING"
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::size_t kPage = 4096;
// Two cache lines: the adjacent-line prefetcher pulls lines in pairs, so 64 bytes apart is still false sharing.
inline constexpr std::size_t kLine = 128;
inline constexpr std::uint64_t kSlots = 3;
// The maximum number of phases of a collective. An epoch of 64 bits counts the phases of 2^46 collectives.
inline constexpr std::uint64_t kPhases = 1ULL << 18;
inline constexpr std::uint32_t kMaxWorld = 64;
inline constexpr std::uint32_t kMaxLanes = 1024;
inline constexpr std::uint64_t kMaxSlotBytes = 1ULL << 30;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "64-bit atomics must work between processes");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "32-bit atomics must work between processes");
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint32_t>) == 4);

struct alignas(kLine) Geometry {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t world;
  std::uint32_t lanes;
  std::uint32_t reserved;
  std::uint64_t slot_bytes;
  std::uint64_t nonce;  // random for every group: a worker of an earlier group cannot join this one
  std::uint64_t total_bytes;
};

enum class AbortState : std::uint32_t { running = 0, aborting = 1, aborted = 2 };

// `word` leaves `running` once, by compare-and-swap. The winner writes the other fields and then stores `aborted`. Any
// value but `running` ends every wait. The other fields may be read only after `aborted`, because a winner may be
// killed in between.
struct alignas(kLine) AbortLine {
  std::atomic<std::uint32_t> word;
  std::int32_t origin;   // rank that aborted, -1 for the supervisor
  std::int32_t missing;  // rank that did not arrive, -1 when the abort had another reason
  std::int32_t lane;
  std::uint64_t collective;
  char reason[232];
};
static_assert(sizeof(AbortLine) == 2 * kLine);

struct Header {
  Geometry geometry;
  AbortLine abort;
};
static_assert(sizeof(Header) <= kPage);

// Written by its rank only, a few times a second at most.
struct alignas(kLine) RankLine {
  std::atomic<std::uint64_t> pid;            // 0: no process has attached yet
  std::atomic<std::uint64_t> attach_ns;      // CLOCK_MONOTONIC
  std::atomic<std::uint64_t> attach_cycles;  // time-stamp counter at the same moment: turns cycles into time
  std::atomic<std::uint64_t> beat_ns;        // CLOCK_MONOTONIC of the last beat()
};

struct alignas(kLine) Epoch {
  std::atomic<std::uint64_t> value;
};

// Written by one thread only: thread `lane` of the rank.
struct LaneLines {
  Epoch arrived;  // kPhases * n + phase + 1 of the last arrival
  Epoch done;     // n + 1: this lane no longer reads slots of collectives up to n
  struct alignas(kLine) Waits {
    std::atomic<std::uint64_t> count;
    std::atomic<std::uint64_t> cycles;
  } waits;
};
static_assert(sizeof(LaneLines) == 3 * kLine);

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// Sizes and offsets of a segment with this geometry.
struct Layout {
  std::uint32_t world = 0;
  std::uint32_t lanes = 0;
  std::uint64_t slot_bytes = 0;

  // Throws Error when a size is outside the bounds; without this check the products below could overflow.
  void validate() const {
    if (world < 1 || world > kMaxWorld)
      throw Error("ring: the number of ranks is " + std::to_string(world) + "; it must be 1 to 64");
    if (lanes < 1 || lanes > kMaxLanes)
      throw Error("ring: the number of lanes is " + std::to_string(lanes) + "; it must be 1 to 1024");
    if (slot_bytes < kPage || slot_bytes > kMaxSlotBytes || slot_bytes % kPage != 0) {
      throw Error("ring: the slot size is " + std::to_string(slot_bytes) +
                  " bytes; it must be a multiple of 4096 up to 1 GiB");
    }
  }
  std::size_t control_bytes() const { return round_up(sizeof(RankLine) + lanes * sizeof(LaneLines), kPage); }
  std::size_t part_bytes() const { return control_bytes() + kSlots * slot_bytes; }
  std::size_t total_bytes() const { return kPage + world * part_bytes(); }
  std::size_t part_offset(std::size_t rank) const { return kPage + rank * part_bytes(); }
};

// Writes the header of a fresh, zero-filled mapping of layout.total_bytes() bytes.
inline void format_segment(void* base, const Layout& layout, std::uint64_t nonce) {
  layout.validate();
  auto* header = static_cast<Header*>(base);
  header->geometry = Geometry{.magic = kMagic,
                              .version = kVersion,
                              .world = layout.world,
                              .lanes = layout.lanes,
                              .reserved = 0,
                              .slot_bytes = layout.slot_bytes,
                              .nonce = nonce,
                              .total_bytes = layout.total_bytes()};
}

// Checks the claims of a mapping of `bytes` bytes, and returns its layout. Throws Error that states the mismatch.
inline Layout read_layout(const void* base, std::size_t bytes) {
  if (base == nullptr || reinterpret_cast<std::uintptr_t>(base) % kPage != 0 || bytes < kPage) {
    throw Error("ring: the mapping is not page-aligned or is shorter than a page");
  }
  const Geometry geometry = static_cast<const Header*>(base)->geometry;
  if (geometry.magic != kMagic) throw Error("ring: this descriptor is not a numaserve ring (wrong magic number)");
  if (geometry.version != kVersion) {
    throw Error("ring: segment version " + std::to_string(geometry.version) + ", but this build needs version " +
                std::to_string(kVersion) + "; front end and workers must come from one installation");
  }
  const Layout layout{.world = geometry.world, .lanes = geometry.lanes, .slot_bytes = geometry.slot_bytes};
  layout.validate();
  if (layout.total_bytes() != bytes || geometry.total_bytes != bytes) {
    throw Error("ring: the header implies " + std::to_string(layout.total_bytes()) + " bytes, but the segment has " +
                std::to_string(bytes));
  }
  return layout;
}

}  // namespace numaserve::ring
