// The part of the KV cache that each row sees, and prefetching of the part that is needed next.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/ops/query_rows.inl"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

struct RowLimits {
  int32_t low, high;  // the row sees positions [low, high)
};

inline RowLimits row_limits(const AttentionArgs& a, const AttentionItem& item, int32_t row) {
  const AttentionSequence& s = a.sequences[item.sequence];
  const int32_t position = s.start + (item.first_row + row) / a.heads.count(item.kv_head);
  return {a.window.first(position), a.window.end(s, position)};
}

// Returns the number of a block's pages that the item's rows see, at least in part.
inline int32_t visible_pages(const AttentionArgs& a, const AttentionItem& item, int32_t block) {
  const int32_t seen = row_limits(a, item, item.num_rows - 1).high - block * kAttentionBlock;
  return static_cast<int32_t>(ceil_div(seen < kAttentionBlock ? seen : kAttentionBlock, kPageTokens));
}

// The K and V that are needed next, prefetched in small portions while a block is computed. A core can have few misses
// in flight, and drops prefetches beyond that number.
struct KvAhead {
  const int32_t* table = nullptr;  // of the pages left
  int32_t pages = 0;
  bool in_v = false;
  const std::byte *k = nullptr, *v = nullptr, *next = nullptr;
  int64_t stride = 0, k_lines = 0, v_lines = 0;
  int64_t lines = 0;                        // lines left of the half page, K or V, that contains `next`
  int64_t vector_lines = 0, row_lines = 0;  // portions: for each 16 scores of few rows, for each of many rows
  RowsAhead rows = {};                      // with many rows
};

constexpr int32_t kRowsAhead = 16;  // the maximum number of rows for which memory is the bottleneck

// The number of lines to prefetch for every two tiles: three quarters of the lines of two tiles, since the next page
// has as many tiles. The softmax prefetches the last quarter, so that memory is busy then too.
constexpr int64_t tile_lines_ahead(KvDtype dtype) { return 2 * kv_tile_bytes(dtype) / kLineBytes * 3 / 4; }

// Returns an empty prefetch, at the pace at which `rows` rows of a block are computed.
inline KvAhead paced(const AttentionArgs& a, int32_t rows) {
  const int64_t k_lines = kv_half_bytes(a.kv.dtype, a.head_tiles) / kLineBytes;
  const int64_t v_lines = kv_half_bytes(a.kv.dtype, a.value_tiles) / kLineBytes;
  return {.k_lines = k_lines,
          .v_lines = v_lines,
          .vector_lines = ceil_div(k_lines + v_lines, 8 * rows),
          .row_lines = ceil_div((k_lines + v_lines) * kAttentionBlock / kPageTokens, rows)};
}

// Returns the memory to prefetch while `rows` rows of a block are computed: the part of `block` that `item` needs.
inline KvAhead kv_ahead(const AttentionArgs& a, const AttentionItem& item, int32_t block, int32_t rows) {
  KvAhead ahead = paced(a, rows);
  ahead.table = a.sequences[item.sequence].pages + block * (kAttentionBlock / kPageTokens);
  ahead.pages = visible_pages(a, item, block);
  ahead.k = a.kv.k + item.kv_head * a.kv.head_stride;
  ahead.v = a.kv.v + item.kv_head * a.kv.head_stride;
  ahead.stride = a.kv.page_stride;
  return ahead;
}

// The same for the memory needed after all items.
inline KvAhead after_ahead(const AttentionArgs& a, int32_t rows) {
  KvAhead ahead = paced(a, rows);
  ahead.next = a.after;
  ahead.lines = a.after_lines;
  return ahead;
}

// Returns whether anything is left to prefetch; moves on to the next half page when one is done.
inline bool open_half_page(KvAhead& ahead) {
  if (ahead.lines > 0) return true;
  if (ahead.in_v) {
    ++ahead.table;
    --ahead.pages;
  }
  if (ahead.pages <= 0) return false;
  ahead.in_v = ahead.next != nullptr && !ahead.in_v;  // K comes first
  ahead.next = (ahead.in_v ? ahead.v : ahead.k) + *ahead.table * ahead.stride;
  ahead.lines = ahead.in_v ? ahead.v_lines : ahead.k_lines;
  return true;
}

inline void advance(KvAhead& ahead, int64_t lines) {
  while (lines > 0 && open_half_page(ahead)) {
    const int64_t count = lines < ahead.lines ? lines : ahead.lines;
    for (int64_t i = 0; i < count; ++i) prefetch_line(ahead.next + i * kLineBytes);
    ahead.next += count * kLineBytes;
    ahead.lines -= count;
    lines -= count;
  }
}

}  // namespace
}  // namespace numaserve
