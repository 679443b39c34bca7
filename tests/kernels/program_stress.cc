// Stress of the whole Program: random traffic on 1 to 3 ranks, with draft tokens, against the same requests one by one.
//
//   program_stress ISA REQUESTS SEED
//
// All ranks must have sampled the same tokens and pooled the same values, and every request must have the tokens, the
// log-probabilities and the pooled values, to the last bit, that it has when it runs alone, in other chunks and on one
// thread a rank. Masked rows have what another thread says of them meanwhile, or are dropped. Then groups are ended in
// the middle of their steps: every rank's step must throw. Exits with 77 where the processor does not have the
// instruction set.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/cpu_features.h"
#include "tests/kernels/played_traffic.h"

namespace numaserve::testing {
namespace {

// Shapes at the edges: head sizes that are no multiple of a tile, contexts cut into blocks, sliding windows, ranks
// and window tables, ranks without heads or vocabulary, rows of experts that fill whole tiles, ranks with threads
// beyond the ring's lanes, sums so large that they are shared; programs that sample, that pool, that do both.
std::vector<Model> models(const KernelTable& table) {
  std::vector<Model> all;
  const auto add = [&](Shape shape, std::vector<int> threads, int64_t max_tokens, int64_t pages_per_slot,
                       WeightFormat format = WeightFormat::kBf16, KvDtype kv_dtype = KvDtype::kBf16) {
    all.push_back({.shape = shape,
                   .limits = {.max_tokens = max_tokens,
                              .max_logit_rows = 23,
                              .max_slots = 5,
                              .pages_per_slot = pages_per_slot,
                              .num_pages = 2 * pages_per_slot + 3,
                              .vocabulary = shape.vocabulary,
                              .num_snapshots = 3,
                              .max_drafts = 4},
                   .threads = std::move(threads),
                   .table = &table,
                   .kv_dtype = kv_dtype,
                   .format = format,
                   .shared_format = format == WeightFormat::kInt4 ? WeightFormat::kFp8 : format});
  };
  add({.q_heads = 6,
       .kv_heads = 3,
       .head_dim = 24,
       .hidden = 72,
       .intermediate = 132,
       .vocabulary = 131,
       .layers = 2,
       .extras = true,
       .experts = 5,
       .pools = true},
      {2, 2}, 64, 20, WeightFormat::kInt8);
  add({.q_heads = 9,
       .kv_heads = 3,
       .head_dim = 24,
       .hidden = 72,
       .intermediate = 100,
       .vocabulary = 131,
       .layers = 2,
       .experts = 20},
      {3}, 70, 20, WeightFormat::kInt4);
  add({.q_heads = 4,
       .kv_heads = 2,
       .head_dim = 80,
       .hidden = 96,
       .intermediate = 96,
       .vocabulary = 499,
       .layers = 2,
       .window = 40,
       .window_pages = 27,
       .narrow_dim = 40,
       .softcap = 5.0f,
       .extras = true,
       .experts = 3},
      {3, 2}, 48, 20, WeightFormat::kBf16, KvDtype::kInt8);
  add({.q_heads = 6,
       .kv_heads = 3,
       .head_dim = 32,
       .hidden = 72,
       .intermediate = 60,
       .vocabulary = 131,
       .layers = 4,
       .window = 70,
       .chunked = true,
       .window_pages = 21,
       .odd_head_dim = 80,
       .extras = true},
      {2, 2}, 64, 20);
  add({.q_heads = 4, .kv_heads = 2, .head_dim = 96, .hidden = 33, .intermediate = 50, .vocabulary = 19, .layers = 1},
      {2, 1, 3}, 40, 20, WeightFormat::kFp8, KvDtype::kFp8E4m3);
  add({.q_heads = 2, .kv_heads = 1, .head_dim = 256, .hidden = 40, .intermediate = 31, .vocabulary = 1, .layers = 1},
      {2, 2}, 33, 10);
  add({.q_heads = 3,
       .kv_heads = 3,
       .head_dim = 16,
       .hidden = 544,
       .intermediate = 96,
       .vocabulary = 64,
       .layers = 1,
       .extras = true,
       .pools = true},
      {2, 2, 2}, 160, 10);
  // Latents: a rank without heads; sequences that ranks divide from 100 and from 1 token on, more of them than fit a
  // step.
  add({.q_heads = 2,
       .kv_heads = 1,
       .head_dim = 96,
       .hidden = 72,
       .intermediate = 132,
       .vocabulary = 131,
       .layers = 2,
       .experts = 5,
       .value_dim = 64},
      {2, 1, 3}, 70, 20, WeightFormat::kInt8);
  add({.q_heads = 5,
       .kv_heads = 1,
       .head_dim = 160,
       .hidden = 96,
       .intermediate = 96,
       .vocabulary = 131,
       .layers = 2,
       .value_dim = 96,
       .divided_from = 100,
       .pools = true},
      {2, 3}, 70, 30, WeightFormat::kInt4);
  add({.q_heads = 3,
       .kv_heads = 1,
       .head_dim = 64,
       .hidden = 40,
       .intermediate = 31,
       .vocabulary = 19,
       .layers = 1,
       .value_dim = 32,
       .divided_from = 1},
      {1, 2, 2}, 40, 40);
  add({.q_heads = 4,
       .kv_heads = 1,
       .head_dim = 576,
       .hidden = 33,
       .intermediate = 50,
       .vocabulary = 40,
       .layers = 1,
       .value_dim = 512},
      {3}, 50, 20, WeightFormat::kFp8);
  // Norms that ranks divide: a rank without heads, and threads beyond the ring's lanes.
  add({.q_heads = 4,
       .kv_heads = 2,
       .head_dim = 24,
       .hidden = 72,
       .intermediate = 100,
       .vocabulary = 131,
       .layers = 2,
       .window = 40,
       .extras = true,
       .divided_norms = true,
       .plain_inputs = true},
      {2, 1, 3}, 48, 20);
  add({.q_heads = 9,
       .kv_heads = 3,
       .head_dim = 20,
       .hidden = 72,
       .intermediate = 100,
       .vocabulary = 131,
       .layers = 2,
       .divided_norms = true,
       .pools = true},
      {3, 2}, 64, 20, WeightFormat::kInt8);
  // Last layers that work on the rows of logits alone, over a window table and over whole pages.
  add({.q_heads = 4,
       .kv_heads = 2,
       .head_dim = 24,
       .hidden = 72,
       .intermediate = 100,
       .vocabulary = 131,
       .layers = 4,
       .window = 40,
       .window_pages = 21,
       .extras = true,
       .narrows = true,
       .experts = 3},
      {2, 3}, 64, 20);
  // Nothing but pooling, as a model that embeds.
  add({.q_heads = 4,
       .kv_heads = 2,
       .head_dim = 24,
       .hidden = 72,
       .intermediate = 132,
       .vocabulary = 131,
       .layers = 2,
       .samples = false,
       .pools = true},
      {2, 2}, 48, 20);
  // Recurrent layers: a rank without heads, more threads than strips, norms of two groups and of one on a rank.
  using Heads = std::pair<StateRule, int32_t>;
  for (const auto& [rule, keys] : {Heads{StateRule::kGatedDelta, 2}, Heads{StateRule::kStateSpace, 2},
                                   Heads{StateRule::kStateSpace, 4}, Heads{StateRule::kKeyDelta, 2}})
    add({.q_heads = 4,
         .kv_heads = 2,
         .head_dim = 24,
         .hidden = 72,
         .intermediate = 100,
         .vocabulary = 131,
         .layers = 3,
         .delta_keys = keys,
         .delta_values = keys * keys,
         .rule = rule},
        {2, 1, 3}, 48, 20);
  add({.q_heads = 2,
       .kv_heads = 1,
       .head_dim = 32,
       .hidden = 96,
       .intermediate = 64,
       .vocabulary = 131,
       .layers = 2,
       .experts = 3,
       .delta_keys = 1,
       .delta_values = 3,
       .pools = true},
      {3}, 70, 20, WeightFormat::kInt8);
  // Parts of k for every thread.
  add({.q_heads = 2, .kv_heads = 1, .head_dim = 16, .hidden = 2112, .intermediate = 64, .vocabulary = 40, .layers = 1},
      {3}, 20, 10);
  return all;
}

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

int run(const char* isa, int requests, uint64_t seed) {
  const std::vector<std::string> available = available_isas();
  if (std::find(available.begin(), available.end(), isa) == available.end()) return 77;
  int wrong = 0;
  for (const Model& model : models(*table_by_name(isa))) {
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
  if (argc != 4) {
    std::fprintf(stderr, "usage: program_stress ISA REQUESTS SEED\n");
    return 2;
  }
  return numaserve::testing::run(argv[1], std::atoi(argv[2]), std::strtoull(argv[3], nullptr, 10));
}
