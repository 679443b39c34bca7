// Stress of the mask board: a front end with several threads against a rank with several, in one process or in two.
//
//   mask_stress threads|processes WRITERS READERS STEPS SEED
//
// Two steps are in flight, as with the server. What a row's word says, whether it comes before, while or after rank 0
// asks, and its bits are functions of (seed, step, row), so that the reader knows what it should find: a mask of this
// step and no other, or, for rows of which nothing is ever said, the end of the deadline.
#include <sys/mman.h>
#include <sys/wait.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "shm_comm/include/numaserve_masks.h"

namespace numaserve {
namespace {

constexpr std::uint32_t kRows = 7;
constexpr std::uint32_t kRowBytes = 1028;
constexpr std::uint64_t kNonce = 0x123456789abcdef;
constexpr std::uint64_t kPatienceNs = 20'000'000'000;
constexpr std::uint64_t kShortNs = 300'000;

struct Options {
  bool processes;
  int writers, readers;
  std::uint64_t steps, seed;
};

// The plans and results of a real pair of processes: steps that were planned, steps that were answered.
struct Control {
  std::atomic<std::uint64_t> planned, answered;
};

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t key_of(const Options& options, std::uint64_t step, std::uint32_t row) {
  return mix(options.seed + mix(step * kRows + row + 1));
}

// None: nothing is said in this step.
masks::State state_of(std::uint64_t key) {
  if (key % 64 == 0) return masks::State::none;
  return static_cast<masks::State>(1 + key % 3);
}

std::uint32_t bits_of(std::uint64_t key, std::size_t word) { return static_cast<std::uint32_t>(mix(key + word)); }

void pause_for(std::uint64_t key) {
  if (key % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(key / 5 % 200));
}

// One thread of the front end's pool: every `writers`-th row.
void write(const masks::Board& board, Control& control, const Options& options, std::mutex& lock, int writer) {
  std::vector<std::uint32_t> bits(kRowBytes / 4);
  for (std::uint64_t step = 0; step < options.steps; ++step) {
    while (control.answered.load(std::memory_order_acquire) + 2 <= step) std::this_thread::yield();
    std::uint64_t before = step;
    control.planned.compare_exchange_strong(before, step + 1);
    for (auto row = static_cast<std::uint32_t>(writer); row < kRows;
         row += static_cast<std::uint32_t>(options.writers)) {
      const std::uint64_t key = key_of(options, step, row);
      const masks::State state = state_of(key);
      if (state == masks::State::none) continue;
      pause_for(key >> 8);
      for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = bits_of(key, i);
      const std::lock_guard<std::mutex> held(lock);
      board.publish(step, row, state, bits.data());
    }
  }
}

bool is_wrong(const masks::Board& board, const Options& options, std::uint64_t step, std::uint32_t row) {
  const std::uint64_t key = key_of(options, step, row);
  const masks::State expected = state_of(key);
  const std::uint64_t patience = expected == masks::State::none ? kShortNs : kPatienceNs;
  const masks::State state = board.wait(step, row, ring::monotonic_ns() + patience);
  if (state != expected) return true;
  if (state != masks::State::mask) return false;
  const std::uint32_t* bits = board.bits(step, row);
  for (std::size_t i = 0; i < kRowBytes / 4; ++i)
    if (bits[i] != bits_of(key, i)) return true;
  return false;
}

std::uint64_t read(const masks::Board& board, Control& control, const Options& options) {
  std::atomic<std::uint64_t> wrong{0};
  std::barrier<> team(options.readers);
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < options.readers; ++lane) {
    lanes.emplace_back([&, lane] {
      for (std::uint64_t step = 0; step < options.steps; ++step) {
        while (control.planned.load(std::memory_order_acquire) <= step) std::this_thread::yield();
        for (auto row = static_cast<std::uint32_t>(lane); row < kRows;
             row += static_cast<std::uint32_t>(options.readers))
          wrong += is_wrong(board, options, step, row) ? 1 : 0;
        team.arrive_and_wait();
        if (lane == 0) control.answered.store(step + 1, std::memory_order_release);
      }
    });
  }
  for (auto& lane : lanes) lane.join();
  return wrong;
}

void write_all(const masks::Board& board, Control& control, const Options& options) {
  std::mutex lock;
  std::vector<std::thread> pool;
  for (int writer = 0; writer < options.writers; ++writer)
    pool.emplace_back([&, writer] { write(board, control, options, lock, writer); });
  for (auto& thread : pool) thread.join();
}

std::uint64_t run(const masks::Board& board, Control& control, const Options& options) {
  std::uint64_t wrong = 0;
  if (options.processes) {
    const pid_t rank = fork();
    if (rank == 0) std::_Exit(read(board, control, options) == 0 ? 0 : 1);
    write_all(board, control, options);
    int status = 0;
    return waitpid(rank, &status, 0) != rank || status != 0 ? 1 : 0;
  }
  std::thread rank([&] { wrong = read(board, control, options); });
  write_all(board, control, options);
  rank.join();
  return wrong;
}

}  // namespace
}  // namespace numaserve

int main(int argc, char** argv) {
  using namespace numaserve;
  if (argc != 6) {
    std::fprintf(stderr, "usage: mask_stress threads|processes WRITERS READERS STEPS SEED\n");
    return 2;
  }
  const Options options{std::string_view(argv[1]) == "processes", std::atoi(argv[2]), std::atoi(argv[3]),
                        std::strtoull(argv[4], nullptr, 10), std::strtoull(argv[5], nullptr, 10)};
  const masks::Layout layout{.rows = kRows, .row_bytes = kRowBytes};
  const std::size_t bytes = layout.total_bytes() + ring::kPage;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return 2;
  masks::format_board(base, layout, kNonce);
  const masks::Board board(base, layout.total_bytes(), kNonce);
  auto* control = reinterpret_cast<Control*>(static_cast<std::byte*>(base) + layout.total_bytes());
  const std::uint64_t begin = ring::monotonic_ns();
  const std::uint64_t wrong = run(board, *control, options);
  const double seconds = static_cast<double>(ring::monotonic_ns() - begin) * 1e-9;
  std::printf("%d writers, %d readers, %llu steps, %llu wrong, %.1f s\n", options.writers, options.readers,
              static_cast<unsigned long long>(options.steps), static_cast<unsigned long long>(wrong), seconds);
  return wrong == 0 ? 0 : 1;
}
