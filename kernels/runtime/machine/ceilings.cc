#include "kernels/runtime/machine/ceilings.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "kernels/gemm/tiles/random_operands.h"
#include "kernels/runtime/machine/memory.h"

namespace numaserve {
namespace {

constexpr int kPasses = 7;

template <class F>
double seconds(F&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

constexpr int64_t kLine = 64;

[[gnu::target("clflushopt")]] void flush_unordered(const std::byte* line, const std::byte* end) {
  for (; line < end; line += kLine) _mm_clflushopt(const_cast<std::byte*>(line));
  _mm_sfence();
}

// For processors before Skylake and Zen: flushes wait for each other.
void flush_ordered(const std::byte* line, const std::byte* end) {
  for (; line < end; line += kLine) _mm_clflush(line);
}

template <class T>
void fill_with_random(const LargeBuffer& buffer) {
  constexpr size_t kBytes = 1 << 16;
  const RandomOperands<T, kBytes> operands;
  for (size_t done = 0; done < buffer.bytes(); done += kBytes)
    std::memcpy(buffer.data() + done, operands.words, std::min(kBytes, buffer.bytes() - done));
}

bool has_clflushopt() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & bit_CLFLUSHOPT) != 0;
}

}  // namespace

double read_bandwidth(const KernelTable& table, Team& team, int64_t bytes) {
  const int64_t share = bytes / team.size() / 4096 * 4096;
  const LargeBuffer buffer(static_cast<size_t>(share * team.size()));
  // The reading thread writes its part first: all untouched memory is one shared page of zeros.
  team.parallel([&](int thread) { std::memset(buffer.data() + thread * share, 1, static_cast<size_t>(share)); });
  double best = 1e300;
  // Processors differ in which of the two ways reads more.
  for (int pass = 0; pass < 2 * kPasses; ++pass) {
    const bool fetch_ahead = pass % 2 == 0;
    best =
        std::min(best, seconds([&] {
                   team.parallel([&](int thread) { table.read(buffer.data() + thread * share, share, fetch_ahead); });
                 }));
  }
  return static_cast<double>(share * team.size()) / best;
}

double read_seconds(const KernelTable& table, Team& team, const std::vector<Memory>& parts, bool fetch_ahead) {
  return seconds([&] {
    team.parallel([&](int thread) {
      for (const Memory& part : parts) {
        const int64_t share = part.bytes / team.size() / 256 * 256;
        table.read(part.data + thread * share, share, fetch_ahead);
      }
    });
  });
}

void evict(Team& team, const std::vector<Memory>& parts) {
  const auto flush = has_clflushopt() ? flush_unordered : flush_ordered;
  team.parallel([&](int thread) {
    for (const Memory& part : parts) {
      const int64_t before = reinterpret_cast<std::uintptr_t>(part.data) % kLine;
      const Range share = split(before + part.bytes, team.size(), thread, kLine);
      flush(part.data - before + share.begin, part.data - before + share.end);
    }
  });
}

double peak_flops(const KernelTable& table, Team& team, std::optional<WeightFormat> format, PeakOperands operands,
                  int passes, int64_t rounds) {
  std::vector<int64_t> done(static_cast<size_t>(team.size()));
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    const double time = seconds([&] {
      team.parallel([&](int thread) {
        done[static_cast<size_t>(thread)] = format ? table.peak(*format, operands, rounds) : table.peak_fp32(rounds);
      });
    });
    best = std::max(best, static_cast<double>(done[0]) * team.size() / time);
  }
  return best;
}

std::optional<double> nest_flops(const KernelTable& table, Team& team, WeightFormat format, int passes) {
  if (table.nest == nullptr) return std::nullopt;
  constexpr int64_t kPairs = 64;
  const LargeBuffer read(static_cast<size_t>(kPairs * kNestPairBytes + kNestRowBytes)), sums(kNestSumBytes);
  takes_int8(format) ? fill_with_random<int8_t>(read) : fill_with_random<bf16>(read);
  const std::byte* rows = read.data() + kPairs * kNestPairBytes;
  const NestMemory memory{.rows = rows, .weights = read.data(), .sums = sums.data(), .pairs = kPairs};
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    evict(team, {{read.data(), kPairs * kNestPairBytes}});
    team.parallel([&](int thread) {
      if (thread > 0) return;
      int64_t done = 0;
      const double time = seconds([&] { done = table.nest(format, memory); });
      best = std::max(best, static_cast<double>(done) / time);
    });
  }
  return best;
}

double barrier_ns(Team& team) {
  constexpr int kBarriers = 20000;
  double best = 1e300;
  for (int pass = 0; pass < kPasses; ++pass)
    best = std::min(best, seconds([&] {
                      team.parallel([&](int thread) {
                        for (int i = 0; i < kBarriers; ++i) team.barrier(thread);
                      });
                    }));
  return best / kBarriers * 1e9;
}

}  // namespace numaserve
