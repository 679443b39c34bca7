// Stress of the thread team: every size, more threads than processors, waits that sleep and waits that spin, runs after
// spinning and after sleeping.
//
//   team_stress RUNS
//
// Writes of a thread before a barrier must be seen by every other thread after it. The numbers are plain ones, so that
// the thread sanitizer sees a barrier that orders nothing.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "kernels/runtime/machine/team.h"

namespace {

using numaserve::Team;

// The processors of a team whose waits spin, in turns, or none, for waits that sleep.
std::vector<int> processors(int threads, bool spinning) {
  std::vector<int> cpus(static_cast<size_t>(threads), -1);
  const int available = static_cast<int>(std::thread::hardware_concurrency());
  for (int thread = 0; spinning && thread < threads; ++thread) cpus[static_cast<size_t>(thread)] = thread % available;
  return cpus;
}

class Stress {
 public:
  explicit Stress(int threads, bool spinning = false)
      : part_(std::make_unique<numaserve::progress::Part>()),
        team_(processors(threads, spinning), numaserve::progress::Rank(part_.get())),
        values_(static_cast<size_t>(threads)) {}

  // One run with `barriers` barriers in it; returns how many values were not what the barrier promises, or not what the
  // progress board has to show.
  int64_t run(uint64_t key, int barriers) {
    std::vector<int64_t> wrong(values_.size());
    team_.parallel([&](int thread) {
      const auto self = static_cast<size_t>(thread);
      for (int round = 0; round < barriers; ++round) {
        values_[self] = key + static_cast<uint64_t>(round) + self;
        team_.barrier(thread);
        for (size_t other = 0; other < values_.size(); ++other)
          wrong[self] += values_[other] != key + static_cast<uint64_t>(round) + other;
        team_.barrier(thread);  // nobody writes the next value before all have read this one
      }
      values_[self] = key;
    });
    int64_t total = part_->passed.barriers != team_.barriers(0);
    for (size_t thread = 0; thread < values_.size(); ++thread) total += wrong[thread] + (values_[thread] != key);
    return total;
  }

 private:
  std::unique_ptr<numaserve::progress::Part> part_;  // outlives the team, which ends with a barrier
  Team team_;
  std::vector<uint64_t> values_;
};

int64_t stress(int threads, int runs, bool spinning = false) {
  std::mt19937_64 random(static_cast<uint64_t>(threads));
  Stress team(threads, spinning);
  int64_t wrong = 0;
  for (int i = 0; i < runs; ++i) {
    // Now and then the threads fall asleep, or are just about to.
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 4096));
    wrong += team.run(random(), static_cast<int>(random() % 5));
  }
  return wrong;
}

// Teams that end awake, asleep, and before their threads have started.
void make_and_end(int threads) {
  for (const int microseconds : {0, 100, 5000}) {
    const Stress team(threads);
    if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: team_stress RUNS\n");
    return 2;
  }
  const int runs = std::atoi(argv[1]);
  int64_t wrong = 0;
  for (const int threads : {1, 2, 3, 7, 8, 9, 16, 17, 33, 43, 128}) {
    make_and_end(threads);
    wrong += stress(threads, runs);
  }
  for (const int threads : {2, 3, 9}) wrong += stress(threads, runs, true);
  // The ranks of a test share one process: teams beside each other, each called by a thread of its own.
  int64_t beside[3] = {};
  std::vector<std::thread> callers;
  for (int64_t& count : beside) callers.emplace_back([&count, runs] { count = stress(3, runs); });
  for (std::thread& caller : callers) caller.join();
  for (const int64_t count : beside) wrong += count;
  std::printf("%lld wrong\n", static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
}
