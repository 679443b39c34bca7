// Products with bf16 and int8 weights without groups: the work for a block of k tiles in the loop nest of gemm.inl.
#pragma once

#include <type_traits>

#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/sums_in_rows.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"

#if defined(__AVX512BF16__)
#include "kernels/gemm/packed_rows_avx512.inl"
#else
#include "kernels/gemm/packed_rows_avx2.inl"
#endif
#if defined(NUMASERVE_TILES_HEADER)
#include "kernels/gemm/copied_blocks_amx.inl"
#include "kernels/gemm/packed_tiles_amx.inl"
#endif

namespace numaserve {
namespace {

#if defined(NUMASERVE_TILES_HEADER)
template <class T>
using PlainSums = SumsOfCopied<typename SumOf<T>::type>;
#else
template <class T>
using PlainSums = SumsInRows<typename SumOf<T>::type>;
#endif

// The loop nest's view of formats whose tiles in memory are in the order of the dot products; the unit of k is a tile.
template <class T>
struct Plain : PlainSums<T> {
  using Sum = typename SumOf<T>::type;
  static constexpr int64_t kElements = kTileBytes / static_cast<int64_t>(sizeof(T));
  static constexpr bool kFinishes = kPacksTiles;  // `add` finishes the sums itself if `finish` is set
  static int64_t unit(const PackedWeights&) { return kTileDepth<T>; }
  static int64_t slab(const GemmArgs& g, int64_t rows, bool streamed) {
    if (kPacksTiles && streamed) return g.b.depth;
    const int64_t wanted = streamed ? g.b.depth : kPacksTiles ? slab_of_tiles(g, rows) : g.blocking.slab_tiles;
    const int64_t room = kPacksTiles ? packed_tiles_room(rows) : packed_room(rows) / kLineBytes / kPerWord<T>;
    return room < wanted ? room : wanted;
  }
  static void begin_rows(const GemmArgs& g, int64_t row, int64_t rows, GemmScratch& scratch) {
    if constexpr (sizeof(T) == 1) gather_scales(g, row, rows, scratch.row_scales);
  }
  static void begin(const GemmArgs& g, int64_t row, int64_t rows, Range k, GemmScratch& scratch) {
#if defined(NUMASERVE_TILES_HEADER)
    tile_begin(scratch.copies ? kTileRows : rows);
    if (scratch.copies) return copy_blocks<T>(g, row, rows, k, g.blocking.copied_tiles, scratch);
    pack_tiles<T>(g, row, rows, k, scratch);
#endif
    if constexpr (kPacksRows) {
      const T* a = static_cast<const T*>(g.a) + row * g.lda;
      pack_rows<T>(a, g.lda * static_cast<int64_t>(sizeof(T)), rows, {k.begin * kLines, k.end * kLines}, kMostTogether,
                   scratch);
    }
  }

  // Adds k tiles [begin, end) of one pair of panels to `c`, or overwrites `c` with them if `fresh` is set. `c` is
  // [rows][32], or tiles where blocks are copied.
  static void add(const GemmArgs& g, [[maybe_unused]] int64_t row, int64_t rows, int64_t panel, Range k, bool fresh,
                  bool streamed, [[maybe_unused]] bool finish, GemmScratch& scratch, Sum* c) {
    const int64_t k_tiles = g.b.depth / kTileDepth<T>;
    const T* b = reinterpret_cast<const T*>(g.b.data) + tile_index(panel, 0, k_tiles) * kElements;
    const int64_t depth = block_tiles(g, rows, k, streamed);
#if defined(NUMASERVE_TILES_HEADER)
    if (scratch.copies) return add_copied<T>(g, row, rows, panel, k, fresh, finish, scratch, c);
    if constexpr (std::is_same_v<Sum, float>)
      if (fresh && k.begin == 0 && begins_expanded(g)) {
        expand_pair(g.expand, row, rows, panel, c);
        fresh = false;
      }
    const TileBlock<T> slab{row, rows, panel, k.begin, k.end - k.begin, b + k.begin * 2 * kElements, streamed};
    add_by_tiles(g, slab, depth, fresh, finish, scratch, c);
#else
    int64_t kt = k.begin;
    do {  // once even if k is empty, so that the results are zero
      const int64_t count = k.end - kt < depth ? k.end - kt : depth;
      const T* block = b + kt * 2 * kElements;
      const T* next = kt + count < k.end ? block + count * 2 * kElements : b + (k_tiles + k.begin) * 2 * kElements;
      multiply_packed(scratch, rows, kt, block, count, next, c, !fresh || kt > k.begin);
      kt += count;
    } while (kt < k.end);
#endif
  }

 private:
  // Returns the number of k tiles that all rows pass by before the next ones.
  static int64_t block_tiles(const GemmArgs& g, int64_t rows, Range k, bool streamed) {
    if (kPacksRows ? rows <= kMostTogether : streamed) return k.end;
    return rows <= g.blocking.few_rows ? g.blocking.few_tiles : g.blocking.block_tiles;
  }
};

}  // namespace
}  // namespace numaserve
