// Attention over paged KV for prefill, extend and decode alike.
//
// KV is cut at fixed positions into blocks of kAttentionBlock tokens. For each block a row gets its maximum m, its sum
// l of exponentials and its unnormalised output o. Blocks are merged strictly in order, by the same arithmetic, whether
// one work item goes through all blocks (prefill) or items have some blocks each (decode of a long sequence). A row's
// bits therefore depend on its own KV alone. Online softmax: Milakov and Gimelshein, 2018; blocks: Dao et al.,
// 2022.
//
// Codes of one byte are widened to bf16, exactly, half a page at a time into a tile buffer that stays in the L1 or L2
// cache; the rest is as for bf16. The scales of K are multiplied into the columns of scores, in fp32. The scales of V
// are multiplied into the probabilities before these are rounded to bf16; rounding a scaled V would lose more. l sums
// the rounded weights, so that weights add up to one as they do without scales.
#pragma once

#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/ops/attention_results.inl"
#include "kernels/ops/kv_ahead.inl"
#include "kernels/ops/rope_store.inl"
#include "kernels/ops/softmax.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/kv_codes.h"

#if defined(__AVX512VBMI__)
#include "kernels/ops/kv_tiles_avx512.inl"
#endif

namespace numaserve {
namespace {

struct AttentionScratch {
  alignas(64) bf16 q[kPromptRows * kMaxHeadDim];
  alignas(64) std::byte tiles[kv_tiles_bytes(KvDtype::kBf16, kMaxHeadDim / kTileK)];
  BlockScales scales;
  alignas(64) float s[kAttentionRows * kAttentionBlock];
  alignas(64) bf16 p[kAttentionRows * kAttentionBlock];
  alignas(64) float o[kAttentionRows * kMaxHeadDim];
  alignas(64) float merged[kPromptRows * kMaxHeadDim];
  alignas(64) float m[kAttentionRows], l[kAttentionRows];
  alignas(64) float merged_m[kPromptRows], merged_l[kPromptRows];
};

// The queries of an item.
inline void gather_q(const AttentionArgs& a, const AttentionItem& item, AttentionScratch& w) {
  const int32_t padded = a.head_tiles * kTileK;
  QueryRow query = query_row(a, item, 0);
  if (a.rope != nullptr) {
    const AttentionSequence& s = a.sequences[item.sequence];
    for (int32_t r = 0; r < item.num_rows; ++r, query.next())
      rotate_query(*a.rope, query.row, query.head, s.start + static_cast<int32_t>(query.row) - s.row, w.q + r * padded);
    return;
  }
  for (int32_t r = 0; r < item.num_rows; ++r, query.next()) {
    const bf16* q = a.q + query.index(a) * padded;
    for (int32_t i = 0; i < padded; i += kTileK) __builtin_memcpy(w.q + r * padded + i, q + i, kLineBytes);
  }
}

// Stores the new keys and values of an item's head that belong to its blocks: no other item sees these (see
// AttentionWork::can_store).
inline void store_new(const AttentionArgs& a, const AttentionItem& item) {
  const AttentionSequence& s = a.sequences[item.sequence];
  int32_t position = s.start, end = s.start + s.q_len;
  if (item.block >= 0) {
    const int32_t first = item.block * kAttentionBlock, last = first + item.blocks * kAttentionBlock;
    position = position > first ? position : first;
    end = end < last ? end : last;
  }
  while (position < end) {
    const PageRun run = page_run(s, position, end);
    with_codes(a.kv.dtype, [&]<class Codes>(Codes) {
      rope_store_run<Codes>(*a.rope, run, a.heads.q_heads + item.kv_head);
      rope_store_run<Codes>(*a.rope, run, a.heads.q_heads + a.heads.kv_heads + item.kv_head);
    });
    position += run.count;
  }
}

// Half a page of one head, K or V.
inline const std::byte* half_page(const AttentionArgs& a, const AttentionItem& item, const std::byte* base,
                                  int32_t page) {
  return base + page * a.kv.page_stride + item.kv_head * a.kv.head_stride;
}

// The tiles of a half page in bf16, `tiles` across a token, widened into the scratch.
template <class Codes, bool kAhead>
inline const bf16* widen_tiles(int32_t tiles, const std::byte* half, KvAhead& ahead, AttentionScratch& w) {
  constexpr int64_t kBytes = 2 * kv_tile_bytes(Codes::kDtype);
  for (int64_t begin = 0; begin < tiles * kBytes; begin += kBytes) {
    if constexpr (kAhead) advance(ahead, tile_lines_ahead(Codes::kDtype));
#pragma GCC unroll 4
    for (int64_t i = begin; i < begin + kBytes; i += kLineBytes) Codes::widen(half + i, w.tiles + 2 * i);
  }
  return reinterpret_cast<const bf16*>(w.tiles);
}

// Loads the scales of a block's tokens as factors. Scales of tokens that no row sees are zero or stale.
template <class Codes>
inline void load_scales(const AttentionArgs& a, const AttentionItem& item, const int32_t* table, int32_t pages,
                        BlockScales& scales) {
  for (int32_t i = 0; i < pages * kPageTokens; i += 16) {
    const int32_t page = table[i / kPageTokens];
    const auto load = [&](const std::byte* base, int32_t tiles) {
      const std::byte* after_tiles = half_page(a, item, base, page) + kv_tiles_bytes(Codes::kDtype, tiles);
      return F32x16::load(reinterpret_cast<const bf16*>(after_tiles) + i % kPageTokens);
    };
    load(a.kv.k, a.head_tiles).store(scales.k + i);
    const F32x16 v = F32x16::max(load(a.kv.v, a.value_tiles), F32x16::set1(kSmallestKvScale));
    v.store(scales.v + i);
    (F32x16::set1(1.0f) / v).store(scales.v_inverse + i);
  }
}

#if !defined(__AVX512VBMI__)
template <class, class TileAt>
inline bool kv_tiles_in_registers(const bf16*, int64_t, TileAt, int64_t, int, int64_t, float*, int64_t, int) {
  return false;
}
#endif

// s = q · Kᵀ for a block, without the scales.
template <class Codes, bool kAhead>
inline void block_scores(const AttentionArgs& a, const AttentionItem& item, const int32_t* table, int32_t pages,
                         const bf16* q, KvAhead& ahead, AttentionScratch& w) {
  const int32_t padded = a.head_tiles * kTileK;
  for (int32_t page = 0; page < pages; ++page) {
    const std::byte* half = half_page(a, item, a.kv.k, table[page]);
    const auto tile = [&, half](int64_t kt) {
      if constexpr (kAhead) advance(ahead, tile_lines_ahead(Codes::kDtype));
      return half + kt * kv_tile_bytes(Codes::kDtype);
    };
    float* s = w.s + page * kPageTokens;
    if constexpr (Codes::kScaled) {
      if (kv_tiles_in_registers<Codes>(q, padded, tile, a.head_tiles * kv_tile_bytes(Codes::kDtype), 2, a.head_tiles, s,
                                       kAttentionBlock, item.num_rows))
        continue;
      const bf16* k = widen_tiles<Codes, kAhead>(a.head_tiles, half, ahead, w);
      tile_gemm(
          q, padded, [k](int64_t kt) { return k + kt * kTileElements; }, a.head_tiles * kTileElements, 2, a.head_tiles,
          s, kAttentionBlock, item.num_rows, false);
    } else {
      const auto elements = [&tile](int64_t kt) { return reinterpret_cast<const bf16*>(tile(kt)); };
      tile_gemm(q, padded, elements, a.head_tiles * kTileElements, 2, a.head_tiles, s, kAttentionBlock, item.num_rows,
                false);
    }
  }
}

// o = p · V for a block. An element's sum is the same chain whether pages are added one by one or in one go.
template <class Codes, bool kAhead>
inline void block_outputs(const AttentionArgs& a, const AttentionItem& item, const int32_t* table, int32_t pages,
                          KvAhead& ahead, AttentionScratch& w) {
  const int32_t padded = padded_values(a);
  const auto tile = [&, table](int64_t kt) {
    if constexpr (kAhead) advance(ahead, tile_lines_ahead(Codes::kDtype));
    return half_page(a, item, a.kv.v, table[kt]);
  };
  if constexpr (Codes::kScaled) {
    if (kv_tiles_in_registers<Codes>(w.p, kAttentionBlock, tile, kv_tile_bytes(Codes::kDtype), a.value_tiles * 2, pages,
                                     w.o, padded, item.num_rows))
      return;
    for (int32_t page = 0; page < pages; ++page) {
      const bf16* v = widen_tiles<Codes, kAhead>(a.value_tiles, half_page(a, item, a.kv.v, table[page]), ahead, w);
      tile_gemm(
          w.p + page * kPageTokens, kAttentionBlock, [v](int64_t) { return v; }, kTileElements, a.value_tiles * 2, 1,
          w.o, padded, item.num_rows, page > 0);
    }
  } else {
    const auto elements = [&tile](int64_t kt) { return reinterpret_cast<const bf16*>(tile(kt)); };
    tile_gemm(w.p, kAttentionBlock, elements, kTileElements, a.value_tiles * 2, pages, w.o, padded, item.num_rows,
              false);
  }
}

// m, l and o of every row for one block; a row that sees nothing of the block gets l = 0.
template <class Codes, bool kAhead>
inline void attention_rows(const AttentionArgs& a, const AttentionItem& item, int32_t block, const bf16* q,
                           KvAhead& ahead, AttentionScratch& w) {
  const int32_t first = block * kAttentionBlock;
  const int32_t pages = visible_pages(a, item, block);
  const int32_t* table = a.sequences[item.sequence].pages + first / kPageTokens;
  if constexpr (Codes::kScaled) load_scales<Codes>(a, item, table, pages, w.scales);
  block_scores<Codes, kAhead>(a, item, table, pages, q, ahead, w);
  for (int32_t r = 0; r < item.num_rows; r += 16)
    softmax_rows<Codes, kAhead>(a, w.scales, item, r, first, pages * kPageTokens, ahead, w.s + r * kAttentionBlock,
                                w.p + r * kAttentionBlock, w.m + r, w.l + r);
  block_outputs<Codes, kAhead>(a, item, table, pages, ahead, w);
}

// `q`: the item's queries. With many rows most KV comes from a cache, so prefetches go between rows: inside the tiles
// they would spill accumulators and cost a fifth of the speed.
inline void attention_block(const AttentionArgs& a, const AttentionItem& item, int32_t block, const bf16* q,
                            KvAhead& ahead, AttentionScratch& w) {
  with_codes(a.kv.dtype, [&]<class Codes>(Codes) {
    if (item.num_rows <= kRowsAhead)
      attention_rows<Codes, true>(a, item, block, q, ahead, w);
    else
      attention_rows<Codes, false>(a, item, block, q, ahead, w);
  });
}

inline int32_t first_block(const AttentionArgs& a, const AttentionItem& item) {
  return item.block >= 0 ? item.block : row_limits(a, item, 0).low / kAttentionBlock;
}

// Returns the block after the last one of an item.
inline int32_t end_block(const AttentionArgs& a, const AttentionItem& item) {
  if (item.block >= 0) return item.block + item.blocks;
  return static_cast<int32_t>(ceil_div(row_limits(a, item, item.num_rows - 1).high, kAttentionBlock));
}

// Returns the memory to prefetch while a block is computed: the block after it, otherwise the first block of the next
// item, otherwise the memory needed after all items.
inline KvAhead ahead_of(const AttentionArgs& a, const AttentionItem& item, int32_t block, int32_t end,
                        const AttentionItem* next) {
  if (block + 1 < end) return kv_ahead(a, item, block + 1, item.num_rows);
  if (next != nullptr) return kv_ahead(a, *next, first_block(a, *next), item.num_rows);
  return after_ahead(a, item.num_rows);
}

// Computes one block for all rows of an item: merges the results into the results of earlier blocks, or writes them as
// partial results from `partial` on, if that is not negative.
inline void item_block(const AttentionArgs& a, const AttentionItem& item, int32_t block, int64_t partial,
                       KvAhead& ahead, AttentionScratch& w) {
  const int32_t padded = a.head_tiles * kTileK, values = padded_values(a);
  AttentionItem part = item;
  for (int32_t row = 0; row < item.num_rows; row += part.num_rows) {
    part.first_row = item.first_row + row;
    part.num_rows = rows_at_once(item.num_rows - row);
    const bool sees = row_limits(a, part, part.num_rows - 1).high > block * kAttentionBlock;
    if (sees)
      attention_block(a, part, block, w.q + row * padded, ahead, w);
    else
      for (int32_t r = 0; r < part.num_rows; ++r) w.m[r] = w.l[r] = 0.0f;
    if (partial >= 0) {
      for (int32_t r = 0; r < part.num_rows; ++r)
        write_partial(a, a.partial, partial + row + r, w.o + r * values, w.m[r], w.l[r]);
    } else if (sees) {
      merge_block(w.o, w.m, w.l, w.merged + row * values, w.merged_m + row, w.merged_l + row, part.num_rows, values);
    }
  }
}

// `next`: the item that this thread will probably compute next, or null.
inline void attention_item(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* next,
                           void* scratch) {
  AttentionScratch& w = *static_cast<AttentionScratch*>(scratch);
  const int32_t values = padded_values(a);
  tile_begin(item.num_rows);
  gather_q(a, item, w);
  if (a.rope != nullptr && a.rope->source != KvSource::kCached) store_new(a, item);
  const bool merges = item.block < 0 || item.joined;
  for (int32_t r = 0; r < item.num_rows; ++r) w.merged_l[r] = 0.0f;
  const int32_t first = first_block(a, item), end = end_block(a, item);
  for (int32_t block = first; block < end; ++block) {
    KvAhead ahead = ahead_of(a, item, block, end, next);
    if (block + 1 == end && merges && !item.joined) ahead.rows = rows_ahead(a, item, next);
    item_block(a, item, block, merges ? -1 : item.partial + int64_t{block - first} * item.num_rows, ahead, w);
  }
  QueryRow query = query_row(a, item, 0);
  for (int32_t r = 0; merges && r < item.num_rows; ++r, query.next())
    if (item.joined)
      write_partial(a, a.partial, item.partial + r, w.merged + r * values, w.merged_m[r], w.merged_l[r]);
    else
      write_row(a, query, w.merged + r * values, w.merged_m[r], w.merged_l[r]);
}

// Merges `num_blocks` partial results of the rows of `item`, the first item of these rows; the partial results of a row
// are `block_stride` rows apart.
inline void attention_merge(const AttentionArgs& a, const AttentionItem& item, int num_blocks, int64_t block_stride) {
  const int32_t padded = padded_values(a);
  alignas(64) float merged[kMaxHeadDim];
  QueryRow query = query_row(a, item, 0);
  for (int32_t r = 0; r < item.num_rows; ++r, query.next()) {
    float m = 0.0f, l = 0.0f;
    for (int b = 0; b < num_blocks; ++b) {
      const float* partial = a.partial + (item.partial + b * block_stride + r) * partial_stride(a);
      merge_row(partial, partial[padded], partial[padded + 1], merged, m, l, padded);
    }
    write_row(a, query, merged, m, l);
  }
}

}  // namespace
}  // namespace numaserve
