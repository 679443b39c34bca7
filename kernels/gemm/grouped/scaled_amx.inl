// Products in the amx set with grouped weights whose scaled values bf16 holds exactly. Codes are widened to these
// values, and tiles sum over all of k: no sum of a group is stored, scaled and added. With many rows, a block of k
// tiles is widened while the rows pass by the block before it, and everything else is as for bf16
// (copied_blocks_amx.inl). Measured with AMX, 512 rows, speed relative to bf16's: mxfp4 0.98 instead of 0.53, nvfp4 1.0
// instead of 0.8; nvfp4 with one to 16 rows: 1.1 times the speed with sums of groups.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif

#include "kernels/gemm/copied_blocks_amx.inl"
#include "kernels/gemm/grouped/scaled_codes_amx.inl"
#include "kernels/gemm/packed_tiles_amx.inl"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// The codes of a pair of panels, by halves of k tiles.
template <class Codes>
struct ScaledCodes {
  static constexpr int64_t kHalves = 2, kLinesOfHalf = kLines / Codes::kLinesPerCode / kHalves;
  static_assert(kLinesOfHalf == 2);
  GroupLayout layout;
  const std::byte* records;
  int64_t tiles_of_group;

  ScaledCodes(const PackedWeights& b, int64_t panel)
      : layout(group_layout(Codes::kFormat, b.group, b.offsets)),
        records(pair_records(b, layout, panel)),
        tiles_of_group(b.group / kTileK) {}

  const std::byte* record_of(int64_t tile) const { return records + tile / tiles_of_group * layout.bytes; }
  // Widens one half of a k tile to `tiles`, those of both panels. Returns its codes.
  NUMASERVE_INLINE const std::byte* widen(int64_t tile, int64_t half, std::byte* tiles) const {
    const std::byte* record = record_of(tile);
    const int64_t line = (tile % tiles_of_group * kHalves + half) * kLinesOfHalf;
    widen_half_tiles(Codes{}, layout, record, line, tiles + half * kTileBytes / 2);
    return record + 2 * line * kLineBytes;
  }
};
inline constexpr int64_t kHalfTileCodes = 4;  // lines, of both panels

// Widens the next block while rows pass by the present one, some halves of tiles at each step.
template <class Codes>
struct WidenedNext {
  static constexpr int64_t kHalves = ScaledCodes<Codes>::kHalves, kAhead = 8 << 10;
  ScaledCodes<Codes> codes;
  Range block;
  std::byte* to;
  int64_t halves, steps;  // in all
  int64_t done = 0, turn = 0;

  WidenedNext(const PackedWeights& b, int64_t panel, Range tiles, std::byte* out, int64_t all_steps)
      : codes(b, panel), block(tiles), to(out), halves((tiles.end - tiles.begin) * kHalves), steps(all_steps) {}

  void step() {
    for (turn += halves; turn >= steps && done < halves; turn -= steps) widen();
  }
  void rest() {
    while (done < halves) widen();
  }

 private:
  void widen() {
    const int64_t tile = done / kHalves;
    const std::byte* ahead = codes.widen(block.begin + tile, done % kHalves, to + tile * 2 * kTileBytes) + kAhead;
    for (int64_t i = 0; i < kHalfTileCodes; ++i) prefetch_line(ahead + i * kLineBytes);
    ++done;
  }
};

// Adds k tiles of a pair of panels to the sums `c` of a row block: see add_copied.
template <class Codes>
inline void add_scaled_blocks(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range k, bool fresh,
                              bool finish, GemmScratch& scratch, float* c) {
  WidenedBlocks& memory = scratch.widened;
  const CopiedBlocks blocks(k, kWidenedBlock);
  const int64_t late_each = begin_late(g, rows, blocks, scratch, c);
  for (int64_t i = 0; i < blocks.count; ++i) {
    const bool last = i + 1 == blocks.count;
    const Range own = blocks.at(i), next = blocks.at(last ? 0 : i + 1);
    if (memory.panel != panel || memory.first != own.begin)
      WidenedNext<Codes>(g.b, panel, own, memory.tiles[memory.place], 1).rest();
    const auto* weights = reinterpret_cast<const bf16*>(memory.tiles[memory.place]);
    memory.place = 1 - memory.place;
    memory.panel = last ? panel + 2 : panel;
    memory.first = next.begin;
    const bool none = memory.panel >= memory.panels_end;
    WidenedNext<Codes> ahead(g.b, none ? panel : memory.panel, none ? Range{0, 0} : next, memory.tiles[memory.place],
                             steps_of_block(rows, own.end - own.begin));
    const CopiedBlock<bf16> block{own, weights, fresh && i == 0, late_each};
    multiply_copied(g, scratch, row, rows, block, ahead, c);
    ahead.rest();
  }
  end_late(g, row, rows, panel, finish, scratch, c);
}

// The same for up to 32 rows and `c` in rows: a tile is widened two tiles before its product.
template <class Codes>
NUMASERVE_FLAT [[gnu::noinline]] void add_scaled_stream(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel,
                                                        Range k, bool fresh, GemmScratch& scratch, float* c) {
  constexpr int64_t kLead = 2, kRing = 4, kPair = 2 * kTileBytes, kFar = 16 << 10, kNear = 2 << 10;
  const ScaledCodes<Codes> codes(g.b, panel);
  std::byte* ring = scratch.widened.tiles[0];
  int64_t next = k.begin;
  const auto fetch = [](const std::byte* data) NUMASERVE_INLINE {
    prefetch_line(data + kFar);
    prefetch_first(data + kNear);
  };
  const auto widen = [&]() NUMASERVE_INLINE {
    if (next >= k.end) return;
    unrolled<2>([&]<int half>() NUMASERVE_INLINE {
      const std::byte* own = codes.widen(next, half, ring + next % kRing * kPair);
      unrolled<kHalfTileCodes>([&]<int i>() NUMASERVE_INLINE { fetch(own + i * kLineBytes); });
    });
    if (next % codes.tiles_of_group == 0)
      for (int64_t at = codes.layout.scales; at < codes.layout.bytes; at += kLineBytes)
        fetch(codes.record_of(next) + at);
    ++next;
  };
  for (int64_t i = 0; i < kLead; ++i) widen();
  const RowTiles<bf16> a =
      tiles_in_place(static_cast<const bf16*>(g.a) + row * g.lda + k.begin * kTileK, g.lda, static_cast<int>(rows));
  const auto tile = [&](int64_t kt) { return reinterpret_cast<const bf16*>(ring + (k.begin + kt) % kRing * kPair); };
  multiply_row_tiles(a, tile, kTileBytes / 2, k.end - k.begin, c, 32, static_cast<int>(rows), !fresh, widen);
}

// The loop nest's view of such formats; the unit of k is a tile.
template <class Codes>
struct Scaled : SumsOfCopied<float> {
  using Sum = float;
  static constexpr bool kFinishes = true;
  static void begin_share(const GemmArgs& g, const GemmShare& share, GemmScratch& scratch) {
    // Codes of more rows are widened for all of them, however few pairs a share has.
    scratch.copies = g.tiled_rows || share.rows.end - share.rows.begin > kStreamedRows;
    scratch.streamed.panels = streamed_panels(g, share);
    scratch.late = {};
    scratch.widened.place = 0;
    scratch.widened.panel = -1;
    scratch.widened.panels_end = share.panels.end;
  }
  static int64_t unit(const PackedWeights&) { return kTileK; }
  static int64_t slab(const GemmArgs& g, int64_t rows, bool streamed) {
    if (streamed) return g.b.depth;
    const int64_t room = packed_tiles_room(rows), wanted = slab_of_tiles(g, rows);
    return room < wanted ? room : wanted;
  }
  static void begin(const GemmArgs& g, int64_t row, int64_t rows, Range k, GemmScratch& scratch) {
    tile_begin(scratch.copies ? kTileRows : rows);
    if (scratch.copies) copy_blocks<bf16>(g, row, rows, k, kWidenedBlock, scratch);
  }
  static void add(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range k, bool fresh, bool, bool finish,
                  GemmScratch& scratch, float* c) {
    if (scratch.copies && k.begin < k.end)
      return add_scaled_blocks<Codes>(g, row, rows, panel, k, fresh, finish, scratch, c);
    if (k.begin < k.end)
      add_scaled_stream<Codes>(g, row, rows, panel, k, fresh, scratch, c);
    else  // of a rank that has no share of k
      __builtin_memset(c, 0, static_cast<size_t>(round_up(rows, kRowTileRows)) * 32 * sizeof(float));
    if (finish) SumsOfCopied<float>::finish(g, row, rows, panel, c, scratch);
  }
};

}  // namespace
}  // namespace numaserve
