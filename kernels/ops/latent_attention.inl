// Attention over a latent cache: multi-head latent attention (DeepSeek-V2, 2024) with the projections of keys and
// values absorbed into queries and outputs. All heads share one key, [latent, rotated part], whose first `value_dim`
// dimensions are also their value. Every row of every head therefore passes by the same tokens, and heads are rows of
// an ordinary matrix product.
//
// Pages hold the tokens once, in tiles of keys (dimensions down the lines). Tiles of values (tokens down the lines) are
// made from these in the thread's scratch, once for a block of tokens and all rows of an item. A second copy in the
// cache would double the bytes read from memory, which is the bottleneck of decoding. Blocks, softmax and merging are
// those of attention.inl, and for the same reasons a row's bits depend on nothing but its own tokens.
//
// With several ranks, blocks are merged as `world` groups, block b in group b % world, and then the groups in order.
// The bits are the same whether one rank goes through all groups, or each rank attends one group for the heads of all
// ranks (see runtime/attention/context_parallel.h).
#pragma once

#include <immintrin.h>

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/attention.inl"

namespace numaserve {
namespace {

inline constexpr int kBlockPages = kAttentionBlock / kPageTokens;
// The distance of rows is an odd number of cache lines, so that the rows of a tile do not fall into the same set of the
// L1 cache.
inline constexpr int64_t latent_stride(int32_t head_tiles) { return (head_tiles | 1) * kTileK; }

struct LatentScratch {
  alignas(64) bf16 q[kLatentRows * latent_stride(kMaxLatentDim / kTileK)];
  alignas(64) bf16 v[kAttentionBlock * kMaxHeadDim];  // [dimensions / 32][pages][2] tiles
  alignas(64) float s[kAttentionRows * kAttentionBlock];
  alignas(64) bf16 p[kAttentionRows * kAttentionBlock];
  alignas(64) float o[kAttentionRows * kMaxHeadDim];
  alignas(64) float merged[kLatentRows * kMaxHeadDim];
  alignas(64) float total[kLatentRows * kMaxHeadDim];  // of the groups before this one
  BlockScales scales;
  alignas(64) float m[kAttentionRows], l[kAttentionRows];
  alignas(64) float merged_m[kLatentRows], merged_l[kLatentRows];
  float total_m[kLatentRows], total_l[kLatentRows];
};

// The order in which an item visits blocks.
struct BlockOrder {
  int32_t end, groups, only;  // `only` this group, or -1: all, one after the other
  int32_t first() const { return only < 0 ? 0 : only; }
  // Returns the block after `block`, or `end`.
  int32_t after(int32_t block) const {
    if (block + groups < end) return block + groups;
    return only < 0 && ends_group(block) && block % groups + 1 < groups ? block % groups + 1 : end;
  }
  bool ends_group(int32_t block) const { return block + groups >= end; }
};

// Makes half of the lines of two tiles of values, with 16 dimensions each, from the tile of keys with their 32
// dimensions of 16 tokens. Groups of four words, two dimensions of two tokens, stay together. Their words are
// reordered, and the groups are transposed as 64 bits, 8 by 8 (pairs of dimensions by pairs of tokens).
inline void turn_tile(const bf16* keys, bf16* values) {
  constexpr int64_t kLine = kTileN * kLineDepth<bf16>;
  for (int half = 0; half < 2; ++half) {
    const bf16* lines = keys + half * (kLines / 2) * kLine;
    bf16* out = values + half * kTileElements;
#if defined(__AVX512F__)
    const __m512i exchange = _mm512_set4_epi32(0x0f0e0b0a, 0x0d0c0908, 0x07060302, 0x05040100);
    for (int column = 0; column < 4; ++column) {
      // 128 bits of every second line: loads with inserts leave the shuffle port to operations that need it.
      const auto gather = [&](int first) {
        const auto at = [&](int i) {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lines + (first + 2 * i) * kLine) + column);
        };
        __m512i v = _mm512_castsi128_si512(at(0));
        v = _mm512_inserti64x2(v, at(1), 1);
        v = _mm512_inserti64x2(v, at(2), 2);
        return _mm512_inserti64x2(v, at(3), 3);
      };
      const __m512i even = gather(0), odd = gather(1);
      bf16* to = out + 2 * column * kLine;
      _mm512_storeu_si512(to, _mm512_shuffle_epi8(_mm512_unpacklo_epi64(even, odd), exchange));
      _mm512_storeu_si512(to + kLine, _mm512_shuffle_epi8(_mm512_unpackhi_epi64(even, odd), exchange));
    }
#else
    for (int i = 0; i < kLines / 2; ++i)
      for (int j = 0; j < kLines / 2; ++j) {
        uint64_t words;
        __builtin_memcpy(&words, lines + i * kLine + 4 * j, sizeof(words));
        words = (words & 0xffff00000000ffff) | (words >> 16 & 0xffff0000) | (words << 16 & 0xffff00000000);
        __builtin_memcpy(out + j * kLine + 4 * i, &words, sizeof(words));
      }
#endif
  }
}

inline const bf16* latent_page(const AttentionArgs& a, int32_t page) {
  return reinterpret_cast<const bf16*>(a.kv.k + page * a.kv.page_stride);
}

// The tiles of values of a block.
inline void turn_values(const AttentionArgs& a, const int32_t* table, int32_t pages, bf16* v) {
  for (int32_t page = 0; page < pages; ++page) {
    const bf16* keys = latent_page(a, table[page]);
    for (int32_t half = 0; half < 2; ++half)
      for (int32_t t = 0; t < a.value_dim / kTileK; ++t) {
        bf16* tiles = v + (t * kBlockPages + page) * 2 * kTileElements;
        turn_tile(keys + (half * a.head_tiles + t) * kTileElements, tiles + half * kTileElements / 2);
      }
  }
}

// Returns the memory to prefetch while an item of `rows` rows computes a block: the part of `block` that `item` needs.
// Halves of a page take the place of its K and V.
inline KvAhead latent_ahead(const AttentionArgs& a, const AttentionItem& item, int32_t block, int32_t rows) {
  const int64_t half_lines = a.head_tiles * kTileBytes / kLineBytes, lines = 2 * half_lines * kBlockPages;
  const int64_t portions = ceil_div(rows, kAttentionRows) * (kBlockPages + a.value_dim / kTileK) + rows;
  return {.table = a.sequences[item.sequence].pages + block * kBlockPages,
          .pages = visible_pages(a, item, block),
          .k = a.kv.k,
          .v = a.kv.k + a.head_tiles * kTileBytes,
          .stride = a.kv.page_stride,
          .k_lines = half_lines,
          .v_lines = half_lines,
          .vector_lines = ceil_div(lines, 4 * rows * (kAttentionBlock / 16)),
          .row_lines = ceil_div(lines, portions)};
}

inline int32_t first_latent_block(const AttentionArgs& a, const AttentionItem& item) {
  if (item.block >= 0) return item.block;
  return a.block_group < 0 ? 0 : a.block_group;
}

// Computes m, l and o of the rows of `part`, a part of an item, for one block. Up to 16 rows are limited by memory, and
// prefetch a little with every tile. More rows prefetch between products, and between the rows of the softmax.
template <bool kAhead>
inline void latent_rows(const AttentionArgs& a, const AttentionItem& part, int32_t block, const bf16* q, KvAhead& ahead,
                        LatentScratch& w) {
  const int32_t first = block * kAttentionBlock, pages = visible_pages(a, part, block);
  const int32_t* table = a.sequences[part.sequence].pages + block * kBlockPages;
  // Half of the lines of two tiles, because two products pass by the same tiles; the softmax prefetches a quarter.
  constexpr int64_t kTileLines = kTileBytes / kLineBytes * 3 / 4;
  for (int32_t page = 0; page < pages; ++page) {
    if constexpr (!kAhead) advance(ahead, ahead.row_lines);
    const bf16* keys = latent_page(a, table[page]);
    const auto tile = [&, keys](int64_t kt) {
      if constexpr (kAhead) advance(ahead, kTileLines);
      return keys + kt * kTileElements;
    };
    tile_gemm(q, latent_stride(a.head_tiles), tile, a.head_tiles * kTileElements, 2, a.head_tiles,
              w.s + page * kPageTokens, kAttentionBlock, part.num_rows, false);
  }
  for (int32_t r = 0; r < part.num_rows; r += 16)
    softmax_rows<Bf16Codes, kAhead>(a, w.scales, part, r, first, pages * kPageTokens, ahead, w.s + r * kAttentionBlock,
                                    w.p + r * kAttentionBlock, w.m + r, w.l + r);
  for (int32_t t = 0; t < a.value_dim / kTileK; ++t) {
    if constexpr (!kAhead) advance(ahead, ahead.row_lines);
    const bf16* values = w.v + t * kBlockPages * 2 * kTileElements;
    const auto tile = [&, values](int64_t kt) {
      if constexpr (kAhead) advance(ahead, kTileLines);
      return values + kt * 2 * kTileElements;
    };
    tile_gemm(w.p, kAttentionBlock, tile, kTileElements, 2, pages, w.o + t * kTileK, a.value_dim, part.num_rows, false);
  }
}

// Computes one block for all rows of an item: writes partial results, or merges them into the results of earlier
// blocks.
inline void latent_block(const AttentionArgs& a, const AttentionItem& item, int32_t block, KvAhead& ahead,
                         LatentScratch& w) {
  turn_values(a, a.sequences[item.sequence].pages + block * kBlockPages, visible_pages(a, item, block), w.v);
  AttentionItem part = item;
  for (int32_t row = 0; row < item.num_rows; row += part.num_rows) {
    part.first_row = item.first_row + row;
    part.num_rows = rows_at_once(item.num_rows - row);
    const bf16* q = w.q + row * latent_stride(a.head_tiles);
    if (row_limits(a, part, part.num_rows - 1).high <= block * kAttentionBlock) {
      for (int32_t r = 0; r < part.num_rows; ++r) w.m[r] = w.l[r] = 0.0f;
    } else if (item.num_rows <= kRowsAhead) {
      latent_rows<true>(a, part, block, q, ahead, w);
    } else {
      latent_rows<false>(a, part, block, q, ahead, w);
    }
    if (item.block >= 0)
      for (int32_t r = 0; r < part.num_rows; ++r)
        write_partial(a, a.partial, item.partial + row + r, w.o + r * a.value_dim, w.m[r], w.l[r]);
    else
      merge_block(w.o, w.m, w.l, w.merged + row * a.value_dim, w.merged_m + row, w.merged_l + row, part.num_rows,
                  a.value_dim);
  }
}

// Writes a finished row: normalised, or as a group's part, to be merged with the parts of other ranks.
inline void write_result(const AttentionArgs& a, const AttentionItem& item, int32_t row, const float* o, float m,
                         float l) {
  if (a.group_out == nullptr)
    write_row(a, item, row, o, m, l);
  else
    write_partial(a, a.group_out, query_row(a, item, row), o, m, l);
}

// Computes all blocks of an item that sees the blocks before `end`.
inline void latent_blocks(const AttentionArgs& a, const AttentionItem& item, int32_t end, const AttentionItem* next,
                          LatentScratch& w) {
  const BlockOrder order{.end = end, .groups = a.block_groups, .only = a.block_group};
  const bool several = a.block_groups > 1 && a.block_group < 0;
  for (int32_t r = 0; r < item.num_rows; ++r) w.merged_l[r] = w.total_l[r] = 0.0f;
  for (int32_t block = order.first(); block < end;) {
    const int32_t after = order.after(block);
    KvAhead ahead;
    if (after < end)
      ahead = latent_ahead(a, item, after, item.num_rows);
    else if (next != nullptr)
      ahead = latent_ahead(a, *next, first_latent_block(a, *next), item.num_rows);
    latent_block(a, item, block, ahead, w);
    if (several && order.ends_group(block))
      for (int32_t r = 0; r < item.num_rows; ++r) {
        merge_row(w.merged + r * a.value_dim, w.merged_m[r], w.merged_l[r], w.total + r * a.value_dim, w.total_m[r],
                  w.total_l[r], a.value_dim);
        w.merged_l[r] = 0.0f;
      }
    block = after;
  }
  for (int32_t r = 0; r < item.num_rows; ++r)
    write_result(a, item, r, (several ? w.total : w.merged) + r * a.value_dim, several ? w.total_m[r] : w.merged_m[r],
                 several ? w.total_l[r] : w.merged_l[r]);
}

// `next`: the item that this thread will probably compute next, or null.
inline void latent_attention_item(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* next,
                                  void* scratch) {
  LatentScratch& w = *static_cast<LatentScratch*>(scratch);
  const int64_t width = a.head_tiles * kTileK;
  tile_begin(item.num_rows);
  for (int32_t r = 0; r < item.num_rows; ++r)
    __builtin_memcpy(w.q + r * latent_stride(a.head_tiles), a.q + query_row(a, item, r) * width,
                     static_cast<size_t>(width) * sizeof(bf16));
  if (item.block < 0) {
    const int32_t high = row_limits(a, item, item.num_rows - 1).high;
    latent_blocks(a, item, static_cast<int32_t>(ceil_div(high, kAttentionBlock)), next, w);
    return;
  }
  KvAhead ahead;
  if (next != nullptr) ahead = latent_ahead(a, *next, first_latent_block(a, *next), item.num_rows);
  latent_block(a, item, item.block, ahead, w);
}

// Merges the partial results of the blocks of `item`, as attention_merge does, in groups.
inline void latent_attention_merge(const AttentionArgs& a, const AttentionItem& item, int num_blocks,
                                   int64_t block_stride) {
  const int32_t count = padded_values(a), groups = a.block_group < 0 ? a.block_groups : 1;
  alignas(64) float merged[kMaxHeadDim];
  alignas(64) float total[kMaxHeadDim];
  for (int32_t r = 0; r < item.num_rows; ++r) {
    float total_m = 0.0f, total_l = 0.0f;
    for (int32_t group = 0; group < groups; ++group) {
      float m = 0.0f, l = 0.0f;
      for (int32_t b = group; b < num_blocks; b += groups) {
        const float* partial = a.partial + (item.partial + b * block_stride + r) * partial_stride(a);
        merge_row(partial, partial[count], partial[count + 1], merged, m, l, count);
      }
      merge_row(merged, m, l, total, total_m, total_l, count);
    }
    write_result(a, item, r, total, total_m, total_l);
  }
}

// Merges the groups' results of some rows, one group of each rank, for this rank's heads.
inline void latent_groups_merge(const LatentGroupsArgs& g, int thread, int threads) {
  const int64_t stride = g.value_dim + kPartialExtra;
  const Range mine = share_of(g, thread, threads);
  alignas(64) float total[kMaxHeadDim];
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const int64_t row = i / g.heads, head = i % g.heads;
    float m = 0.0f, l = 0.0f;
    for (int32_t rank = 0; rank < g.num_parts; ++rank) {
      const float* part = g.parts[rank] + (row * g.all_heads + g.first_head + head) * stride;
      merge_row(part, part[g.value_dim], part[g.value_dim + 1], total, m, l, g.value_dim);
    }
    const F32x16 scale = F32x16::set1(1.0f / l);
    bf16* out = g.out + g.rows[row] * g.ldo + head * g.value_dim;
    for (int32_t c = 0; c < g.value_dim; c += 16) (F32x16::load(total + c) * scale).store(out + c);
  }
}

}  // namespace
}  // namespace numaserve
