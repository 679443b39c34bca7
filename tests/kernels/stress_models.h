// The models of program_stress.
#pragma once

#include <utility>
#include <vector>

#include "tests/kernels/random_program.h"

namespace numaserve::testing {

// Makes the models of a list for one instruction set.
class Models {
 public:
  explicit Models(const KernelTable& table) : table_(table) {}

  void add(const Shape& shape, std::vector<int> threads, int64_t max_step_tokens, int64_t pages_per_slot,
           WeightFormat format = WeightFormat::kBf16, KvDtype kv_dtype = KvDtype::kBf16) {
    all.push_back({.shape = shape,
                   .limits = {{.num_pages = 2 * pages_per_slot + 3,
                               .context_length = pages_per_slot * kPageTokens,
                               .max_slots = 5,
                               .max_step_tokens = max_step_tokens,
                               .max_logit_rows = 23,
                               .num_snapshots = 3,
                               .max_drafts = 4},
                              shape.vocabulary},
                   .threads = std::move(threads),
                   .table = &table_,
                   .kv_dtype = kv_dtype,
                   .format = format,
                   .shared_format = format == WeightFormat::kInt4 ? WeightFormat::kFp8 : format});
  }

  std::vector<Model> all;

 private:
  const KernelTable& table_;
};

// Shapes at the edges: head sizes that are no multiple of a tile, contexts cut into blocks, sliding windows, ranks
// and window tables, ranks without heads or vocabulary, rows of experts that fill whole tiles, ranks with threads
// beyond the ring's lanes, products with adapters, rows of images in place of embeddings, sums so large that they are
// shared and overlap products, of one block of rows and of two; programs that sample, that pool, that do both.
inline std::vector<Model> edge_models(const KernelTable& table) {
  Models list(table);
  list.add({.q_heads = 6,
            .kv_heads = 3,
            .head_dim = 24,
            .hidden = 72,
            .intermediate = 132,
            .vocabulary = 131,
            .layers = 2,
            .extras = true,
            .adapters = true,
            .experts = 5,
            .features = 20,
            .pools = true},
           {2, 2}, 64, 20, WeightFormat::kInt8);
  list.add({.q_heads = 9,
            .kv_heads = 3,
            .head_dim = 24,
            .hidden = 72,
            .intermediate = 100,
            .vocabulary = 131,
            .layers = 2,
            .adapters = true,
            .experts = 20},
           {3}, 70, 20, WeightFormat::kInt4);
  list.add({.q_heads = 4,
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
            .adapters = true,
            .experts = 3},
           {3, 2}, 48, 20, WeightFormat::kBf16, KvDtype::kInt8);
  list.add({.q_heads = 6,
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
  list.add(
      {.q_heads = 4, .kv_heads = 2, .head_dim = 96, .hidden = 33, .intermediate = 50, .vocabulary = 19, .layers = 1},
      {2, 1, 3}, 40, 20, WeightFormat::kFp8, KvDtype::kFp8E4m3);
  list.add(
      {.q_heads = 2, .kv_heads = 1, .head_dim = 256, .hidden = 40, .intermediate = 31, .vocabulary = 1, .layers = 1},
      {2, 2}, 33, 10);
  list.add({.q_heads = 3,
            .kv_heads = 3,
            .head_dim = 16,
            .hidden = 544,
            .intermediate = 96,
            .vocabulary = 64,
            .layers = 1,
            .extras = true,
            .adapters = true,
            .pools = true},
           {2, 2, 2}, 160, 10);
  list.add({.q_heads = 4,
            .kv_heads = 4,
            .head_dim = 16,
            .hidden = 321,
            .intermediate = 160,
            .vocabulary = 64,
            .layers = 2,
            .adapters = true,
            .experts = 3,
            .features = 40},
           {2, 1, 3, 1, 1}, 300, 12, WeightFormat::kInt8);
  // Latents: a rank without heads; sequences that ranks divide from 100 and from 1 token on, more of them than fit a
  // step.
  list.add({.q_heads = 2,
            .kv_heads = 1,
            .head_dim = 96,
            .hidden = 72,
            .intermediate = 132,
            .vocabulary = 131,
            .layers = 2,
            .adapters = true,
            .experts = 5,
            .features = 9,
            .value_dim = 64},
           {2, 1, 3}, 70, 20, WeightFormat::kInt8);
  list.add({.q_heads = 5,
            .kv_heads = 1,
            .head_dim = 160,
            .hidden = 96,
            .intermediate = 96,
            .vocabulary = 131,
            .layers = 2,
            .adapters = true,
            .value_dim = 96,
            .divided_from = 100,
            .pools = true},
           {2, 3}, 70, 30, WeightFormat::kInt4);
  list.add({.q_heads = 3,
            .kv_heads = 1,
            .head_dim = 64,
            .hidden = 40,
            .intermediate = 31,
            .vocabulary = 19,
            .layers = 1,
            .value_dim = 32,
            .divided_from = 1},
           {1, 2, 2}, 40, 40);
  list.add({.q_heads = 4,
            .kv_heads = 1,
            .head_dim = 576,
            .hidden = 33,
            .intermediate = 50,
            .vocabulary = 40,
            .layers = 1,
            .value_dim = 512},
           {3}, 50, 20, WeightFormat::kFp8);
  // Norms that ranks divide: a rank without heads, and threads beyond the ring's lanes.
  list.add({.q_heads = 4,
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
  list.add({.q_heads = 9,
            .kv_heads = 3,
            .head_dim = 20,
            .hidden = 72,
            .intermediate = 100,
            .vocabulary = 131,
            .layers = 2,
            .divided_norms = true,
            .pools = true},
           {3, 2}, 64, 20, WeightFormat::kInt8);
  // KV heads whose query heads several ranks have: one that three ranks have, uneven numbers, norms that count each
  // once.
  list.add({.q_heads = 10,
            .kv_heads = 2,
            .head_dim = 32,
            .hidden = 72,
            .intermediate = 100,
            .vocabulary = 131,
            .layers = 2,
            .window = 40,
            .window_pages = 21,
            .narrow_dim = 24,
            .extras = true,
            .cuts_groups = true},
           {2, 1, 3, 2}, 64, 20, WeightFormat::kInt8, KvDtype::kFp8E4m3);
  list.add({.q_heads = 9,
            .kv_heads = 3,
            .head_dim = 20,
            .hidden = 72,
            .intermediate = 100,
            .vocabulary = 131,
            .layers = 2,
            .cuts_groups = true,
            .divided_norms = true,
            .pools = true},
           {3, 2}, 64, 20);
  // Last layers that work on the rows of logits alone, over a window table and over whole pages.
  list.add({.q_heads = 4,
            .kv_heads = 2,
            .head_dim = 24,
            .hidden = 72,
            .intermediate = 100,
            .vocabulary = 131,
            .layers = 4,
            .window = 40,
            .window_pages = 21,
            .extras = true,
            .adapters = true,
            .narrows = true,
            .experts = 3},
           {2, 3}, 64, 20);
  // Nothing but pooling, as a model that embeds.
  list.add({.q_heads = 4,
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
    list.add({.q_heads = 4,
              .kv_heads = 2,
              .head_dim = 24,
              .hidden = 72,
              .intermediate = 100,
              .vocabulary = 131,
              .layers = 3,
              .adapters = rule == StateRule::kStateSpace,
              .delta_keys = keys,
              .delta_values = keys * keys,
              .rule = rule},
             {2, 1, 3}, 48, 20);
  list.add({.q_heads = 2,
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
  list.add({.q_heads = 2,
            .kv_heads = 1,
            .head_dim = 16,
            .hidden = 2112,
            .intermediate = 64,
            .vocabulary = 40,
            .layers = 1,
            .adapters = true},
           {3}, 20, 10);
  return list.all;
}

}  // namespace numaserve::testing
