// Plain collectives on a ring: all-reduce, all-gather, broadcast, barrier. Tokens, logits, loading and tests use them;
// the fused kernels do not.
//
// Each call consumes one collective number per piece (a message larger than the channel is cut into pieces) and leaves
// `n` at the next free number. The number of pieces depends on the sizes only, which must be equal on all ranks.
#pragma once

#include <span>

#include "shm_comm/include/numaserve_ring.h"

namespace numaserve::ring {

// At and below this size every rank sums everything itself (one exchange); above it each rank sums its share and the
// shares are gathered (two exchanges, but world times fewer bytes summed).
inline constexpr std::size_t kOneShotBytes = 128 * 1024;

// The part of every slot that one caller uses. The caller is either one lane with its own part, while other lanes do
// the same with equal sizes, or one thread that uses the whole slot for all lanes of its rank.
class Channel {
 public:
  static Channel of_lane(Ring& ring, int lane) {
    const std::size_t bytes = ring.slot_bytes() / static_cast<std::size_t>(ring.lanes()) / kLine * kLine;
    if (bytes == 0)
      throw Error("ring: slots of " + std::to_string(ring.slot_bytes()) + " bytes cannot be split over " +
                  std::to_string(ring.lanes()) + " lanes; make the slots larger");
    return Channel(ring, lane, lane, lane + 1, static_cast<std::size_t>(lane) * bytes, bytes);
  }
  static Channel whole(Ring& ring) { return Channel(ring, 0, 0, ring.lanes(), 0, ring.slot_bytes()); }

  Ring& ring() const { return ring_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* part(std::uint64_t n, int rank) const { return ring_.part(n, rank) + offset_; }
  float* floats(std::uint64_t n, int rank) const { return reinterpret_cast<float*>(part(n, rank)); }

  [[nodiscard]] Status acquire(std::uint64_t n) const { return ring_.acquire(lane_, n); }
  void arrive(std::uint64_t n, int phase) const { ring_.arrive(lane_, n, phase); }
  [[nodiscard]] Status wait_for(std::uint64_t n, int phase, int peer) const {
    return ring_.wait_for(lane_, n, phase, peer);
  }
  [[nodiscard]] Status meet(std::uint64_t n, int phase) const { return ring_.arrive_and_wait(lane_, n, phase); }
  void done(std::uint64_t n) const {
    for (int lane = first_; lane < last_; ++lane) ring_.done(lane, n);
  }

 private:
  Channel(Ring& ring, int lane, int first, int last, std::size_t offset, std::size_t bytes)
      : ring_(ring), lane_(lane), first_(first), last_(last), offset_(offset), bytes_(bytes) {}

  Ring& ring_;
  int lane_;
  int first_;  // the lanes that this caller acts for
  int last_;
  std::size_t offset_;
  std::size_t bytes_;
};

namespace detail {

// out[i] = part 0 [i] + part 1 [i] + ... in rank order, in fp32. `out` must not overlap a part.
__attribute__((always_inline)) inline void sum_parts_inline(const Channel& channel, std::uint64_t n, std::size_t first,
                                                            std::size_t count, float* __restrict out) {
  constexpr std::size_t kBlock = 2048;  // 8 KiB: the running sum stays in the first-level cache
  const int world = channel.ring().world();
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t length = std::min(kBlock, count - at);
    const float* a = channel.floats(n, 0) + first + at;
    float* __restrict sum = out + at;
    if (world == 1) {
      std::memcpy(sum, a, length * sizeof(float));
      continue;
    }
    const float* b = channel.floats(n, 1) + first + at;
    for (std::size_t i = 0; i < length; ++i) sum[i] = a[i] + b[i];
    for (int rank = 2; rank < world; ++rank) {
      const float* c = channel.floats(n, rank) + first + at;
      for (std::size_t i = 0; i < length; ++i) sum[i] += c[i];
    }
  }
}

__attribute__((target("avx2"))) inline void sum_parts_with_avx2(const Channel& channel, std::uint64_t n,
                                                                std::size_t first, std::size_t count, float* out) {
  sum_parts_inline(channel, n, first, count, out);
}

// The module is also loaded on processors without AVX2.
inline void sum_parts(const Channel& channel, std::uint64_t n, std::size_t first, std::size_t count, float* out) {
  if (__builtin_cpu_supports("avx2")) return sum_parts_with_avx2(channel, n, first, count, out);
  sum_parts_inline(channel, n, first, count, out);
}

// A rank's share of `count` elements: [begin, end), cut at cache-line pairs so that no two ranks write the same line.
struct Share {
  std::size_t begin;
  std::size_t end;
};
inline Share share_of(std::size_t count, int rank, int world) {
  constexpr std::size_t kUnit = kLine / sizeof(float);
  const std::size_t units = (count + kUnit - 1) / kUnit;
  const auto cut = [&](int r) {
    return std::min(count, units * static_cast<std::size_t>(r) / static_cast<std::size_t>(world) * kUnit);
  };
  return {cut(rank), cut(rank + 1)};
}

inline Status reduce_one_shot(const Channel& channel, std::uint64_t n, float* data, std::size_t count) {
  sum_parts(channel, n, 0, count, data);
  channel.done(n);
  return Status::ok;
}

// Reduces this rank's share in place: before phase 1 no other rank reads or writes that share of this part.
inline void reduce_own_share(const Channel& channel, std::uint64_t n, std::size_t count) {
  constexpr std::size_t kBlock = 2048;
  const Share share = share_of(count, channel.ring().rank(), channel.ring().world());
  float* own = channel.floats(n, channel.ring().rank());
  alignas(kLine) float sum[kBlock];  // not directly into `own`, which is one of the summands
  for (std::size_t at = share.begin; at < share.end; at += kBlock) {
    const std::size_t length = std::min(kBlock, share.end - at);
    sum_parts(channel, n, at, length, sum);
    std::memcpy(own + at, sum, length * sizeof(float));
  }
}

inline Status reduce_scatter_gather(const Channel& channel, std::uint64_t n, float* data, std::size_t count) {
  reduce_own_share(channel, n, count);
  if (const Status status = channel.meet(n, 1); status != Status::ok) return status;
  const int world = channel.ring().world();
  for (int rank = 0; rank < world; ++rank) {
    const Share share = share_of(count, rank, world);
    if (share.begin == share.end) continue;
    std::memcpy(data + share.begin, channel.floats(n, rank) + share.begin, (share.end - share.begin) * sizeof(float));
  }
  channel.done(n);
  return Status::ok;
}

}  // namespace detail

// data[i] = sum of data[i] over all ranks, in rank order in fp32: the same bits on every rank and with both algorithms.
[[nodiscard]] inline Status all_reduce_f32(const Channel& channel, std::uint64_t& n, float* data, std::size_t count,
                                           std::size_t one_shot_bytes = kOneShotBytes) {
  const bool one_shot = count * sizeof(float) <= one_shot_bytes;
  const std::size_t piece = channel.bytes() / sizeof(float);
  for (std::size_t at = 0; at < count; at += piece, ++n) {
    const std::size_t length = std::min(piece, count - at);
    if (const Status status = channel.acquire(n); status != Status::ok) return status;
    std::memcpy(channel.part(n, channel.ring().rank()), data + at, length * sizeof(float));
    if (const Status status = channel.meet(n, 0); status != Status::ok) return status;
    const Status status = one_shot ? detail::reduce_one_shot(channel, n, data + at, length)
                                   : detail::reduce_scatter_gather(channel, n, data + at, length);
    if (status != Status::ok) return status;
  }
  return Status::ok;
}

// all = the messages of all ranks, one after the other in rank order. Rank r's message has bytes_of[r] bytes.
[[nodiscard]] inline Status all_gather(const Channel& channel, std::uint64_t& n, const std::byte* mine,
                                       std::span<const std::size_t> bytes_of, std::byte* all) {
  const std::size_t longest = *std::max_element(bytes_of.begin(), bytes_of.end());
  const auto rank = static_cast<std::size_t>(channel.ring().rank());
  const auto length_at = [&](std::size_t peer, std::size_t at) {
    return at < bytes_of[peer] ? std::min(channel.bytes(), bytes_of[peer] - at) : 0;
  };
  for (std::size_t at = 0; at < longest; at += channel.bytes(), ++n) {
    if (const Status status = channel.acquire(n); status != Status::ok) return status;
    if (const std::size_t length = length_at(rank, at); length > 0) {
      std::memcpy(channel.part(n, static_cast<int>(rank)), mine + at, length);
    }
    if (const Status status = channel.meet(n, 0); status != Status::ok) return status;
    std::size_t offset = 0;
    for (std::size_t peer = 0; peer < bytes_of.size(); offset += bytes_of[peer++]) {
      const std::size_t length = length_at(peer, at);
      if (length > 0) std::memcpy(all + offset + at, channel.part(n, static_cast<int>(peer)), length);
    }
    channel.done(n);
  }
  return Status::ok;
}

// data = root's data, on every rank. The root waits for the others only before it reuses a slot.
[[nodiscard]] inline Status broadcast(const Channel& channel, std::uint64_t& n, std::byte* data, std::size_t bytes,
                                      int root) {
  const bool is_root = channel.ring().rank() == root;
  for (std::size_t at = 0; at < bytes; at += channel.bytes(), ++n) {
    const std::size_t length = std::min(channel.bytes(), bytes - at);
    if (const Status status = is_root ? channel.acquire(n) : channel.wait_for(n, 0, root); status != Status::ok) {
      return status;
    }
    if (is_root) {
      std::memcpy(channel.part(n, root), data + at, length);
      channel.arrive(n, 0);
    } else {
      std::memcpy(data + at, channel.part(n, root), length);
    }
    channel.done(n);
  }
  return Status::ok;
}

// Returns when every rank has called it.
[[nodiscard]] inline Status barrier(const Channel& channel, std::uint64_t& n) {
  const Status status = channel.meet(n, 0);
  channel.done(n++);
  return status;
}

}  // namespace numaserve::ring
