#include "kernels/runtime/program/image_nodes.h"

#include <bit>
#include <cstring>

namespace numaserve {

void PlaceRowsNode::run(Run& run, int thread) const {
  const std::vector<int32_t>& features = run.step.feature_rows;
  const Range mine = split(static_cast<int64_t>(features.size()), run.team.size(), thread);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const int32_t feature = features[static_cast<size_t>(row)];
    if (feature < 0) continue;
    const bf16* from = run.at<bf16>(pool) + feature * pool.ld;
    float* to = run.at<float>(residual) + row * residual.ld;
    for (int64_t i = 0; i < cols; ++i) {
      const float value = std::bit_cast<float>(uint32_t{from[i]} << 16);
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
  const int64_t blocks = side / factor, per_tile = blocks * blocks;
  const int64_t merged = row_bytes * factor * factor;
  const Range mine = split(run.step.merged_rows(), run.team.size(), thread);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const int64_t block = row % per_tile;
    const int64_t first = row / per_tile * side * side + block / blocks * factor * side + block % blocks * factor;
    std::byte* to = run.at<std::byte>(out) + row * out.ld * item_bytes;
    for (int64_t i = 0; i < factor * factor; ++i) {
      const int64_t patch = first + i / factor * side + i % factor;
      run.table.copy(run.at<std::byte>(x) + patch * x.ld * item_bytes, to + i * row_bytes, row_bytes);
    }
    std::memset(to + merged, 0, static_cast<size_t>(out.ld * item_bytes - merged));  // products read whole tiles
  }
}

}  // namespace numaserve
