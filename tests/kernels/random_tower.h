// The part of a vision tower that makes a row of each block of patches, as a Program of its own.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "kernels/runtime/program/image_nodes.h"
#include "kernels/runtime/program/stream_nodes.h"
#include "tests/kernels/random_nodes.h"
#include "tests/kernels/stress_models.h"

namespace numaserve::testing {

using Tile = std::vector<int32_t>;  // a token for each patch

class TowerProgram : public RandomNodes {
 public:
  static constexpr int64_t kSide = 6, kFactor = 3, kPatches = kSide * kSide, kMerged = kFactor * kFactor;

  explicit TowerProgram(const Model& model) : RandomNodes(model, 0, nullptr) {
    PackedMatrix& embedding = matrix(shape_.vocabulary, shape_.hidden, WeightFormat::kBf16);
    pack(embedding, shape_.vocabulary, shape_.hidden, {vocab_}, 0, {0, 1, 0});
    const Place residual = rows(shape_.hidden, sizeof(float)), embedded = partial();
    program_.add(
        std::make_unique<EmbedNode>(program_.row_indices(row_index_of("token")), embedding, 0, 3.0f, embedded));
    reduce(embedded, residual, true);
    const Place x = normed(residual), merged = rows(kMerged * shape_.hidden, sizeof(bf16));
    program_.add(
        std::make_unique<MergeRowsNode>(x, merged, shape_.hidden * sizeof(bf16), sizeof(bf16), kSide, kFactor));
    program_.merge(kPatches, kMerged, 0, false);
    PackedMatrix& connector = matrix(shape_.hidden, kMerged * shape_.hidden);
    pack(connector, shape_.hidden, kMerged * shape_.hidden, {{0, shape_.hidden}}, 0, {0, 1, 0});
    features_ = rows(shape_.hidden, sizeof(float));
    product("linear", merged, connector, features_);
    program_.set_collectives(0);
  }

  // Returns the rows of each tile, all of which are in one step.
  std::vector<std::vector<float>> run(const std::vector<Tile>& tiles) {
    std::vector<SequenceInput> plan;
    std::vector<int32_t> tokens;
    for (const Tile& tile : tiles) {
      const auto slot = static_cast<int32_t>(plan.size());
      program_.slots().init(slot, {});
      program_.slots().append_pages(slot, std::vector{2 * slot, 2 * slot + 1});
      plan.push_back(
          {.slot = slot, .start = 0, .count = kPatches, .from_previous = false, .sample = false, .num_targets = 0});
      tokens.insert(tokens.end(), tile.begin(), tile.end());
    }
    program_.run(plan, tokens, {});
    const auto* row = reinterpret_cast<const float*>(program_.arena().data() + features_.offset);
    std::vector<std::vector<float>> made(tiles.size());
    for (std::vector<float>& each : made)
      for (int64_t i = 0; i < kPatches / kMerged; ++i, row += features_.ld)
        each.insert(each.end(), row, row + shape_.hidden);
    return made;
  }

 private:
  Place features_{};
};

// Returns the number of tiles whose rows differ from those of the same tile alone, on one thread.
inline int different_tiles(const KernelTable& table, uint64_t seed) {
  constexpr int kTiles = 5;
  Models list(table);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kInt8})
    for (const int threads : {1, 3})
      list.add({.q_heads = 2,
                .kv_heads = 1,
                .head_dim = 16,
                .hidden = 40,
                .intermediate = 31,
                .vocabulary = 131,
                .layers = 1,
                .samples = false},
               {threads}, kTiles * TowerProgram::kPatches, 5, format);
  std::mt19937_64 random(seed);
  std::vector<Tile> tiles(kTiles, Tile(TowerProgram::kPatches));
  for (Tile& tile : tiles)
    for (int32_t& token : tile) token = static_cast<int32_t>(random() % 131);
  int wrong = 0;
  for (size_t i = 0; i < list.all.size(); i += 2) {
    TowerProgram alone(list.all[i]), together(list.all[i + 1]);
    const std::vector<std::vector<float>> found = together.run(tiles);
    for (size_t tile = 0; tile < tiles.size(); ++tile) wrong += alone.run({tiles[tile]}).front() != found[tile];
  }
  std::printf("%d of %d tiles differ\n", wrong, kTiles * static_cast<int>(list.all.size() / 2));
  return wrong;
}

}  // namespace numaserve::testing
