// The one GEMM loop nest. How rows pass by weights differs between the instruction sets (`tile_gemm`, or packed rows),
// and between the formats only what four bytes of a line mean and how a finished sum is read.
//
// With many rows, for a thread's share of rows and panels:
//   rows in blocks of 256                     weights are read from memory once a block: 256 operations a byte
//     panels in groups                        the block's results for a group stay in L2, in fp32
//       k in slabs                            the block of A for a slab stays in L2 while the group passes by it
//         panels in pairs
//           k in blocks                       a pair's block of weights stays in L1 while the rows pass by it
//             rows in tiles of 32, or packed in passes of up to 12
// The sizes follow from the set and the processor's caches (kernels/blocking.h). Results are carried between slabs and
// blocks of k in fp32 or int32, which is exact: the bits do not depend on the blocking. For formats in groups
// (grouped.inl) a slab and a block are as many groups. With up to 32 rows there is nothing to reuse, and every panel
// pair is read once, from its first tile to its last.
#pragma once

#include "kernels/gemm/grouped.inl"
#include "kernels/gemm/plain.inl"
#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"

namespace numaserve {
namespace {

// Calls `multiply` for each rectangle of a thread's part of [m, n_panels], three at most but for very many rows. Units
// of 32 rows and two panels are counted through row blocks one after the other, in these through panels, in these
// through rows: any number of threads, 43 too, has equal parts, and parts are not flat, so that what is read stays in
// caches. A grid of threads would have to divide both sides evenly.
template <class Multiply>
inline void for_share(int64_t m, int64_t n_panels, int thread, int threads, Multiply&& multiply) {
  constexpr int64_t kUnitRows = 32, kBlockUnits = kRowBlock / kUnitRows;
  const int64_t row_units = ceil_div(m, kUnitRows), pairs = n_panels / 2;
  const Range units = split(row_units * pairs, threads, thread);
  for (int64_t unit = units.begin; unit < units.end;) {
    const int64_t block = unit / (kBlockUnits * pairs), left_units = row_units - block * kBlockUnits;
    const int64_t height = left_units < kBlockUnits ? left_units : kBlockUnits;
    const int64_t within = unit - block * kBlockUnits * pairs, pair = within / height, first = within % height;
    const int64_t left = units.end - unit < pairs * height - within ? units.end - unit : pairs * height - within;
    const int64_t below = height - first < left ? height - first : left;
    const int64_t wide = first == 0 && left >= height ? left / height : 1, tall = wide > 1 ? height : below;
    const int64_t row = (block * kBlockUnits + first) * kUnitRows, end = row + tall * kUnitRows;
    multiply(GemmShare{{row, end < m ? end : m}, {2 * pair, 2 * (pair + wide)}});
    unit += wide * tall;
  }
}

inline F32x16 activate(F32x16 x, Activation activation) {
  if (activation == Activation::kSilu) return x / (F32x16::set1(1.0f) + exp(F32x16::zero() - x));
  if (activation == Activation::kSwigluOai) return x / (F32x16::set1(1.0f) + exp(x * F32x16::set1(-kSigmoidGain)));
  // GELU, tanh approximation (Hendrycks and Gimpel, 2016).
  const F32x16 inner = F32x16::fma(x * x * x, F32x16::set1(0.044715f), x) * F32x16::set1(0.79788456f);
  return F32x16::set1(0.5f) * x * (F32x16::set1(1.0f) + tanh(inner));
}

inline F32x16 gated(const GemmArgs& g, F32x16 gate, F32x16 up) {
  if (g.activation != Activation::kSwigluOai) return activate(gate, g.activation) * up;
  // The second operand is what remains where one is not a number.
  const F32x16 limit = F32x16::set1(g.limit), one = F32x16::set1(1.0f);
  up = F32x16::max(F32x16::zero() - limit, F32x16::min(limit, up));
  return activate(F32x16::min(limit, gate), g.activation) * (up + one);
}

inline F32x16 finished(const GemmArgs& g, const float* c, int64_t, int64_t column) {
  const F32x16 sum = F32x16::load(c);
  return g.b.scales != nullptr ? sum * F32x16::load(g.b.scales + column) : sum;
}
inline F32x16 finished(const GemmArgs& g, const int32_t* c, int64_t row, int64_t column) {
  const int8_t* a = static_cast<const int8_t*>(g.a) + row * g.lda + g.b.depth;
  float scale;
  __builtin_memcpy(&scale, a, sizeof(scale));
  const F32x16 sum = F32x16::convert(c, kActivationOffset != 0 ? g.b.corrections + column : nullptr);
  return sum * F32x16::set1(scale) * F32x16::load(g.b.scales + column);
}

// Writes the finished results of two panels for `rows` rows; c is [rows][32].
template <class Sum>
inline void gemm_epilogue(const GemmArgs& g, const Sum* c, int64_t row, int64_t rows, int64_t panel) {
  const auto bias_of = [&](int half) {
    return g.bias != nullptr ? F32x16::load(g.bias + (panel + half) * kTileN) : F32x16::zero();
  };
  const F32x16 bias[2] = {bias_of(0), bias_of(1)};
  const auto value_at = [&](int64_t r, int half) {
    return finished(g, c + r * 32 + half * kTileN, row + r, (panel + half) * kTileN) + bias[half];
  };
  if (g.activation != Activation::kNone) {
    for (int64_t r = 0; r < rows; ++r)
      gated(g, value_at(r, 0), value_at(r, 1)).store(g.out_bf16 + (row + r) * g.ldo + panel / 2 * kTileN);
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const int64_t column = (panel + half) * kTileN;
    for (int64_t r = 0; r < rows; ++r) {
      const F32x16 value = value_at(r, half);
      const int64_t at = (row + r) * g.ldo + column;
      if (g.accumulate)
        (F32x16::load(g.out_f32 + at) + value).store(g.out_f32 + at);
      else if (g.out_f32 != nullptr)
        value.store(g.out_f32 + at);
      else
        value.store(g.out_bf16 + at);
    }
  }
}

// c += part, for `rows` rows of two panels.
inline void add_part(const float* part, int64_t rows, float* c) {
  for (int64_t i = 0; i < rows * 32; i += 16) (F32x16::load(c + i) + F32x16::load(part + i)).store(c + i);
}
inline void add_part(const int32_t* part, int64_t rows, int32_t* c) {
  for (int64_t i = 0; i < rows * 32; ++i) c[i] += part[i];
}

// One row block and one group of panels, all of k.
template <class Weights>
inline void gemm_block(const GemmArgs& g, int64_t row, int64_t rows, Range panels, bool streamed,
                       GemmScratch& scratch) {
  using Sum = typename Weights::Sum;
  const int64_t units = ceil_div(g.b.depth, Weights::unit(g.b)), slab = Weights::slab(g, rows, streamed);
  const auto of = [&](float* results, int64_t panel) {
    return reinterpret_cast<Sum*>(results) + (panel - panels.begin) / 2 * kRowBlock * 32;
  };
  for (int64_t index = 0; index < g.b.k_parts; ++index) {
    const Range part = split(units, g.b.k_parts, index);
    float* results = index == 0 ? scratch.c : scratch.part;
    int64_t k = part.begin;
    do {
      const Range some{k, part.end - k < slab ? part.end : k + slab};
      if (slab < units) Weights::begin(g, row, rows, some, scratch);
      for (int64_t panel = panels.begin; panel < panels.end; panel += 2) {
        Weights::add(g, row, rows, panel, some, k == part.begin, streamed, scratch, of(results, panel));
        if (some.end < part.end) continue;
        if (index > 0) add_part(of(scratch.part, panel), rows, of(scratch.c, panel));
        if (index == g.b.k_parts - 1) gemm_epilogue(g, of(scratch.c, panel), row, rows, panel);
      }
      k = some.end;
    } while (k < part.end);
  }
}

template <class Weights>
inline void gemm_nest(const GemmArgs& g, const GemmShare& share, GemmScratch& scratch) {
  const int64_t units = ceil_div(g.b.depth, Weights::unit(g.b));
  for (int64_t row = share.rows.begin; row < share.rows.end; row += kRowBlock) {
    const int64_t rows = share.rows.end - row < kRowBlock ? share.rows.end - row : kRowBlock;
    const bool streamed = rows <= kStreamedRows;
    const bool whole = Weights::slab(g, rows, streamed) >= units;
    if (whole) Weights::begin(g, row, rows, {0, units}, scratch);
    const int64_t group = streamed && whole ? 2 : g.blocking.group_panels;
    for (int64_t first = share.panels.begin; first < share.panels.end; first += group) {
      const Range panels{first, share.panels.end - first < group ? share.panels.end : first + group};
      gemm_block<Weights>(g, row, rows, panels, streamed, scratch);
    }
  }
}

// The sums of a part of k and a pair of panels, one after the other; a thread's items lie in memory order. A step may
// have no rows, of logits or at all: there is nothing to pack then.
template <class Weights>
inline void nest_parts(const GemmArgs& g, void* sums, GemmScratch& scratch, int thread, int threads) {
  if (g.m == 0) return;
  using Sum = typename Weights::Sum;
  const int64_t units = ceil_div(g.b.depth, Weights::unit(g.b));
  const Range items = split(g.b.n_panels / 2 * g.b.k_parts, threads, thread);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const Range part = split(units, g.b.k_parts, item % g.b.k_parts);
    Weights::begin(g, 0, g.m, part, scratch);
    Weights::add(g, 0, g.m, item / g.b.k_parts * 2, part, true, true, scratch,
                 static_cast<Sum*>(sums) + item * kStreamedRows * 32);
  }
}

template <class Weights>
inline void finish_parts(const GemmArgs& g, void* sums, int thread, int threads) {
  using Sum = typename Weights::Sum;
  const Range pairs = split(g.b.n_panels / 2, threads, thread);
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    Sum* c = static_cast<Sum*>(sums) + pair * g.b.k_parts * kStreamedRows * 32;
    for (int64_t part = 1; part < g.b.k_parts; ++part) add_part(c + part * kStreamedRows * 32, g.m, c);
    gemm_epilogue(g, c, 0, g.m, 2 * pair);
  }
}

// Calls `work` with the loop nest's view of the weights.
template <class Work>
inline void with_weights(const GemmArgs& g, Work&& work) {
  switch (g.b.format) {
    case WeightFormat::kBf16:
      return work(Plain<bf16>{});
    case WeightFormat::kInt8:
      return work(Plain<int8_t>{});
    case WeightFormat::kInt4:
      return g.widened ? work(Grouped<Int4GroupValues>{}) : work(Grouped<Int4Groups>{});
    case WeightFormat::kInt8Group:
      return g.widened ? work(Grouped<Int8GroupValues>{}) : work(Grouped<Int8Groups>{});
    case WeightFormat::kFp8:
      return work(Grouped<E4m3GroupValues>{});
    case WeightFormat::kMxfp4:
      return g.widened ? work(Grouped<Mxfp4GroupValues>{}) : work(Grouped<Mxfp4Groups>{});
    case WeightFormat::kIq4:
      return g.widened ? work(Grouped<Iq4GroupValues>{}) : work(Grouped<Iq4Groups>{});
  }
}

inline void gemm_share(const GemmArgs& g, const GemmShare& share, void* memory) {
  auto& scratch = *static_cast<GemmScratch*>(memory);
  with_weights(g, [&]<class Weights>(Weights) { gemm_nest<Weights>(g, share, scratch); });
}

inline void gemm_parts(const GemmArgs& g, void* sums, void* memory, int thread, int threads) {
  auto& scratch = *static_cast<GemmScratch*>(memory);
  with_weights(g, [&]<class Weights>(Weights) { nest_parts<Weights>(g, sums, scratch, thread, threads); });
}

inline void gemm_finish(const GemmArgs& g, void* sums, int thread, int threads) {
  with_weights(g, [&]<class Weights>(Weights) { finish_parts<Weights>(g, sums, thread, threads); });
}

inline void gemm(const GemmArgs& g, void* scratch, int thread, int threads) {
  for_share(g.m, g.b.n_panels, thread, threads, [&](const GemmShare& share) { gemm_share(g, share, scratch); });
}

inline int64_t gemm_peak(WeightFormat format, int64_t rounds) {
  return takes_int8(format) ? tile_peak<int8_t>(rounds) : tile_peak<bf16>(rounds);
}

}  // namespace
}  // namespace numaserve
