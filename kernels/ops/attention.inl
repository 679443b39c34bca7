// Attention over paged KV for prefill, extend and decode alike.
//
// KV is cut at fixed positions into blocks of kAttentionBlock tokens. For each block a row gets its maximum m, its sum
// l of exponentials and its unnormalised output o; blocks are merged strictly in order, by the same arithmetic whether
// one work item goes through all blocks (prefill) or each block is an item of its own (decode of a long sequence).
// So a row's bits depend on its own KV alone. Online softmax: Milakov and Gimelshein, 2018; blocks: Dao et al., 2022.

struct AttentionScratch {
  alignas(64) bf16 q[kAttentionRows * kMaxHeadDim];
  alignas(64) float s[kAttentionRows * kAttentionBlock];
  alignas(64) bf16 p[kAttentionRows * kAttentionBlock];
  alignas(64) float o[kAttentionRows * kMaxHeadDim];
  alignas(64) float merged[kAttentionRows * kMaxHeadDim];
  float m[kAttentionRows], l[kAttentionRows];
  float merged_m[kAttentionRows], merged_l[kAttentionRows];
};

struct RowLimits {
  int32_t low, high;  // the row sees positions [low, high)
};

inline int32_t attention_group(const AttentionArgs& a) { return a.q_heads / a.kv_heads; }

inline RowLimits row_limits(const AttentionArgs& a, const AttentionItem& item, int32_t row) {
  const AttentionSequence& s = a.sequences[item.sequence];
  const int32_t position = s.start + (item.first_row + row) / attention_group(a);
  const int32_t low = a.window > 0 && position - a.window + 1 > 0 ? position - a.window + 1 : 0;
  return {low, position + 1};
}

inline int64_t query_row(const AttentionArgs& a, const AttentionItem& item, int32_t row) {
  const int32_t group = attention_group(a), index = item.first_row + row;
  return static_cast<int64_t>(a.sequences[item.sequence].row + index / group) * a.q_heads + item.kv_head * group +
         index % group;
}

inline void gather_q(const AttentionArgs& a, const AttentionItem& item, AttentionScratch& w) {
  const int32_t padded = a.head_tiles * kTileK;
  for (int32_t r = 0; r < item.num_rows; ++r)
    __builtin_memcpy(w.q + r * padded, a.q + query_row(a, item, r) * padded,
                     static_cast<size_t>(padded) * sizeof(bf16));
}

inline F32x16 lane_indices() {
  alignas(64) static constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return F32x16::load(kLanes);
}

// Number of a block's pages that the rows of an item see something of.
inline int32_t visible_pages(const AttentionArgs& a, const AttentionItem& item, int32_t block) {
  const int32_t seen = row_limits(a, item, item.num_rows - 1).high - block * kAttentionBlock;
  return static_cast<int32_t>(ceil_div(seen < kAttentionBlock ? seen : kAttentionBlock, kPageTokens));
}

// The K and V that are needed next, prefetched in small portions while a block is computed: a core can have few misses
// under way, and drops what a longer burst asks for beyond them.
struct KvAhead {
  const int32_t* table = nullptr;  // of the pages left
  int32_t pages = 0;
  bool in_v = false;
  const bf16 *k = nullptr, *v = nullptr, *next = nullptr;
  int64_t stride = 0, half_lines = 0;
  int64_t lines = 0;                        // left of the half page, K or V, that `next` is in
  int64_t vector_lines = 0, row_lines = 0;  // portions: for each 16 scores of few rows, for each of many rows
};

constexpr int64_t kLineElements = 64 / sizeof(bf16);
// Up to kRowsAhead rows wait for memory: a page's tiles are asked for as many times as it has tiles, 32 lines of the
// next page for each; a quarter of them is left to the softmax, so that memory works during that too.
constexpr int64_t kTileLines = 24;
constexpr int32_t kRowsAhead = 16;

// What to prefetch while `rows` rows of some block are computed: what `item` needs of `block`.
inline KvAhead kv_ahead(const AttentionArgs& a, const AttentionItem& item, int32_t block, int32_t rows) {
  const int64_t head = item.kv_head * a.kv.head_stride;
  const int64_t half_lines = a.head_tiles * kTileElements * 2 / kLineElements;
  return {.table = a.sequences[item.sequence].pages + block * (kAttentionBlock / kPageTokens),
          .pages = visible_pages(a, item, block),
          .k = a.kv.k + head,
          .v = a.kv.v + head,
          .stride = a.kv.page_stride,
          .half_lines = half_lines,
          .vector_lines = ceil_div(half_lines, 4 * rows),
          .row_lines = ceil_div(2 * half_lines * kAttentionBlock / kPageTokens, rows)};
}

// Whether there is anything left; goes on to the next half page where one is done.
inline bool open_half_page(KvAhead& ahead) {
  if (ahead.lines > 0) return true;
  if (ahead.in_v) {
    ++ahead.table;
    --ahead.pages;
  }
  if (ahead.pages <= 0) return false;
  ahead.in_v = ahead.next != nullptr && !ahead.in_v;  // K comes first
  ahead.next = (ahead.in_v ? ahead.v : ahead.k) + *ahead.table * ahead.stride;
  ahead.lines = ahead.half_lines;
  return true;
}

inline void advance(KvAhead& ahead, int64_t lines) {
  while (lines > 0 && open_half_page(ahead)) {
    const int64_t count = lines < ahead.lines ? lines : ahead.lines;
    for (int64_t i = 0; i < count; ++i) prefetch_line(ahead.next + i * kLineElements);
    ahead.next += count * kLineElements;
    ahead.lines -= count;
    lines -= count;
  }
}

// A row's scores of the tokens [begin, begin + count), where some are hidden or capped, as softmax_row wants them.
inline void adjust_scores(const AttentionArgs& a, RowLimits limits, int32_t begin, int32_t count, float* s) {
  const float low = static_cast<float>(limits.low - begin), high = static_cast<float>(limits.high - begin);
  const bool hides = low > 0.0f || high < static_cast<float>(count);
  if (!hides && a.softcap <= 0.0f) return;
  for (int32_t j = 0; j < count; j += 16) {
    F32x16 x = F32x16::load(s + j);
    if (a.softcap > 0.0f) x = tanh(x * F32x16::set1(a.scale) / F32x16::set1(a.softcap)) * F32x16::set1(a.softcap);
    const F32x16 index = lane_indices() + F32x16::set1(static_cast<float>(j));
    x.where_in(index, low, high, F32x16::set1(-__builtin_inff())).store(s + j);
  }
}

// Turns a row of `count` scores, a multiple of 32, into probabilities, in bf16. Their maximum `m` counts in powers of
// two: the factor that makes scores exponents of two is multiplied in where the maximum is subtracted, and costs
// nothing.
template <bool kAhead>
inline void softmax_row(const AttentionArgs& a, int32_t count, KvAhead& ahead, const float* s, bf16* p, float& m,
                        float& l) {
  constexpr float kLog2E = 1.44269504f;
  const float unit = a.softcap > 0.0f ? kLog2E : a.scale * kLog2E;
  F32x16 peak = F32x16::load(s);
  for (int32_t j = 16; j < count; j += 16) peak = F32x16::max(peak, F32x16::load(s + j));
  m = peak.max_lane() * unit;
  const F32x16 factor = F32x16::set1(unit), minus_m = F32x16::set1(-m);
  F32x16 sum = F32x16::zero();
  for (int32_t j = 0; j < count; j += 16) {
    if constexpr (kAhead) advance(ahead, ahead.vector_lines);
    const F32x16 x = exp2_probability(F32x16::fma(F32x16::load(s + j), factor, minus_m)).nearest_bf16();
    x.store_exact(p + j);
    sum = sum + x;  // what is multiplied with V, so that the weights add up to one
  }
  l = sum.sum();
}

// m, l and o of every row for one block; a row that sees nothing of the block gets l = 0.
template <bool kAhead>
inline void attention_rows(const AttentionArgs& a, const AttentionItem& item, int32_t block, KvAhead& ahead,
                           AttentionScratch& w) {
  const AttentionSequence& seq = a.sequences[item.sequence];
  const int32_t padded = a.head_tiles * kTileK;
  const int32_t first = block * kAttentionBlock;
  const int32_t pages = visible_pages(a, item, block);
  const int32_t* table = seq.pages + first / kPageTokens;
  const int64_t head = item.kv_head * a.kv.head_stride;
  for (int32_t page = 0; page < pages; ++page) {
    const bf16* k = a.kv.k + table[page] * a.kv.page_stride + head;
    const auto tile = [k, &ahead](int64_t kt) {
      if constexpr (kAhead) advance(ahead, kTileLines);
      return k + kt * kTileElements;
    };
    tile_gemm<false>(w.q, padded, tile, a.head_tiles * kTileElements, 2, a.head_tiles, w.s + page * kPageTokens,
                     kAttentionBlock, item.num_rows, false);
  }
  for (int32_t r = 0; r < item.num_rows; ++r) {
    if constexpr (!kAhead) advance(ahead, ahead.row_lines);
    const RowLimits limits = row_limits(a, item, r);
    float* s = w.s + r * kAttentionBlock;
    bf16* p = w.p + r * kAttentionBlock;
    if (limits.high <= first || limits.low >= first + kAttentionBlock) {
      __builtin_memset(p, 0, static_cast<size_t>(pages) * kPageTokens * sizeof(bf16));
      w.l[r] = 0.0f;
      w.m[r] = 0.0f;
    } else {
      adjust_scores(a, limits, first, pages * kPageTokens, s);
      softmax_row<kAhead>(a, pages * kPageTokens, ahead, s, p, w.m[r], w.l[r]);
    }
  }
  const bf16* v = a.kv.v + head;
  const int64_t stride = a.kv.page_stride;
  const auto tile = [v, table, stride, &ahead](int64_t kt) {
    if constexpr (kAhead) advance(ahead, kTileLines);
    return v + table[kt] * stride;
  };
  tile_gemm<false>(w.p, kAttentionBlock, tile, kTileElements, a.head_tiles * 2, pages, w.o, padded, item.num_rows,
                   false);
}

// Many rows find most KV in a cache, and prefetch between rows: inside of the tiles it would spill accumulators, a
// fifth of the speed.
inline void attention_block(const AttentionArgs& a, const AttentionItem& item, int32_t block, KvAhead& ahead,
                            AttentionScratch& w) {
  if (item.num_rows <= kRowsAhead)
    attention_rows<true>(a, item, block, ahead, w);
  else
    attention_rows<false>(a, item, block, ahead, w);
}

// Merges a row's block (o, m, l) into what came before it (merged...).
inline void merge_row(const float* o, float m, float l, float* merged, float& merged_m, float& merged_l,
                      int32_t count) {
  if (l == 0.0f) return;
  if (merged_l == 0.0f) {
    __builtin_memcpy(merged, o, static_cast<size_t>(count) * sizeof(float));
    merged_m = m;
    merged_l = l;
    return;
  }
  const float peak = m > merged_m ? m : merged_m;
  alignas(64) float factors[16];
  alignas(64) float differences[16] = {merged_m - peak, m - peak};
  exp(F32x16::load(differences) * F32x16::set1(0.693147181f)).store(factors);
  const F32x16 before = F32x16::set1(factors[0]), now = F32x16::set1(factors[1]);
  for (int32_t i = 0; i < count; i += 16)
    F32x16::fma(F32x16::load(o + i), now, F32x16::load(merged + i) * before).store(merged + i);
  merged_m = peak;
  merged_l = merged_l * factors[0] + l * factors[1];
}

// Normalised result of a row, without the padding of its head.
inline void write_row(const AttentionArgs& a, const AttentionItem& item, int32_t row, const float* merged, float l) {
  const int64_t index = query_row(a, item, row);
  bf16* out = a.out + index / a.q_heads * a.ldo + index % a.q_heads * a.head_dim;
  const F32x16 scale = F32x16::set1(1.0f / l);
  alignas(64) bf16 rounded[kMaxHeadDim];
  for (int32_t i = 0; i < a.head_tiles * kTileK; i += 16) (F32x16::load(merged + i) * scale).store(rounded + i);
  __builtin_memcpy(out, rounded, static_cast<size_t>(a.head_dim) * sizeof(bf16));
  if (index % a.q_heads == a.q_heads - 1)  // the padding columns that the next GEMM reads
    for (int64_t i = a.q_heads * a.head_dim; i < a.ldo; ++i) a.out[index / a.q_heads * a.ldo + i] = 0;
}

inline int64_t partial_stride(const AttentionArgs& a) { return a.head_tiles * kTileK + 16; }

inline int32_t first_block(const AttentionArgs& a, const AttentionItem& item) {
  return item.block >= 0 ? item.block : row_limits(a, item, 0).low / kAttentionBlock;
}

// What to prefetch while a block is computed: the block after it, or else the first of the item that comes next.
inline KvAhead ahead_of(const AttentionArgs& a, const AttentionItem& item, int32_t block, int32_t end,
                        const AttentionItem* next) {
  if (block + 1 < end) return kv_ahead(a, item, block + 1, item.num_rows);
  if (next != nullptr) return kv_ahead(a, *next, first_block(a, *next), item.num_rows);
  return {};
}

// `next` is what this thread will probably compute next, or null.
inline void attention_item(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* next,
                           void* scratch) {
  AttentionScratch& w = *static_cast<AttentionScratch*>(scratch);
  const int32_t padded = a.head_tiles * kTileK;
  gather_q(a, item, w);
  if (item.block >= 0) {
    KvAhead ahead = ahead_of(a, item, item.block, item.block + 1, next);
    attention_block(a, item, item.block, ahead, w);
    for (int32_t r = 0; r < item.num_rows; ++r) {
      float* partial = a.partial + (item.partial + r) * partial_stride(a);
      __builtin_memcpy(partial, w.o + r * padded, static_cast<size_t>(padded) * sizeof(float));
      partial[padded] = w.m[r];
      partial[padded + 1] = w.l[r];
    }
    return;
  }
  for (int32_t r = 0; r < item.num_rows; ++r) w.merged_l[r] = 0.0f;
  const int32_t end = static_cast<int32_t>(ceil_div(row_limits(a, item, item.num_rows - 1).high, kAttentionBlock));
  for (int32_t block = first_block(a, item); block < end; ++block) {
    KvAhead ahead = ahead_of(a, item, block, end, next);
    attention_block(a, item, block, ahead, w);
    for (int32_t r = 0; r < item.num_rows; ++r)
      merge_row(w.o + r * padded, w.m[r], w.l[r], w.merged + r * padded, w.merged_m[r], w.merged_l[r], padded);
  }
  for (int32_t r = 0; r < item.num_rows; ++r) write_row(a, item, r, w.merged + r * padded, w.merged_l[r]);
}

// Merges the partial results of the blocks of `item` (its first block's item), `block_stride` partial rows apart.
inline void attention_merge(const AttentionArgs& a, const AttentionItem& item, int num_blocks, int64_t block_stride) {
  const int32_t padded = a.head_tiles * kTileK;
  alignas(64) float merged[kMaxHeadDim];
  for (int32_t r = 0; r < item.num_rows; ++r) {
    float m = 0.0f, l = 0.0f;
    for (int b = 0; b < num_blocks; ++b) {
      const float* partial = a.partial + (item.partial + b * block_stride + r) * partial_stride(a);
      merge_row(partial, partial[padded], partial[padded + 1], merged, m, l, padded);
    }
    write_row(a, item, r, merged, l);
  }
}
