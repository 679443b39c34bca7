// Vectors and tables that a Program's nodes point into, in addition to packed matrices.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/include/types.h"

namespace numaserve {

using Vector = std::vector<float>;  // a norm weight or a bias; nodes point into the caller's

// A vector padded with zeros, because kernels read whole registers.
struct PaddedVector {
  PaddedVector(const float* source, int64_t count)
      : size(count), values(source, source + count), padded(values.begin(), values.end()) {
    padded.resize(static_cast<size_t>(round_up(size, kPad)), 0.0f);
  }
  int64_t size;
  Vector values, padded;
};

// Cosines and sines [positions, half] of one rope, and the factor of queries at each position, if it is not always 1.
// Dimensions of a pair lie `distance` apart.
struct RopeTable {
  RopeTable(const float* cos_in, const float* sin_in, int64_t positions_in, int32_t half_in, int32_t distance_in,
            const float* q_scale_in)
      : positions(positions_in),
        half(half_in),
        distance(distance_in),
        cos(cos_in, cos_in + positions * half),
        sin(sin_in, sin_in + positions * half) {
    if (q_scale_in != nullptr) q_scale.assign(q_scale_in, q_scale_in + positions);
  }
  const float* query_scale() const { return q_scale.empty() ? nullptr : q_scale.data(); }
  int64_t positions;
  int32_t half, distance;
  Vector cos, sin, q_scale;
};

}  // namespace numaserve
