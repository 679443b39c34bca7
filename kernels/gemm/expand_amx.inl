// The part of a product that low-rank adapters add, with tile registers (see adapter_args.h).
//
// With bf16 weights, sums begin with the products of the shrunk rows and B, as if k had more tiles. With other formats,
// whose sums are integers or are scaled, tiles compute these products before the sums of a pair of panels are finished,
// and finishing adds them. A sum depends on nothing but the row and its adapter. Rows of an adapter that fill no tile
// take vectors, which give the same bits: with 16 adapters, making a tile for each row would take three times as long.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif
#include "kernels/gemm/expand.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/dense_args.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

inline constexpr int kExpandSteps = 4;  // tiles of B that are made at once

// Makes the tile of up to `count` rows of B [count][16]: each line twice, for both values of a shrunk sum.
inline void make_tile_of_b(const bf16* b, int64_t count, std::byte* to) {
  alignas(64) static constexpr uint16_t kPairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i pairs = _mm512_load_si512(kPairs);
  for (int64_t i = 0; i < kLines / 2; ++i, b += 2 * kTileN) {
    const __mmask32 some = count >= 2 * i + 2 ? 0xffffffff : count > 2 * i ? 0xffff : 0;
    const __m512i line = _mm512_permutexvar_epi16(pairs, _mm512_maskz_loadu_epi16(some, b));
    _mm512_store_si512(to + i * kLineBytes, line);
    _mm512_store_si512(to + (kLines / 2 + i) * kLineBytes, line);
  }
}

// Up to sixteen ranks each of an adapter's B for a panel.
struct ExpandSteps {
  alignas(64) std::byte tiles[kExpandSteps][kTileBytes];
  int64_t columns[kExpandSteps];  // of the shrunk rows
  int count = 0;
  bool fresh = true;  // whether no steps came before these
};

// Multiplies kRowTiles row tiles one after the other, from `shrunk` on, and adds them to `to` unless they are fresh.
template <int kRowTiles>
inline void expand_row_tiles(const ExpandArgs& e, const ExpandSteps& steps, const float* shrunk, float* to) {
  constexpr int64_t to_bytes = kExpandedColumns * static_cast<int64_t>(sizeof(float));
  const int64_t bytes = e.ld * static_cast<int64_t>(sizeof(float));
  const auto result = [&](int64_t tile) { return to + tile * kTileRows * kExpandedColumns; };
  __asm__ volatile("" ::: "memory");  // see amx_block
  if (steps.fresh) {
    NUMASERVE_TILE_ZERO(0);
    NUMASERVE_TILE_ZERO(1);
    NUMASERVE_TILE_ZERO(2);
    NUMASERVE_TILE_ZERO(3);
  } else {
    NUMASERVE_TILE_LOAD(0, result(0), to_bytes);
    if constexpr (kRowTiles > 1) NUMASERVE_TILE_LOAD(1, result(1), to_bytes);
    if constexpr (kRowTiles > 2) NUMASERVE_TILE_LOAD(2, result(2), to_bytes);
    if constexpr (kRowTiles > 3) NUMASERVE_TILE_LOAD(3, result(3), to_bytes);
  }
  for (int i = 0; i < steps.count; ++i) {
    const float* rows = shrunk + steps.columns[i];
    NUMASERVE_TILE_LOAD(6, steps.tiles[i], 64);
    NUMASERVE_TILE_LOAD(4, rows, bytes);
    NUMASERVE_TILE_DPBF16(0, 4, 6);
    if constexpr (kRowTiles > 1) NUMASERVE_TILE_LOAD(5, rows + kTileRows * e.ld, bytes);
    if constexpr (kRowTiles > 1) NUMASERVE_TILE_DPBF16(1, 5, 6);
    if constexpr (kRowTiles > 2) NUMASERVE_TILE_LOAD(4, rows + 2 * kTileRows * e.ld, bytes);
    if constexpr (kRowTiles > 2) NUMASERVE_TILE_DPBF16(2, 4, 6);
    if constexpr (kRowTiles > 3) NUMASERVE_TILE_LOAD(5, rows + 3 * kTileRows * e.ld, bytes);
    if constexpr (kRowTiles > 3) NUMASERVE_TILE_DPBF16(3, 5, 6);
  }
  NUMASERVE_TILE_STORE(0, result(0), to_bytes);
  if constexpr (kRowTiles > 1) NUMASERVE_TILE_STORE(1, result(1), to_bytes);
  if constexpr (kRowTiles > 2) NUMASERVE_TILE_STORE(2, result(2), to_bytes);
  if constexpr (kRowTiles > 3) NUMASERVE_TILE_STORE(3, result(3), to_bytes);
  __asm__ volatile("" ::: "memory");
}

// Consecutive rows with one adapter, and the results of a panel for them: [rows][kExpandedColumns].
struct ExpandedRows {
  int64_t count;
  const float* shrunk;
  float* to;
};

// Calls add(b, rank, column) for each sixteen ranks of an adapter's B for a panel: the values, the number of ranks that
// are left, and the column of the shrunk rows.
template <class Add>
inline void for_expand_steps(const ExpandArgs& e, int64_t place, int64_t panel, Add&& add) {
  const AdapterTable& t = e.table;
  for (int64_t block = t.first_blocks[panel]; block < t.first_blocks[panel + 1]; ++block) {
    const int64_t part = t.block_parts[block], rank = t.ranks[place * t.parts + part];
    const bf16* b = t.b + (place * t.blocks + block) * t.rank * kTileN;
    if (e.fetches_ahead) {
      const bf16* next = b + kBlocksAhead * t.rank * kTileN;
      for (int64_t i = 0; i < rank * kTileN; i += kLineBytes / 2) prefetch_line(next + i);
    }
    for (int64_t i = 0; i < rank; i += kTileN) add(b + i * kTileN, rank - i, part * shrunk_columns(t.rank) + i);
  }
}

// Multiplies whole tiles of rows by some steps.
inline void expand_steps(const ExpandArgs& e, const ExpandedRows& rows, ExpandSteps& steps) {
  const float* shrunk = rows.shrunk;
  float* to = rows.to;
  int64_t left = rows.count;
  constexpr int64_t kMany = 4 * kTileRows;
  for (; left >= kMany; left -= kMany, shrunk += kMany * e.ld, to += kMany * kExpandedColumns) {
    if (left > kMany)
      for (int64_t r = 0; r < kMany; ++r) prefetch_written(to + (kMany + r) * kExpandedColumns);
    expand_row_tiles<4>(e, steps, shrunk, to);
  }
  for (; left > 0; left -= kTileRows, shrunk += kTileRows * e.ld, to += kTileRows * kExpandedColumns)
    expand_row_tiles<1>(e, steps, shrunk, to);
  steps.fresh = false;
  steps.count = 0;
}

// Adds a step to a panel of `count` rows, without tiles but to their bits: even and odd products are summed separately,
// both sums are added, and the caller has set subnormals to zero (TDPBF16PS in Intel's manual).
inline void expand_by_vectors(const ExpandArgs& e, const ExpandedRows& rows, const bf16* b, int64_t ranks,
                              int64_t column, bool fresh) {
  F32x16 values[kTileN];
  unrolled<kTileN>([&]<int i>() { values[i] = i < ranks ? F32x16::load(b + i * kTileN) : F32x16::zero(); });
  for (int64_t r = 0; r < rows.count; ++r) {
    alignas(64) float shrunk[2 * kTileN];
    const auto* both = reinterpret_cast<const bf16*>(rows.shrunk + r * e.ld + column);
    F32x16::load(both).store(shrunk);
    F32x16::load(both + kTileN).store(shrunk + kTileN);
    F32x16 even = F32x16::zero(), odd = F32x16::zero();
    unrolled<kTileN>([&]<int i>() {
      constexpr int kEven = 2 * i, kOdd = 2 * i + 1;
      even = F32x16::fma(F32x16::set1(shrunk[kEven]), values[kEven % kTileN], even);
      odd = F32x16::fma(F32x16::set1(shrunk[kOdd]), values[kOdd % kTileN], odd);
    });
    float* to = rows.to + r * kExpandedColumns;
    ((fresh ? F32x16::zero() : F32x16::load(to)) + (even + odd)).store(to);
  }
}

// Computes a panel for rows with the adapter in a place: whole tiles of rows, and the rest by vectors.
inline void expand_panel(const ExpandArgs& e, const ExpandedRows& rows, int64_t place, int64_t panel) {
  const int64_t in_tiles = rows.count / kTileRows * kTileRows;
  const ExpandedRows tiles{in_tiles, rows.shrunk, rows.to};
  const ExpandedRows rest{rows.count - in_tiles, rows.shrunk + in_tiles * e.ld, rows.to + in_tiles * kExpandedColumns};
  ExpandSteps steps;
  bool fresh = true;
  for_expand_steps(e, place, panel, [&](const bf16* b, int64_t ranks, int64_t column) {
    if (rest.count > 0) expand_by_vectors(e, rest, b, ranks, column, fresh);
    fresh = false;
    if (in_tiles == 0) return;
    if (steps.count == kExpandSteps) expand_steps(e, tiles, steps);
    make_tile_of_b(b, ranks, steps.tiles[steps.count]);
    steps.columns[steps.count++] = column;
  });
  if (steps.count > 0) expand_steps(e, tiles, steps);
  if (!fresh) return;
  for (int64_t r = 0; r < rows.count; ++r) F32x16::zero().store(rows.to + r * kExpandedColumns);
}

// Computes what adapters add to `rows` rows from `row` on of a pair of panels: `to` [rows][kExpandedColumns]. For 16
// rows and more, tiles of 16 rows are configured. Rows without an adapter get zeros.
[[gnu::noinline]] inline void expand_pair(const ExpandArgs& e, int64_t row, int64_t rows, int64_t panel, float* to) {
  if (e.adapters == nullptr) return;
  constexpr unsigned kSubnormalsAreZero = 0x8040;
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | kSubnormalsAreZero);
  __asm__ volatile("" ::: "memory");  // no arithmetic before or after this mode
  const int32_t* adapters = e.adapters + row;
  for (int64_t first = 0, end = 0; first < rows; first = end) {
    for (++end; end < rows && adapters[end] == adapters[first];) ++end;
    float* own = to + first * kExpandedColumns;
    if (adapters[first] == 0) {
      __builtin_memset(own, 0, static_cast<size_t>((end - first) * kExpandedColumns) * sizeof(float));
      continue;
    }
    for (int half = 0; half < 2; ++half)
      expand_panel(e, {end - first, e.shrunk + (row + first) * e.ld, own + half * kTileN}, adapters[first] - 1,
                   panel + half);
  }
  __asm__ volatile("" ::: "memory");
  _mm_setcsr(mode);
}

// Whether the sums of a product begin with what adapters add, in fp32 and not scaled: then nothing is left to be added
// when they are finished.
inline bool begins_expanded(const GemmArgs& g) {
  return g.expand.adapters != nullptr && g.b.format == WeightFormat::kBf16;
}
inline void expand_late(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, float* to) {
  if (!begins_expanded(g)) expand_pair(g.expand, row, rows, panel, to);
}

// Returns `sums` of a row with what its adapter adds to them: `added`, from index `at` on.
inline F32x16 expanded(const GemmArgs& g, int64_t row, int64_t, const float* added, int64_t at, F32x16 sums) {
  if (begins_expanded(g) || g.expand.adapters[row] == 0) return sums;
  return sums + F32x16::load(added + at);
}

}  // namespace
}  // namespace numaserve
