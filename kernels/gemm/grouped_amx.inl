// Products with grouped weights as the amx set does them. Three things that wait for each other within a group run side
// by side instead: while tiles of some units of k are multiplied, the codes of the units after them are widened, and
// the finished sums of those before them are scaled. A tile load that follows the stores of its lines at once waits for
// them, and so does a vector load behind a tile store; here a batch of units lies between.
// The bits are those of add_groups in grouped.inl.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tile_amx.h"
#endif

#include "kernels/gemm/grouped_avx512.inl"
#include "kernels/gemm/packed_tiles_amx.inl"
#include "kernels/gemm/tile_amx.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Copies the activations of some groups, unit by unit, to `scratch.rows`. A part of k that has no room there is none of
// `add_batches`.
template <class T, int kUsed>
inline void pack_units(const GemmArgs& g, int64_t row, int64_t rows, Range groups, GemmScratch& scratch) {
  constexpr int64_t kBytes = kUsed * 4, kDepth = kUsed * kLineDepth<T>;
  const int64_t end = groups.end * g.b.group < g.b.depth ? groups.end * g.b.group : g.b.depth;
  const int64_t units = (end - groups.begin * g.b.group) / kDepth;
  const bool fits = units * kBytes <= packed_tiles_room(rows) * kLineBytes;
  scratch.first_word = groups.begin * g.b.group / kDepth;
  scratch.words = fits ? units : 0;
  const int64_t row_bytes = g.lda * static_cast<int64_t>(sizeof(T));
  const auto* from = static_cast<const std::byte*>(g.a) + row * row_bytes + scratch.first_word * kBytes;
  copy_tiles<kBytes>(from, row_bytes, rows, scratch.words, scratch.rows);
}

// The products of some rows by a pair of panels. `kTiles`: units of a group.
template <class Codes, int kUsed, int kTiles, Offsets kOffsets>
struct GroupPipe {
  using T = typename Codes::Element;
  static constexpr int kUnits = kTiles < 2 ? 2 : kTiles;                     // of a batch
  static constexpr int kGroups = kUnits / kTiles;                            // of a batch
  static constexpr int kPairs = kUsed / Codes::kLinesPerCode;                // of code lines in a unit
  static constexpr int64_t kPanel = kUsed * kLineBytes, kUnit = 2 * kPanel;  // of widened tiles
  static constexpr int64_t kLine = kUsed * 4;                                // of activations
  // Units by which few rows' tiles are widened before they are multiplied; of a ring of four.
  static constexpr int kLead = 2, kRing = 4;
  using Columns = float[2][2][kTileN];

  const GemmArgs& g;
  const GroupLayout& layout;
  GemmScratch& scratch;
  const std::byte* records;
  const std::byte* a;  // packed, of the first group
  int64_t row, rows;   // of the block
  int64_t strip;       // bytes of a row tile
  int64_t unit_bytes;  // of a row tile's activations
  float* c;

  // Some rows by a batch: the block's rows from `first` on, and where their sums and the scales are.
  struct Step {
    int64_t first, group;
    int rows;
    float* sums;
    Columns* columns;
  };
  // What is widened beside products: units of this batch and of the next one, for which the last batch has itself.
  struct Next {
    const std::byte *record, *following;
    std::byte* tiles;
    Columns* columns;
  };

  // To the second level before the first, which has few buffers for what is under way from memory.
  static void fetch(const std::byte* codes) {
    prefetch_line(codes + (16 << 10));
    prefetch_first(codes + (2 << 10));
  }

  // A unit of a batch of both panels.
  void widen(const std::byte* record, std::byte* to, int unit) const {
    const std::byte* codes = record + unit / kTiles * layout.bytes + unit % kTiles * kPairs * 2 * kLineBytes;
    std::byte* out = to + unit * kUnit;
    unrolled<kPairs>([&]<int pair>() NUMASERVE_INLINE {
      constexpr int64_t kAt = pair * 2 * kLineBytes, kTo = pair * Codes::kLinesPerCode * kLineBytes;
      widen_line(Codes{}, codes + kAt, out + kTo);
      widen_line(Codes{}, codes + kAt + kLineBytes, out + kTo + kPanel);
      fetch(codes + kAt);
      fetch(codes + kAt + kLineBytes);
    });
  }
  void prepare(const std::byte* record, Columns* to) const {
    unrolled<kGroups>([&]<int i>() NUMASERVE_INLINE {
      const std::byte* of_group = record + i * layout.bytes;
      for (int64_t at = layout.scales; at < layout.bytes; at += kLineBytes) fetch(of_group + at);
      unrolled<2>([&]<int half>() NUMASERVE_INLINE {
        const GroupColumns of = group_columns<Codes>(g.b, layout, of_group, half);
        of.scale.store(to[i][half][0]);
        if constexpr (kOffsets != Offsets::kNone) of.offset.store(to[i][half][1]);
      });
    });
  }

  template <int kRowTiles>
  void store_sums(const Step& step, int group) const {
    float* to = step.sums + group * step.rows * 32;
    float* to1 = kRowTiles == 2 ? to + (step.rows - kTileRows) * 32 : to;
    NUMASERVE_TILE_STORE(0, to, 128);
    NUMASERVE_TILE_STORE(1, to + kTileN, 128);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_STORE(2, to1, 128);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_STORE(3, to1 + kTileN, 128);
  }
  void store_last(const Step& step) const {
    if (step.rows > kTileRows)
      store_sums<2>(step, kGroups - 1);
    else if (step.rows > 0)
      store_sums<1>(step, kGroups - 1);
  }

  // A step's products. Beside them what is left of the sums of the two steps before is scaled, and units are widened.
  // A group's sums are stored just before its tiles are wanted for the next one: stored as soon as they are finished
  // they would hold up the products, which measured takes twice the time.
  template <int kRowTiles, bool kWidens>
  void multiply(const Step& step, const Step& before, const Step& older, const std::byte* tiles, const std::byte* a0,
                const Next& next) const {
    unrolled<kUnits>([&]<int i>() NUMASERVE_INLINE {
      __asm__ volatile("" ::: "memory");
      scale(i < kUnits / 2 ? older : before, (i + kUnits / 2) % kUnits, kUnits);
      __asm__ volatile("" ::: "memory");
      if constexpr (i % kTiles == 0) {
        if constexpr (i == 0)
          store_last(before);
        else
          store_sums<kRowTiles>(step, i / kTiles - 1);
        NUMASERVE_TILE_ZERO(0);
        NUMASERVE_TILE_ZERO(1);
        if constexpr (kRowTiles == 2) NUMASERVE_TILE_ZERO(2);
        if constexpr (kRowTiles == 2) NUMASERVE_TILE_ZERO(3);
      }
      NUMASERVE_TILE_LOAD(4, a0 + i * unit_bytes, kLine);
      if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(5, a0 + strip + i * unit_bytes, kLine);
      NUMASERVE_TILE_LOAD(6, tiles + i * kUnit, 64);
      NUMASERVE_TILE_DOT(T, 0, 4, 6);
      if constexpr (kRowTiles == 2) NUMASERVE_TILE_DOT(T, 2, 5, 6);
      NUMASERVE_TILE_LOAD(7, tiles + i * kUnit + kPanel, 64);
      NUMASERVE_TILE_DOT(T, 1, 4, 7);
      if constexpr (kRowTiles == 2) NUMASERVE_TILE_DOT(T, 3, 5, 7);
      __asm__ volatile("" ::: "memory");
      if constexpr (!kWidens) return;
      if constexpr (i == 0) prepare(next.following, next.columns);
      if constexpr (i + kLead < kUnits)
        widen(next.record, next.tiles, i + kLead);
      else
        widen(next.following, next.tiles, i + kLead - kUnits);
    });
  }

  // Rows from, from + every, ... of a step.
  void scale(const Step& step, int from, int every) const {
    if (from >= step.rows) return;
    GroupColumns columns[kGroups][2];
    unrolled<kGroups * 2>([&]<int i>() NUMASERVE_INLINE {
      const auto* at = step.columns[i / 2][i % 2];
      columns[i / 2][i % 2] = {F32x16::load(at[0]), kOffsets == Offsets::kNone ? F32x16::zero() : F32x16::load(at[1])};
    });
    // What a row needs is found by adding to what the one before it needed: vector stores may alias what `g` and the
    // pipe have, so that each row would read that again, twice as often as its numbers.
    const int64_t next_row = every * g.lda, sums_of_group = int64_t{step.rows} * 32;
    const int8_t* scales = group_scales(g, row + step.first + from);
    const float* sums = step.sums + from * 32;
    float* to = c + (step.first + from) * 32;
    const int64_t group = step.group;
    for (int r = from; r < step.rows; r += every) {
      unrolled<2>([&]<int half>() NUMASERVE_INLINE {
        F32x16 sum = F32x16::load(to + half * kTileN);
        unrolled<kGroups>([&]<int i>() NUMASERVE_INLINE {
          const GroupColumns& of = columns[i][half];
          const float* at = sums + i * sums_of_group + half * kTileN;
          if constexpr (kWholeNumbers<Codes>) {
            const GroupScale x = group_scale(scales, group + i);
            const int32_t zero = kOffsets == Offsets::kNone ? Codes::kZero : 0;
            const F32x16 whole = F32x16::convert_less(reinterpret_cast<const int32_t*>(at), -zero / 8 * x.minus8);
            sum = with_group(kOffsets, of, x, whole, sum);
          } else {
            const float total = kOffsets == Offsets::kNone ? 0.0f : group_total(g, scratch, step.first + r, group + i);
            sum = with_values(kOffsets, of, Codes::kZero, total, F32x16::load(at), sum);
          }
        });
        sum.store(to + half * kTileN);
      });
      scales += next_row;
      sums += every * 32;
      to += every * 32;
    }
  }

  std::byte* tiles_of_batch(int batch) const { return scratch.batches.tiles + batch * kUnits % kRing * kUnit; }

  // Up to 32 rows: units are widened shortly before they are multiplied.
  NUMASERVE_FLAT [[gnu::noinline]] void run_once(Range groups) const {
    GroupBatches& memory = scratch.batches;
    Step older{}, before{};
    const std::byte* record = records + groups.begin * layout.bytes;
    const std::byte* batch_a = a;
    prepare(record, memory.columns[0]);
    unrolled<kLead>([&]<int i>() NUMASERVE_INLINE { widen(record, memory.tiles, i); });
    int batch = 0;
    for (int64_t group = groups.begin; group < groups.end; group += kGroups, ++batch) {
      const bool last = group + kGroups >= groups.end;
      const Step step{0, group, static_cast<int>(rows), memory.sums[batch % 2], memory.columns[batch % 4]};
      const std::byte* tiles = tiles_of_batch(batch);
      const Next next{record, record + (last ? 0 : kGroups * layout.bytes), tiles_of_batch(batch + 1),
                      memory.columns[(batch + 1) % 4]};
      if (rows > kTileRows)
        multiply<2, true>(step, before, older, tiles, batch_a, next);
      else
        multiply<1, true>(step, before, older, tiles, batch_a, next);
      older = before;
      before = step;
      record = next.following;
      batch_a += kUnits * unit_bytes;
    }
    finish(before, older);
  }

  // More rows: a block of batches is widened, by which all of them pass.
  NUMASERVE_FLAT [[gnu::noinline]] void run_again(Range groups) const {
    constexpr int kBatches = kWidenedUnits / kUnits;
    GroupBatches& memory = scratch.batches;
    Step older{}, before{};
    int steps = 0, blocks = 0;
    for (int64_t first = groups.begin; first < groups.end; first += kBatches * kGroups, ++blocks) {
      const int64_t left = (groups.end - first) / kGroups, batches = left < kBatches ? left : kBatches;
      Columns* columns = memory.columns[blocks % 2 * 2];
      for (int64_t batch = 0; batch < batches; ++batch) {
        const std::byte* record = records + (first + batch * kGroups) * layout.bytes;
        prepare(record, columns + batch * kGroups);
        for (int unit = 0; unit < kUnits; ++unit) widen(record, memory.tiles + batch * kUnits * kUnit, unit);
      }
      const std::byte* block_a = a + (first - groups.begin) * kTiles * unit_bytes;
      for (int64_t r = 0; r < rows;) {
        const int some = rows_at_once(rows - r);
        const std::byte* row_a = block_a + r / kTileRows * strip;
        for (int64_t batch = 0; batch < batches; ++batch, ++steps) {
          const Step step{r, first + batch * kGroups, some, memory.sums[steps % 2], columns + batch * kGroups};
          const std::byte* tiles = memory.tiles + batch * kUnits * kUnit;
          if (some > kTileRows)
            multiply<2, false>(step, before, older, tiles, row_a + batch * kUnits * unit_bytes, {});
          else
            multiply<1, false>(step, before, older, tiles, row_a + batch * kUnits * unit_bytes, {});
          older = before;
          before = step;
        }
        r += some;
      }
    }
    finish(before, older);
  }
  void finish(const Step& before, const Step& older) const {
    store_last(before);
    for (int i = kUnits / 2; i < kUnits; ++i) scale(older, i, kUnits);
    scale(before, 0, 1);
  }
};

// Adds whole batches of groups from `groups.begin` on, and returns how many groups that are.
template <class Codes, int kUsed>
inline int64_t add_batches(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups,
                           GemmScratch& scratch, float* c) {
  using T = typename Codes::Element;
  if (scratch.words == 0) return 0;
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const int64_t tiles = g.b.group / (kUsed * kLineDepth<T>), whole = g.b.depth / g.b.group;
  const int64_t end = groups.end < whole ? groups.end : whole;
  int64_t count = 0;
  const auto run = [&]<int kTiles, Offsets kOffsets>() {
    using Pipe = GroupPipe<Codes, kUsed, kTiles, kOffsets>;
    constexpr int64_t kEach = Pipe::kGroups;
    count = (end - groups.begin) / kEach * kEach;
    if (count <= 0) return;
    const int64_t unit_bytes = (rows < kTileRows ? rows : kTileRows) * kUsed * 4;
    const std::byte* a = scratch.rows + (groups.begin * tiles - scratch.first_word) * unit_bytes;
    const Pipe pipe{
        g, layout, scratch, pair_records(g.b, layout, panel), a, row, rows, scratch.words * unit_bytes, unit_bytes, c};
    if (rows <= 32)
      pipe.run_once({groups.begin, groups.begin + count});
    else
      pipe.run_again({groups.begin, groups.begin + count});
  };
  const auto with_tiles = [&]<int kTiles>() {
    switch (may_have_offsets(Codes::kFormat) ? g.b.offsets : Offsets::kNone) {
      case Offsets::kNone:
        return run.template operator()<kTiles, Offsets::kNone>();
      case Offsets::kZeros:
        return run.template operator()<kTiles, Offsets::kZeros>();
      case Offsets::kMinima:
        return run.template operator()<kTiles, Offsets::kMinima>();
    }
  };
  if (tiles == 1) with_tiles.template operator()<1>();
  if (tiles == 2) with_tiles.template operator()<2>();
  if (tiles == 4) with_tiles.template operator()<4>();
  return count;
}

}  // namespace
}  // namespace numaserve
