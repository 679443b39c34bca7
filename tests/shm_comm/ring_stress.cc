// Stress of the ring against a serial sum.
//
//   ring_stress threads|processes WORLD LANES COLLECTIVES SEED
//
// Every rank draws the same random sizes, algorithms and operations, computes what every rank contributes, and compares
// each result bit by bit with a sum made in one thread. With `threads` the ranks are threads of one process, which
// is what ThreadSanitizer can watch; with `processes` they are forked. Lanes work at the same time: in plain
// collectives each on its own stretch of the slot, in fused ones together on the whole slot, as the kernels do. With an
// even seed the ranks share cores: they sleep while they wait.
#include <sys/mman.h>
#include <sys/wait.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "shm_comm/include/numaserve_ring_collectives.h"

namespace ring = numaserve::ring;

namespace {

constexpr std::uint64_t kNonce = 0x1234;
constexpr std::size_t kSlotBytes = 64 * 1024;
constexpr std::uint64_t kDeadlineNs = 120'000'000'000ULL;

struct Options {
  bool processes;
  int world;
  int lanes;
  std::uint64_t collectives;
  std::uint64_t seed;
};

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Element i of what `rank` contributes; magnitudes from 2^-8 to 2^7, so that the order of a sum shows in its bits.
float element(std::uint64_t key, int rank, std::size_t i) {
  const std::uint32_t h = static_cast<std::uint32_t>(key) + static_cast<std::uint32_t>(rank) * 0x9e3779b9U;
  std::uint32_t x = (static_cast<std::uint32_t>(i) ^ h) * 0x85ebca6bU;
  x = (x ^ (x >> 15)) * 0xc2b2ae35U;
  x ^= x >> 13;
  const std::uint32_t exponent = 119 + (x & 15);
  const std::uint32_t bits = (x & 0x80000000U) | exponent << 23 | ((x >> 5) & 0x7fffffU);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void fill(std::vector<float>& out, std::uint64_t key, int rank) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = element(key, rank, i);
}

// What one round does: the same for every rank and lane.
struct Round {
  std::uint64_t key;
  unsigned operation;
  std::size_t count;
  std::size_t one_shot_bytes;
};

Round round_of(const Options& options, std::uint64_t index) {
  const std::uint64_t h = mix(options.seed * 0x100000001b3ULL + index);
  // Sizes spread evenly over the powers of two; one in 64 is longer than a slot and goes in pieces.
  const unsigned bits = (h & 63) == 0 ? 14 + (h >> 6 & 1) : static_cast<unsigned>(h >> 6 & 7) + (h >> 9 & 1);
  const std::size_t count = 1 + (h >> 16) % (std::size_t{2} << bits);
  constexpr std::size_t kThresholds[] = {0, 1024, ~std::size_t{0}};
  return {h, static_cast<unsigned>(h >> 10 & 7), count, kThresholds[(h >> 13) % 3]};
}

// One rank: its ring, its team barrier and its lanes.
class Rank {
 public:
  Rank(void* base, const Options& options, int rank)
      : options_(options),
        ring_(base,
              ring::Layout{static_cast<std::uint32_t>(options.world), static_cast<std::uint32_t>(options.lanes),
                           kSlotBytes}
                  .total_bytes(),
              rank, kNonce, options.world),
        team_(options.lanes) {
    ring_.set_deadline(kDeadlineNs);
    if (options.seed % 2 == 0) ring_.share_cores();
  }

  // Returns the number of wrong results.
  std::uint64_t run() {
    std::vector<std::uint64_t> wrong(static_cast<std::size_t>(options_.lanes));
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < options_.lanes; ++lane) {
      lanes.emplace_back([this, lane, &wrong] { wrong[static_cast<std::size_t>(lane)] = run_lane(lane); });
    }
    std::uint64_t total = 0;
    for (auto& thread : lanes) thread.join();
    for (const std::uint64_t count : wrong) total += count;
    return total;
  }

 private:
  std::uint64_t run_lane(int lane) {
    std::uint64_t wrong = 0;
    std::uint64_t n = 0;
    for (std::uint64_t index = 0; index < options_.collectives; ++index) {
      const Round round = round_of(options_, index);
      switch (round.operation) {
        case 0:
          wrong += gather(lane, n, round);
          break;
        case 1:
          wrong += broadcast(lane, n, round);
          break;
        case 2:
        case 3:
          wrong += fused(lane, n, round);
          break;
        case 4:
          wrong += overlapped(lane, n, round);
          break;
        default:
          wrong += reduce(lane, n, round);
      }
    }
    return wrong;
  }

  // Lanes contribute different numbers, so that a lane that reads its neighbour's stretch is noticed.
  static std::uint64_t lane_key(const Round& round, int lane) { return round.key + static_cast<std::uint64_t>(lane); }

  std::vector<float> expected_sum(std::uint64_t key, std::size_t count) const {
    std::vector<float> sum(count);
    fill(sum, key, 0);
    for (int rank = 1; rank < options_.world; ++rank) {
      for (std::size_t i = 0; i < count; ++i) sum[i] += element(key, rank, i);
    }
    return sum;
  }

  static std::uint64_t differs(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0 ? 1 : 0;
  }

  std::uint64_t reduce(int lane, std::uint64_t& n, const Round& round) {
    const std::uint64_t key = lane_key(round, lane);
    std::vector<float> data(round.count);
    fill(data, key, ring_.rank());
    const auto channel = ring::Channel::of_lane(ring_, lane);
    ring_.check(ring::all_reduce_f32(channel, n, data.data(), data.size(), round.one_shot_bytes));
    return differs(data, expected_sum(key, round.count));
  }

  std::uint64_t gather(int lane, std::uint64_t& n, const Round& round) {
    const std::uint64_t key = lane_key(round, lane);
    std::vector<float> mine(round.count);
    fill(mine, key, ring_.rank());
    const auto world = static_cast<std::size_t>(options_.world);
    std::vector<std::size_t> sizes(world, round.count * sizeof(float));
    sizes.back() = (round.count + 1) / 2 * sizeof(float);  // shares need not be equal
    std::vector<float> all(sizes[0] / sizeof(float) * (world - 1) + sizes.back() / sizeof(float));
    ring_.check(ring::all_gather(ring::Channel::of_lane(ring_, lane), n,
                                 reinterpret_cast<const std::byte*>(mine.data()), sizes,
                                 reinterpret_cast<std::byte*>(all.data())));
    std::vector<float> expected;
    for (std::size_t rank = 0; rank < world; ++rank) {
      for (std::size_t i = 0; i < sizes[rank] / sizeof(float); ++i) {
        expected.push_back(element(key, static_cast<int>(rank), i));
      }
    }
    return differs(all, expected);
  }

  std::uint64_t broadcast(int lane, std::uint64_t& n, const Round& round) {
    const std::uint64_t key = lane_key(round, lane);
    const int root = static_cast<int>(round.key >> 40) % options_.world;
    std::vector<float> expected(round.count);
    fill(expected, key, root);
    std::vector<float> data(round.count);
    if (ring_.rank() == root) data = expected;
    ring_.check(ring::broadcast(ring::Channel::of_lane(ring_, lane), n, reinterpret_cast<std::byte*>(data.data()),
                                data.size() * sizeof(float), root));
    return differs(data, expected);
  }

  // As the fused kernels do it: the lanes write interleaved rows of the part, meet, and read contiguous stretches,
  // that is, what other lanes have written. Lane 0 acquires for all of them on every second collective.
  std::uint64_t fused(int lane, std::uint64_t& n, const Round& round) {
    const std::size_t count = std::min(round.count, kSlotBytes / sizeof(float));
    const auto lanes = static_cast<std::size_t>(options_.lanes);
    const auto self = static_cast<std::size_t>(lane);
    if (n % 2 == 0) {
      if (lane == 0) ring_.check(ring_.acquire(lane, n));
      team_.arrive_and_wait();
    } else {
      ring_.check(ring_.acquire(lane, n));
    }
    auto* own = reinterpret_cast<float*>(ring_.part(n, ring_.rank()));
    for (std::size_t i = self; i < count; i += lanes) own[i] = element(round.key, ring_.rank(), i);
    team_.arrive_and_wait();
    ring_.check(ring_.arrive_and_wait(lane, n, 0));
    if (lane == 0) ring_.note_all_left(n);
    std::uint64_t wrong = 0;
    for (std::size_t i = count * self / lanes; i < count * (self + 1) / lanes; ++i) {
      float sum = 0;
      float expected = 0;
      for (int rank = 0; rank < options_.world; ++rank) {
        sum += reinterpret_cast<const float*>(ring_.part(n, rank))[i];
        expected += element(round.key, rank, i);
      }
      wrong += std::memcmp(&sum, &expected, sizeof sum) != 0 ? 1 : 0;
    }
    ring_.done(lane, n++);
    return wrong;
  }

  // As a product that is summed meanwhile: each lane writes pieces of its stretch, sums its rank's share of each in
  // place, and fetches the sums of the piece before.
  std::uint64_t overlapped(int lane, std::uint64_t& n, const Round& round) {
    const std::uint64_t key = lane_key(round, lane);
    const auto channel = ring::Channel::of_lane(ring_, lane);
    const std::size_t count = std::min(round.count, channel.bytes() / sizeof(float));
    const auto world = static_cast<std::size_t>(options_.world), pieces = 1 + (round.key >> 48) % 9;
    const auto share = [&](std::size_t piece, int rank) {
      const std::size_t begin = count * piece / pieces, length = count * (piece + 1) / pieces - begin;
      const auto of = static_cast<std::size_t>(rank);
      return ring::detail::Share{begin + length * of / world, begin + length * (of + 1) / world};
    };
    const auto fetch = [&](std::size_t piece, std::vector<float>& data) {
      ring_.check(ring_.wait_for_all(lane, n, static_cast<int>(2 * piece + 1)));
      for (int rank = 0; rank < options_.world; ++rank) {
        const auto [begin, end] = share(piece, rank);
        std::copy(channel.floats(n, rank) + begin, channel.floats(n, rank) + end, data.data() + begin);
      }
    };
    ring_.check(channel.acquire(n));
    std::vector<float> data(count), sum(count);
    float* own = channel.floats(n, ring_.rank());
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const std::size_t first = share(piece, 0).begin, last = share(piece, options_.world - 1).end;
      for (std::size_t i = first; i < last; ++i) own[i] = element(key, ring_.rank(), i);
      channel.arrive(n, static_cast<int>(2 * piece));
      if (piece > 0) fetch(piece - 1, data);
      ring_.check(ring_.wait_for_all(lane, n, static_cast<int>(2 * piece)));
      const auto [begin, end] = share(piece, ring_.rank());
      ring::detail::sum_parts(channel, n, begin, end - begin, sum.data());
      std::copy_n(sum.data(), end - begin, own + begin);
      channel.arrive(n, static_cast<int>(2 * piece + 1));
    }
    fetch(pieces - 1, data);
    channel.done(n++);
    return differs(data, expected_sum(key, count));
  }

  Options options_;
  ring::Ring ring_;
  std::barrier<> team_;
};

std::uint64_t run_threads(void* base, const Options& options) {
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < options.world; ++rank) {
    ranks.emplace_back([&, rank] { wrong += Rank(base, options, rank).run(); });
  }
  for (auto& thread : ranks) thread.join();
  return wrong;
}

std::uint64_t run_processes(void* base, const Options& options) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.world; ++rank) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(Rank(base, options, rank).run() == 0 ? 0 : 1);
    children.push_back(child);
  }
  std::uint64_t failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    failed += waitpid(child, &status, 0) != child || status != 0 ? 1 : 0;
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: ring_stress threads|processes WORLD LANES COLLECTIVES SEED\n");
    return 2;
  }
  const Options options{std::string_view(argv[1]) == "processes", std::atoi(argv[2]), std::atoi(argv[3]),
                        std::strtoull(argv[4], nullptr, 10), std::strtoull(argv[5], nullptr, 10)};
  const ring::Layout layout{static_cast<std::uint32_t>(options.world), static_cast<std::uint32_t>(options.lanes),
                            kSlotBytes};
  void* base = mmap(nullptr, layout.total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return 2;
  ring::format_segment(base, layout, kNonce);
  const std::uint64_t begin = ring::monotonic_ns();
  const std::uint64_t wrong = options.processes ? run_processes(base, options) : run_threads(base, options);
  const double seconds = static_cast<double>(ring::monotonic_ns() - begin) * 1e-9;
  std::printf("%d ranks, %d lanes, %llu collectives per lane, %llu wrong, %.1f s\n", options.world, options.lanes,
              static_cast<unsigned long long>(options.collectives), static_cast<unsigned long long>(wrong), seconds);
  return wrong == 0 ? 0 : 1;
}
