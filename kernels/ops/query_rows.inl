// The query rows of an item of attention: their places in a batch, and prefetching of these.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

// A query row of an item, as a row of the batch and one of its heads. It goes on from row to row: several divisions for
// each row took longer than copying the row. Without them, and without calls of memcpy for a row, a prompt's attention
// takes 0.88-0.93 of the time (a virtual Xeon with AMX).
struct QueryRow {
  int64_t row;
  int32_t head, first_head, end_head;

  int64_t index(const AttentionArgs& a) const { return row * a.heads.q_heads + head; }
  void next() {
    if (++head < end_head) return;
    head = first_head;
    ++row;
  }
};

inline QueryRow query_row(const AttentionArgs& a, const AttentionItem& item, int32_t row) {
  const int32_t group = a.heads.count(item.kv_head), first = a.heads.first(item.kv_head), index = item.first_row + row;
  return {a.sequences[item.sequence].row + index / group, first + index % group, first, first + group};
}

// Returns the place of a result, which is followed by those of the columns up to the next multiple of 32.
inline bf16* result_place(const AttentionArgs& a, int64_t row, int64_t column) {
  return a.out + row_index<bf16>(a.tiled, row, column, a.ldo);
}

// The lines of an item's results and of the next item's queries. They are prefetched row by row while the last block of
// the item is computed: they lie as far apart as rows of the batch, so the hardware does not prefetch them. Prompts
// of 1024 tokens take 0.94-0.97 of the time (a virtual Xeon with AMX). All lines at once gained nothing.
struct RowsAhead {
  QueryRow result = {}, query = {};
  int32_t results = 0, queries = 0;  // rows left
};

inline RowsAhead rows_ahead(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* next) {
  RowsAhead ahead{.result = query_row(a, item, 0), .results = item.num_rows};
  if (next == nullptr || a.rope != nullptr) return ahead;
  ahead.query = query_row(a, *next, 0);
  ahead.queries = next->num_rows;
  return ahead;
}

// Prefetches a row of each.
inline void advance(const AttentionArgs& a, RowsAhead& ahead) {
  if (ahead.results > 0) {
    const int64_t column = int64_t{ahead.result.head} * a.value_dim;
    for (int32_t i = 0; i < a.value_dim; i += kTileK) prefetch_line(result_place(a, ahead.result.row, column + i));
    ahead.result.next();
    --ahead.results;
  }
  if (ahead.queries > 0) {
    const bf16* q = a.q + ahead.query.index(a) * a.head_tiles * kTileK;
    for (int32_t i = 0; i < a.head_tiles; ++i) prefetch_line(q + i * kTileK);
    ahead.query.next();
    --ahead.queries;
  }
}

}  // namespace
}  // namespace numaserve
