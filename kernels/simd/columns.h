// Columns of a row that an operation takes together: whole registers, or one that is partly outside of the row.
#pragma once

#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// Unless `kWhole`, only the first `valid` columns of the only register lie within the row; the others are zero.
template <int kVectors, bool kWhole>
struct RowColumns {
  static_assert(kVectors == 1 || kWhole);
  int valid;
  F32x16 load(const float* p, int vector) const {
    return kWhole ? F32x16::load(p + 16 * vector) : F32x16::load_head(p, valid);
  }
  void store(F32x16 x, float* p, int vector) const {
    if (kWhole)
      x.store(p + 16 * vector);
    else
      x.store_head(p, valid);
  }
};

}  // namespace
}  // namespace numaserve
