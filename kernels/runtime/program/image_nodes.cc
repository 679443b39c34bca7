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
    for (int64_t i = 0; i < cols; ++i) to[i] = std::bit_cast<float>(uint32_t{from[i]} << 16);
  }
}

void MergeRowsNode::run(Run& run, int thread) const {
  const int64_t blocks = side / factor, per_tile = blocks * blocks;
  const auto row_bytes = cols * static_cast<int64_t>(sizeof(bf16));
  const int64_t merged = cols * factor * factor;
  const Range mine = split(run.step.merged_rows(), run.team.size(), thread);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const int64_t block = row % per_tile;
    const int64_t first = row / per_tile * side * side + block / blocks * factor * side + block % blocks * factor;
    bf16* to = run.at<bf16>(out) + row * out.ld;
    for (int64_t i = 0; i < factor * factor; ++i)
      run.table.copy(run.at<bf16>(x) + (first + i / factor * side + i % factor) * x.ld, to + i * cols, row_bytes);
    std::memset(to + merged, 0, static_cast<size_t>(out.ld - merged) * sizeof(bf16));  // products read whole tiles
  }
}

}  // namespace numaserve
