// The sums of a row block and two panels as rows of 32 columns: the default of the loop nest's views of formats.
#pragma once

#include "kernels/gemm/epilogue.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// c += part, for `count` values.
inline void add_values(const float* part, int64_t count, float* c) {
  for (int64_t i = 0; i < count; i += 16) (F32x16::load(c + i) + F32x16::load(part + i)).store(c + i);
}
inline void add_values(const int32_t* part, int64_t count, int32_t* c) {
  for (int64_t i = 0; i < count; ++i) c[i] += part[i];
}

template <class Sum>
struct SumsInRows {
  static void begin_share(const GemmArgs&, const GemmShare&, GemmScratch&) {}
  static void begin_rows(const GemmArgs&, int64_t, int64_t, GemmScratch&) {}
  static void end_rows(const GemmArgs&, GemmScratch&) {}
  static void end_share(const GemmScratch&) {}
  static void add_part(int64_t rows, const Sum* part, Sum* c, const GemmScratch&) { add_values(part, rows * 32, c); }
  static void finish(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, const Sum* c, GemmScratch& scratch) {
    gemm_epilogue(g, c, row, rows, panel, scratch.row_scales, nullptr);
  }
};

}  // namespace
}  // namespace numaserve
