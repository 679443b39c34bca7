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

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/attention.inl"
#include "kernels/ops/latent_values.inl"

namespace numaserve {
namespace {

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

// Computes one block for all rows of an item: merges the results into the results of earlier blocks, or writes them as
// partial results from `partial` on, if that is not negative.
inline void latent_block(const AttentionArgs& a, const AttentionItem& item, int32_t block, int64_t partial,
                         KvAhead& ahead, LatentScratch& w) {
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
    if (partial >= 0)
      for (int32_t r = 0; r < part.num_rows; ++r)
        write_partial(a, a.partial, partial + row + r, w.o + r * a.value_dim, w.m[r], w.l[r]);
    else
      merge_block(w.o, w.m, w.l, w.merged + row * a.value_dim, w.merged_m + row, w.merged_l + row, part.num_rows,
                  a.value_dim);
  }
}

// Writes a finished row: normalised, or as a group's part, to be merged with the parts of other ranks.
inline void write_result(const AttentionArgs& a, const QueryRow& query, const float* o, float m, float l) {
  if (a.group_out == nullptr)
    write_row(a, query, o, m, l);
  else
    write_partial(a, a.group_out, query.index(a), o, m, l);
}

// Returns the memory to prefetch: block `after` of the item if it is before `end`, otherwise the next item's first one.
inline KvAhead latent_ahead_of(const AttentionArgs& a, const AttentionItem& item, int32_t after, int32_t end,
                               const AttentionItem* next) {
  if (after < end) return latent_ahead(a, item, after, item.num_rows);
  if (next != nullptr) return latent_ahead(a, *next, first_latent_block(a, *next), item.num_rows);
  return {};
}

// Computes some blocks of an item as partial results.
inline void latent_range(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* next,
                         LatentScratch& w) {
  const int32_t step = block_step(a), end = item.block + item.blocks * step;
  for (int32_t r = 0; r < item.num_rows; ++r) w.merged_l[r] = 0.0f;
  int64_t partial = item.partial;
  for (int32_t block = item.block; block < end; block += step, partial += item.num_rows) {
    KvAhead ahead = latent_ahead_of(a, item, block + step, end, next);
    latent_block(a, item, block, item.joined ? -1 : partial, ahead, w);
  }
  for (int32_t r = 0; item.joined && r < item.num_rows; ++r)
    write_partial(a, a.partial, item.partial + r, w.merged + r * a.value_dim, w.merged_m[r], w.merged_l[r]);
}

// Computes all blocks of an item that sees the blocks before `end`.
inline void latent_blocks(const AttentionArgs& a, const AttentionItem& item, int32_t end, const AttentionItem* next,
                          LatentScratch& w) {
  const BlockOrder order{.end = end, .groups = a.block_groups, .only = a.block_group};
  const bool several = a.block_groups > 1 && a.block_group < 0;
  for (int32_t r = 0; r < item.num_rows; ++r) w.merged_l[r] = w.total_l[r] = 0.0f;
  for (int32_t block = order.first(); block < end;) {
    const int32_t after = order.after(block);
    KvAhead ahead = latent_ahead_of(a, item, after, end, next);
    latent_block(a, item, block, -1, ahead, w);
    if (several && order.ends_group(block))
      for (int32_t r = 0; r < item.num_rows; ++r) {
        merge_row(w.merged + r * a.value_dim, w.merged_m[r], w.merged_l[r], w.total + r * a.value_dim, w.total_m[r],
                  w.total_l[r], a.value_dim);
        w.merged_l[r] = 0.0f;
      }
    block = after;
  }
  QueryRow query = query_row(a, item, 0);
  for (int32_t r = 0; r < item.num_rows; ++r, query.next())
    write_result(a, query, (several ? w.total : w.merged) + r * a.value_dim, several ? w.total_m[r] : w.merged_m[r],
                 several ? w.total_l[r] : w.merged_l[r]);
}

// `next`: the item that this thread will probably compute next, or null.
inline void latent_attention_item(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* next,
                                  void* scratch) {
  LatentScratch& w = *static_cast<LatentScratch*>(scratch);
  const int64_t width = a.head_tiles * kTileK;
  tile_begin(item.num_rows);
  QueryRow query = query_row(a, item, 0);
  for (int32_t r = 0; r < item.num_rows; ++r, query.next())
    __builtin_memcpy(w.q + r * latent_stride(a.head_tiles), a.q + query.index(a) * width,
                     static_cast<size_t>(width) * sizeof(bf16));
  if (item.block >= 0) {
    latent_range(a, item, next, w);
    return;
  }
  const int32_t high = row_limits(a, item, item.num_rows - 1).high;
  latent_blocks(a, item, static_cast<int32_t>(ceil_div(high, kAttentionBlock)), next, w);
}

// Merges the partial results of the blocks of `item`, as attention_merge does, in groups.
inline void latent_attention_merge(const AttentionArgs& a, const AttentionItem& item, int num_blocks,
                                   int64_t block_stride) {
  const int32_t count = padded_values(a), groups = a.block_group < 0 ? a.block_groups : 1;
  alignas(64) float merged[kMaxHeadDim];
  alignas(64) float total[kMaxHeadDim];
  QueryRow query = query_row(a, item, 0);
  for (int32_t r = 0; r < item.num_rows; ++r, query.next()) {
    float total_m = 0.0f, total_l = 0.0f;
    for (int32_t group = 0; group < groups; ++group) {
      float m = 0.0f, l = 0.0f;
      for (int32_t b = group; b < num_blocks; b += groups) {
        const float* partial = a.partial + (item.partial + b * block_stride + r) * partial_stride(a);
        merge_row(partial, partial[count], partial[count + 1], merged, m, l, count);
      }
      merge_row(merged, m, l, total, total_m, total_l, count);
    }
    write_result(a, query, total, total_m, total_l);
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
