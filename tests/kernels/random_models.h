// The models of random programs: their sizes, limits and numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/runtime/program/program.h"

namespace numaserve::testing {

enum class StateRule { kGatedDelta, kStateSpace, kKeyDelta };

struct Shape {
  int32_t q_heads, kv_heads, head_dim;
  int64_t hidden, intermediate, vocabulary, layers;
  int32_t window = 0;        // of the odd layers
  bool chunked = false;      // whether the window begins at its multiples
  int64_t window_pages = 0;  // of the window table of the odd layers; 0: they use the page table of the even ones
  int32_t odd_head_dim = 0;  // of the odd layers, where they have a window; 0: as the others
  int32_t narrow_dim = 0;    // of values of heads; 0: as of keys
  float softcap = 0.0f;
  bool extras = false;         // biases, q and k norms, norms after the sums
  bool cuts_groups = false;    // ranks divide query heads evenly, wherever their KV heads are
  bool divided_norms = false;  // norms over all heads of queries and of keys
  bool plain_inputs = false;   // products read the residual stream, not its norm
  bool adapters = false;       // low-rank ones, of all products but those of experts, routers and logits
  bool narrows = false;        // two more layers work on the rows of logits alone
  int32_t experts = 0;         // of the odd layers, three for each token and a shared one; 0: none
  int64_t features = 0;        // rows of images, which replace embeddings of a prompt; 0: none
  // The columns of a head's latents in a latent cache, before the rotated ones. kv_heads is then 1. 0: no latents.
  int32_t value_dim = 0;
  int64_t divided_from = 0;  // tokens of a sequence from which on ranks divide its latents; 0: they do not
  // The key and value heads of the even layers, which keep states by a rule; 0: there are none.
  int32_t delta_keys = 0, delta_values = 0;
  StateRule rule = StateRule::kGatedDelta;
  bool samples = true, pools = false;  // what the program ends with
  bool latent() const { return value_dim > 0; }
};

struct Model {
  Shape shape;
  Limits limits;             // without window pages; its vocabulary is the shape's
  std::vector<int> threads;  // of each rank's team
  const KernelTable* table;
  KvDtype kv_dtype = KvDtype::kBf16;
  WeightFormat format = WeightFormat::kBf16;  // of all matrices but the embedding, which is the head too
  WeightFormat shared_format = format;        // of the shared experts

  int world() const { return static_cast<int>(threads.size()); }
  uint32_t lanes() const { return static_cast<uint32_t>(*std::min_element(threads.begin(), threads.end())); }
  int64_t context() const { return limits.pages_per_slot() * kPageTokens - 5; }  // not all of the last page
};

// The same random numbers for a tensor on every rank: each packs its own rows and columns of them.
inline std::vector<float> random_values(int64_t count, uint64_t key, float scale, float offset = 0.0f) {
  std::mt19937_64 random(key);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = offset + scale * (static_cast<float>(random() >> 40) / float{1 << 23} - 1.0f);
  return values;
}

inline std::vector<bf16> random_bf16(int64_t count, uint64_t key, float scale) {
  std::vector<bf16> upper;
  for (const float value : random_values(count, key, scale))
    upper.push_back(static_cast<bf16>(std::bit_cast<uint32_t>(value) >> 16));
  return upper;
}

inline Range part_of(int64_t count, const Model& model, int rank, int64_t unit = 1) {
  return split(count, model.world(), rank, unit);
}

}  // namespace numaserve::testing
