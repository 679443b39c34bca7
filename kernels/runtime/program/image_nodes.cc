#include "kernels/runtime/program/image_nodes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace numaserve {
namespace {

float widened(bf16 value) { return std::bit_cast<float>(uint32_t{value} << 16); }

// Returns the nearest bf16, of two equally near ones the even one.
bf16 nearest(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<bf16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// The blocks of factor x factor patches of tiles of side x side patches, both in the order of rows.
struct Blocks {
  int64_t side, factor;
  // Returns the first patch of block `row` of all tiles.
  int64_t first(int64_t row) const {
    const int64_t blocks = side / factor, per_tile = blocks * blocks, block = row % per_tile;
    return row / per_tile * side * side + block / blocks * factor * side + block % blocks * factor;
  }
  // Returns the i-th patch of a block, from its first one on.
  int64_t patch(int64_t i) const { return i / factor * side + i % factor; }
};

}  // namespace

void PlaceRowsNode::run(Run& run, int thread) const {
  const std::vector<int32_t>& features = run.step.feature_rows;
  const Range mine = split(static_cast<int64_t>(features.size()), run.team.size(), thread);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const int32_t feature = features[static_cast<size_t>(row)];
    if (feature < 0) continue;
    const bf16* from = run.at<bf16>(pool) + feature * pool.ld;
    float* to = run.at<float>(residual) + row * residual.ld;
    for (int64_t i = 0; i < cols; ++i) {
      const float value = widened(from[i]);
      to[i] = add ? to[i] + value : value;
    }
  }
}

void RotaryRowsNode::run(Run& run, int thread) const {
  const int64_t half = rope.half;
  const Range mine = split(rows(run), run.team.size(), thread);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    float* to = run.at<float>(out) + row * out.ld;
    for (int64_t i = 0; i < half; ++i) {
      const auto from = static_cast<size_t>(indices[static_cast<size_t>(i)][row] * half + i);
      to[i] = rope.cos[from];
      to[half + i] = rope.sin[from];
    }
  }
}

void EmbedTapsNode::run(Run& run, int thread) const {
  for (int64_t tap = 0; tap < taps; ++tap)
    run.table.embed({.indices = run.at<int32_t>(weights) + tap,
                     .stride = weights.ld,
                     .table = reinterpret_cast<const bf16*>(table.data()),
                     .k_tiles = table.depth() / kTileK,
                     .first_row = first_row,
                     .num_rows = table.n(),
                     .scale = 1.0f,
                     .scales = run.at<float>(weights) + taps + tap,
                     .accumulate = true,
                     .out = run.at<float>(out),
                     .ld = out.ld,
                     .rows = rows(run)},
                    thread, run.team.size());
}

void MergeRowsNode::run(Run& run, int thread) const {
  const Blocks blocks{side, factor};
  const int64_t merged = row_bytes * factor * factor;
  const Range mine = split(run.step.merged_rows(), run.team.size(), thread);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const int64_t first = blocks.first(row);
    std::byte* to = run.at<std::byte>(out) + row * out.ld * item_bytes;
    for (int64_t i = 0; i < factor * factor; ++i) {
      const int64_t patch = first + blocks.patch(i);
      run.table.copy(run.at<std::byte>(x) + patch * x.ld * item_bytes, to + i * row_bytes, row_bytes);
    }
    std::memset(to + merged, 0, static_cast<size_t>(out.ld * item_bytes - merged));  // products read whole tiles
  }
}

void MeanRowsNode::run(Run& run, int thread) const {
  const Blocks blocks{side, factor};
  const int64_t count = factor * factor;
  const float share = 1.0f / static_cast<float>(count);
  const Range mine = split(run.step.merged_rows(), run.team.size(), thread);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const float* from = run.at<float>(x) + blocks.first(row) * x.ld;
    float* to = run.at<float>(out) + row * out.ld;
    std::copy_n(from, cols, to);
    for (int64_t patch = 1; patch < count; ++patch) {
      const float* more = from + blocks.patch(patch) * x.ld;
      for (int64_t i = 0; i < cols; ++i) to[i] += more[i];
    }
    for (int64_t i = 0; i < cols; ++i) {
      const float mean = to[i] * share;
      to[i] = (shift == nullptr ? mean : mean - shift[i]) * (weight == nullptr ? 1.0f : weight[i]);
    }
    if (eps == 0.0f) continue;
    double squares = 0.0;
    for (int64_t i = 0; i < cols; ++i) squares += double{to[i]} * to[i];
    const auto scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(cols) + eps));
    for (int64_t i = 0; i < cols; ++i) to[i] *= scale;
  }
}

void ClampNode::run(Run& run, int thread) const {
  const Range mine = split(rows(run), run.team.size(), thread);
  const auto clamped = [&](float value) { return std::min(std::max(value, bounds[0]), bounds[1]); };
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    if (rounded) {
      const bf16* from = run.at<bf16>(x) + row * x.ld;
      bf16* to = run.at<bf16>(out) + row * out.ld;
      for (int64_t i = 0; i < cols; ++i) to[i] = nearest(clamped(widened(from[i])));
      std::fill(to + cols, to + round_up(cols, kPad), bf16{0});  // products read whole tiles
    } else {
      const float* from = run.at<float>(x) + row * x.ld;
      float* to = run.at<float>(out) + row * out.ld;
      for (int64_t i = 0; i < cols; ++i) to[i] = clamped(from[i]);
    }
  }
}

}  // namespace numaserve
