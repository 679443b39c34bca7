// Stress of the whole Program: random traffic on 1 to 8 ranks, with draft tokens, against the same requests one by one.
//
//   program_stress edges|crowds ISA REQUESTS SEED
//
// All ranks must have sampled the same tokens and pooled the same values, and every request must have the tokens, the
// log-probabilities and the pooled values, to the last bit, that it has when it runs alone, in other chunks and on one
// thread a rank. The rows that tiles of images become are compared in the same way. Masked rows have what another
// thread says of them meanwhile, or are dropped. Then groups are ended in the middle of their steps: every rank's step
// must throw. Exits with 77 where the processor does not have the instruction set.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/cpu_features.h"
#include "tests/kernels/crowded_models.h"
#include "tests/kernels/played_traffic.h"
#include "tests/kernels/random_tower.h"
#include "tests/kernels/stress_models.h"

namespace numaserve::testing {
namespace {

constexpr int kInterruptions = 5;
constexpr uint64_t kShortDeadline = 200'000'000;  // ns

// Ranks that went on, or ended with another error, after the supervisor's abort at any point of a step.
int untouched_by_abort(const Model& model, uint64_t seed) {
  std::atomic<int> ended{0};
  on_all_ranks(
      model,
      [&](RankProgram& rank, ring::Ring*) {
        try {
          Traffic(rank, seed, false).play_steps();
        } catch (const ring::Aborted&) {
          ++ended;
        }
      },
      kPatience,
      [seed](const Segment& segment) {
        std::mt19937_64 random(seed);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));
        segment.abort();
      });
  return model.world() - ended;
}

// The same after the last rank has left without a word.
int untouched_by_silence(const Model& model, uint64_t seed) {
  std::atomic<int> ended{0};
  on_all_ranks(
      model,
      [&](RankProgram& rank, ring::Ring*) {
        const bool leaves = rank.rank() == model.world() - 1;
        try {
          Traffic traffic(rank, seed, false);
          leaves ? traffic.play_steps(5) : traffic.play_steps();
        } catch (const ring::Error&) {
          if (!leaves) ++ended;  // on a slow machine others give up before it has left
        }
      },
      kShortDeadline);
  return model.world() - 1 - ended;
}

int untouched(const Model& model, uint64_t seed) {
  int wrong = 0;
  if (model.world() == 1) return wrong;
  for (int i = 0; i < kInterruptions; ++i) wrong += untouched_by_abort(model, seed + static_cast<uint64_t>(i));
  return wrong + untouched_by_silence(model, seed);
}

int run(std::string_view kind, const char* isa, int requests, uint64_t seed) {
  const std::vector<std::string> available = available_isas();
  if (std::find(available.begin(), available.end(), isa) == available.end()) return 77;
  const KernelTable& table = *table_by_name(isa);
  int wrong = kind == "edges" ? different_tiles(table, seed) : 0;
  for (const Model& model : kind == "crowds" ? crowded_models(table) : edge_models(table)) {
    const int count = differences(model, requests, seed);
    const int deaf = untouched(model, seed);
    std::printf("%d ranks, head dimension %d: %d of %d requests differ, %d ranks missed an abort\n", model.world(),
                model.shape.head_dim, count, requests, deaf);
    wrong += count + deaf;
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace numaserve::testing

int main(int argc, char** argv) {
  if (argc != 5 || (argv[1] != std::string_view("edges") && argv[1] != std::string_view("crowds"))) {
    std::fprintf(stderr, "usage: program_stress edges|crowds ISA REQUESTS SEED\n");
    return 2;
  }
  return numaserve::testing::run(argv[1], argv[2], std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10));
}
