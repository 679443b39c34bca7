// Products with grouped weights in the amx set. Three operations that would wait for each other run side by side while
// tiles of a group are multiplied. The sums of the previous group are stored, the sums of the group before that are
// scaled, and with few rows the codes of a later group are widened. A tile load directly after the stores of its lines
// waits for them, and so does a vector load directly after a tile store.
//
// A tile is stored just before its register is needed for the next group. Measured cycles for 16 x 16 results and a
// group of 32 in bf16, all in the first level: products alone 20; with stores 25 in this order, 39 with stores directly
// after the products; with scaling 40 and 52.
//
// With many rows, activations are read from the second level with TILELOADT1, and a block of groups is as large as the
// first level allows next to the results of the present rows and of the next ones, which are read again for each block.
// Measured with AMX, 512 rows, bf16 activations, against loads through the first level and blocks of 4 k tiles,
// together with results past the caches: 1.16 to 1.2 times the speed. Widening a block during the products of its first
// rows gains 5 % for fp8 and loses 2 % for int4.
//
// Sums of integers are exact: their bits equal those of passes on packed rows.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif

#include "kernels/gemm/grouped/group_rows_amx.inl"
#include "kernels/gemm/grouped/grouped_avx512.inl"
#include "kernels/gemm/tiles/tile_amx.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// The products of a block of rows and a pair of panels. `kTiles`: k tiles of a group. `kScaled`: activations are
// quantized.
template <class Codes, bool kScaled, int kTiles, Offsets kOffsets>
struct GroupPipe {
  using T = typename Codes::Element;
  static constexpr int kPairs = kLines / Codes::kLinesPerCode;  // of code lines in a k tile
  static constexpr int kRowsEach = 8 / kTiles;                  // rows scaled during a product
  static constexpr int64_t kTilesOfGroup = 2 * kTiles * kTileBytes;
  // Places for widened groups: with few rows a ring, with many a block.
  static constexpr int kRing = kRingTiles / kTiles, kBlock = kWidenedTiles / kTiles;
  // With few rows, the number of tiles widened before the product, and the number of groups begun in advance. Twice
  // these numbers take a tenth more time: this data should leave the first level to activations and codes that pass
  // through it.
  static constexpr int kLead = 2, kAhead = kTiles == 1 ? 2 : 1;
  using Columns = float[2][2][kTileN];

  const GemmArgs& g;
  const GroupLayout& layout;
  GroupBatches& memory;
  const std::byte* records;
  PackedGroups a;
  int64_t rows;  // of the block
  float* c;      // [rows][32]

  // Some rows by a group: the places of their results and of the factors of their sums.
  struct Step {
    float *c, *sums;
    const Columns* columns;
    const float* factors;
    int rows;
  };
  // A group: the place of its codes, and the places of its widened codes and scales.
  struct Place {
    const std::byte* record;
    std::byte* tiles;
    Columns* columns;
  };
  // Returns the place of the `index`-th widened group, of `kPlaces`.
  template <int kPlaces>
  Place place_of(int64_t group, int64_t index) const {
    return {records + group * layout.bytes, memory.tiles + index % kPlaces * kTilesOfGroup,
            &memory.columns[index % kKeptColumns]};
  }

  // Prefetches to the second level well before the first level, which has few buffers for loads from memory.
  static void fetch(const std::byte* codes) {
    prefetch_line(codes + (16 << 10));
    prefetch_first(codes + (2 << 10));
  }

  // Widens a k tile of a group, of both panels.
  void widen(const std::byte* record, std::byte* tiles, int tile) const {
    const std::byte* codes = record + tile * kPairs * 2 * kLineBytes;
    std::byte* out = tiles + tile * 2 * kTileBytes;
    unrolled<kPairs>([&]<int pair>() NUMASERVE_INLINE {
      constexpr int64_t kAt = pair * 2 * kLineBytes, kTo = pair * Codes::kLinesPerCode * kLineBytes;
      widen_codes<Codes>(layout, record, tile * kPairs + pair, 0, out + kTo);
      widen_codes<Codes>(layout, record, tile * kPairs + pair, 1, out + kTo + kTileBytes);
      fetch(codes + kAt);
      fetch(codes + kAt + kLineBytes);
    });
  }
  void prepare(const std::byte* record, Columns& to) const {
    for (int64_t at = layout.scales; at < layout.bytes; at += kLineBytes) fetch(record + at);
    unrolled<2>([&]<int half>() NUMASERVE_INLINE {
      const GroupColumns of = group_columns<Codes>(g.b, layout, record, half);
      of.scale.store(to[half][0]);
      if constexpr (kOffsets != Offsets::kNone) of.offset.store(to[half][1]);
    });
  }
  void widen_group(const Place& to) const {
    prepare(to.record, *to.columns);
    for (int tile = 0; tile < kTiles; ++tile) widen(to.record, to.tiles, tile);
  }

  // Scales rows [from, to) of a step.
  void scale(const Step& step, int from, int to) const {
    GroupColumns columns[2];
    unrolled<2>([&]<int half>() NUMASERVE_INLINE {
      const auto& at = (*step.columns)[half];
      columns[half] = {F32x16::load(at[0]), kOffsets == Offsets::kNone ? F32x16::zero() : F32x16::load(at[1])};
    });
    // Local pointers: vector stores might alias the members, which each row would then read again.
    const int64_t plane = a.plane;
    const float *sums = step.sums + from * 32, *factors = step.factors + from;
    float* out = step.c + from * 32;
    for (int r = from; r < to; ++r, sums += 32, out += 32, ++factors) {
      const GroupScale x = row_scale(factors, plane);
      F32x16 results[2];
      unrolled<2>([&]<int half>() NUMASERVE_INLINE {
        results[half] = scaled(sums + half * kTileN, columns[half], x, F32x16::load(out + half * kTileN));
      });
      unrolled<2>([&]<int half>() NUMASERVE_INLINE { results[half].store(out + half * kTileN); });
    }
  }
  // The multiple of the activations' total that is added to a sum. Integers of codes without offsets still contain the
  // zero. Values have already lost the zero, and get it back if there are offsets.
  static constexpr bool kWhole = kWholeNumbers<Codes>, kHasOffsets = kOffsets != Offsets::kNone;
  static constexpr int kAdded = !kScaled || kWhole == kHasOffsets ? 0 : kWhole ? -Codes::kZero : Codes::kZero;

  // Read once per row, before the stores, which might alias these factors.
  static GroupScale row_scale(const float* factors, int64_t plane) {
    GroupScale x{factors[0], 0, 0.0f, 0.0f};
    if constexpr (!kScaled) x.total = kHasOffsets ? factors[0] : 0.0f;
    if constexpr (kScaled && (kOffsets == Offsets::kZeros || kAdded != 0)) x.total = factors[plane];
    if constexpr (kScaled && kOffsets == Offsets::kMinima) x.scaled_total = factors[2 * plane];
    return x;
  }
  static F32x16 scaled(const float* sums, const GroupColumns& of, const GroupScale& x, F32x16 before) {
    if constexpr (!kScaled) return with_values(kOffsets, of, Codes::kZero, x.total, F32x16::load(sums), before);
    F32x16 sum = kWhole ? F32x16::convert(reinterpret_cast<const int32_t*>(sums), nullptr) : F32x16::load(sums);
    if constexpr (kAdded != 0) sum = sum + F32x16::set1(static_cast<float>(kAdded) * x.total);  // exact
    return with_group(kOffsets, of, x, sum, before);
  }
  template <int kPart>
  void scale_part(const Step& step) const {
    constexpr int kFrom = kPart * kRowsEach, kTo = kFrom + kRowsEach;
    __asm__ volatile("" ::: "memory");
    if (step.rows == 32)  // a constant number of rows
      scale(step, kFrom, kTo);
    else
      scale(step, kFrom, kTo < step.rows ? kTo : step.rows);
    __asm__ volatile("" ::: "memory");
  }

  // Returns the place of a tile's sums.
  static float* sums_of(const Step& step, int tile) {
    return step.sums + tile % 2 * kTileN + (tile > 1 ? (step.rows - kTileRows) * 32 : 0);
  }

// Activations of few rows stay in the first level.
#define NUMASERVE_GROUP_LOAD(tile, from)                      \
  do {                                                        \
    if constexpr (kWidens)                                    \
      NUMASERVE_TILE_LOAD(tile, from, kLineBytes);            \
    else                                                      \
      NUMASERVE_TILE_LOAD_PAST_FIRST(tile, from, kLineBytes); \
  } while (false)
// A tile's product. Before it the previous sums of the register are stored; meanwhile other sums are scaled.
#define NUMASERVE_GROUP_PRODUCT(tile, a, b)                                        \
  do {                                                                             \
    if constexpr (i == 0) {                                                        \
      if (before.rows > 0) NUMASERVE_TILE_STORE(tile, sums_of(before, tile), 128); \
      NUMASERVE_TILE_ZERO(tile);                                                   \
    }                                                                              \
    NUMASERVE_TILE_DOT(T, tile, a, b);                                             \
    scale_part<(i * kRowTiles + (tile) / 2) * 2 + (tile) % 2>(older);              \
  } while (false)

  // Multiplies some rows by group `own`. Meanwhile it stores the sums of `before`, which are in the tile registers,
  // scales the sums of `older`, and widens the rest of `own` and the first tiles of `next`.
  template <int kRowTiles, bool kWidens>
  void multiply(const Step& before, const Step& older, const std::byte* row_a, const Place& own,
                const Place& next) const {
    if constexpr (kWidens) prepare(next.record, *next.columns);
    unrolled<kTiles>([&]<int i>() NUMASERVE_INLINE {
      __asm__ volatile("" ::: "memory");
      NUMASERVE_GROUP_LOAD(4, row_a + i * a.tile);
      if constexpr (kRowTiles == 2) NUMASERVE_GROUP_LOAD(5, row_a + a.strip + i * a.tile);
      NUMASERVE_TILE_LOAD(6, own.tiles + i * 2 * kTileBytes, kLineBytes);
      NUMASERVE_TILE_LOAD(7, own.tiles + (i * 2 + 1) * kTileBytes, kLineBytes);
      NUMASERVE_GROUP_PRODUCT(0, 4, 6);
      if constexpr (kRowTiles == 2) NUMASERVE_GROUP_PRODUCT(2, 5, 6);
      NUMASERVE_GROUP_PRODUCT(1, 4, 7);
      if constexpr (kRowTiles == 2) NUMASERVE_GROUP_PRODUCT(3, 5, 7);
      __asm__ volatile("" ::: "memory");
      if constexpr (kWidens && i + kLead < kTiles)
        widen(own.record, own.tiles, i + kLead);
      else if constexpr (kWidens)
        widen(next.record, next.tiles, (i + kLead) % kTiles);
    });
  }
#undef NUMASERVE_GROUP_PRODUCT
#undef NUMASERVE_GROUP_LOAD
  template <int kRowTiles>
  void finish(const Step& before, const Step& older) const {
    NUMASERVE_TILE_STORE(0, sums_of(before, 0), 128);
    NUMASERVE_TILE_STORE(1, sums_of(before, 1), 128);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_STORE(2, sums_of(before, 2), 128);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_STORE(3, sums_of(before, 3), 128);
    __asm__ volatile("" ::: "memory");
    scale(older, 0, older.rows);
    scale(before, 0, before.rows);
  }

  static void fetch_results(const float* next, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      prefetch_written(next + i * 32);
      prefetch_written(next + i * 32 + kTileN);
    }
  }
  Step step_of(int64_t row, int some, int64_t group, const Place& own, int64_t turn) const {
    return {c + row * 32, memory.sums[turn % 2], own.columns, a.factors + (group - a.first) * rows + row, some};
  }
  const std::byte* rows_of(int64_t row, int64_t group) const {
    return a.data + row / kTileRows * a.strip + (group - a.first) * kTiles * a.tile;
  }
  Step nothing() const { return {c, memory.sums[0], &memory.columns[0], a.factors, 0}; }

  // Up to 32 rows: a group is widened while the groups before it are multiplied.
  template <int kRowTiles>
  NUMASERVE_FLAT [[gnu::noinline]] void run_once(Range groups) const {
    const auto at = [&](int64_t group) {
      return place_of<kRing>(group < groups.end ? group : groups.end - 1, group);  // after the last group comes itself
    };
    for (int i = 0; i < kAhead; ++i) widen_group(at(groups.begin + i));
    Step older = nothing(), before = older;
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const Place own = at(group);
      multiply<kRowTiles, true>(before, older, rows_of(0, group), own, at(group + kAhead));
      older = before;
      before = step_of(0, static_cast<int>(rows), group, own, group);
    }
    finish<kRowTiles>(before, older);
  }

  // Multiplies rows [some.begin, some.end) by a block of widened groups, in steps of kRowTiles row tiles.
  template <int kRowTiles>
  NUMASERVE_FLAT [[gnu::noinline]] void pass(Range some, Range groups) const {
    Step older = nothing(), before = older;
    int turn = 0;
    const int64_t fetched = ceil_div(kRowTiles * kTileRows, groups.end - groups.begin);  // rows, for each group
    for (int64_t row = some.begin; row < some.end; row += kRowTiles * kTileRows) {
      const int64_t left = some.end - row;
      const int height = static_cast<int>(left < kRowTiles * kTileRows ? left : kRowTiles * kTileRows);
      const float* next = c + (row + height) * 32;
      for (int64_t group = groups.begin; group < groups.end; ++group, ++turn, next += fetched * 32) {
        const Place own = place_of<kBlock>(group, group - groups.begin);
        if (row + height < some.end) fetch_results(next, fetched);
        multiply<kRowTiles, false>(before, older, rows_of(row, group), own, own);
        older = before;
        before = step_of(row, height, group, own, turn);
      }
    }
    finish<kRowTiles>(before, older);
  }

  // More rows, in steps of 32. The remainder is one step of 16, one of 17 to 31, or both.
  void run_again(Range groups) const {
    const int64_t odd = rows % 32, tall = rows - odd - (odd > 0 && odd < kTileRows ? 32 : 0), left = rows - tall;
    const int64_t low = tall + (left == kTileRows || left > 32 ? kTileRows : 0);
    for (int64_t group = groups.begin; group < groups.end; group += kBlock) {
      const Range some{group, group + kBlock < groups.end ? group + kBlock : groups.end};
      for (int64_t i = 0; i < some.end - some.begin; ++i) widen_group(place_of<kBlock>(group + i, i));
      if (tall > 0) pass<2>({0, tall}, some);
      if (low > tall) pass<1>({tall, low}, some);
      if (rows > low) pass<2>({low, rows}, some);
    }
  }

  void run(Range groups) const {
    if (rows > 2 * kTileRows)
      run_again(groups);
    else if (rows > kTileRows)
      run_once<2>(groups);
    else
      run_once<1>(groups);
  }
};

// Adds groups [begin, end) of one pair of panels to `c` [rows][32].
template <class Codes>
inline void add_by_pipe(const GemmArgs& g, int64_t rows, int64_t panel, Range groups, GemmScratch& scratch, float* c) {
  if (groups.begin >= groups.end) return;  // a rank without a share of k
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const int64_t tiles = tiles_of_group<Codes>(g.b.group);
  const PackedGroups a = packed_groups(scratch, rows, tiles);
  const std::byte* records = pair_records(g.b, layout, panel);
  const auto run = [&]<class As, int kTiles, Offsets kOffsets>() {
    using Pipe = GroupPipe<As, kWholeNumbers<Codes>, kTiles, kOffsets>;
    Pipe{g, layout, scratch.batches, records, a, rows, c}.run(groups);
  };
  with_offsets<Codes>(g.b.offsets, [&]<Offsets kOffsets>() {
    if constexpr (kWholeNumbers<Codes>) {
      using Values = typename ValuesOf<Codes, kOffsets>::type;
      if (multiplied_as_values(g.b.group)) return run.template operator()<Values, 1, kOffsets>();
      return tiles == 1 ? run.template operator()<Codes, 1, kOffsets>() : run.template operator()<Codes, 2, kOffsets>();
    } else {
      if (tiles == 1) return run.template operator()<Codes, 1, kOffsets>();
      if (tiles == 2) return run.template operator()<Codes, 2, kOffsets>();
      run.template operator()<Codes, 4, kOffsets>();
    }
  });
}

}  // namespace
}  // namespace numaserve
