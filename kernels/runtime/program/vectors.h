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

// Cosines and sines [positions, half] of one rope.
struct RopeTable {
  RopeTable(const float* cos_in, const float* sin_in, int64_t positions_in, int32_t half_in)
      : positions(positions_in),
        half(half_in),
        cos(cos_in, cos_in + positions * half),
        sin(sin_in, sin_in + positions * half) {}
  int64_t positions;
  int32_t half;
  Vector cos, sin;
};

}  // namespace numaserve
