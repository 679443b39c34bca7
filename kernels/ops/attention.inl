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

// Turns a row of scores of the tokens [begin, begin + count) into probabilities, in bf16; count is a multiple of 32.
inline void softmax_row(const AttentionArgs& a, RowLimits limits, int32_t begin, int32_t count, float* s, bf16* p,
                        float& m, float& l) {
  const float low = static_cast<float>(limits.low - begin), high = static_cast<float>(limits.high - begin);
  const F32x16 minus_infinity = F32x16::set1(-__builtin_inff());
  F32x16 peak = minus_infinity;
  for (int32_t j = 0; j < count; j += 16) {
    F32x16 x = F32x16::load(s + j) * F32x16::set1(a.scale);
    if (a.softcap > 0.0f) x = tanh(x / F32x16::set1(a.softcap)) * F32x16::set1(a.softcap);
    x = x.where_in(lane_indices() + F32x16::set1(static_cast<float>(j)), low, high, minus_infinity);
    x.store(s + j);
    peak = F32x16::max(peak, x);
  }
  m = peak.max_lane();
  F32x16 sum = F32x16::zero();
  for (int32_t j = 0; j < count; j += 16) {
    exp(F32x16::load(s + j) - F32x16::set1(m)).store(p + j);
    sum = sum + F32x16::load(p + j);  // what is multiplied with V, so that the weights add up to one
  }
  l = sum.sum();
}

// m, l and o of every row for one block; a row that sees nothing of the block gets l = 0.
inline void attention_block(const AttentionArgs& a, const AttentionItem& item, int32_t block, AttentionScratch& w) {
  const AttentionSequence& seq = a.sequences[item.sequence];
  const int32_t padded = a.head_tiles * kTileK;
  const int32_t first = block * kAttentionBlock;
  const int32_t last_seen = row_limits(a, item, item.num_rows - 1).high - first;
  const int32_t pages =
      static_cast<int32_t>(ceil_div(last_seen < kAttentionBlock ? last_seen : kAttentionBlock, kPageTokens));
  const int32_t* table = seq.pages + first / kPageTokens;
  const int64_t head = item.kv_head * a.kv.head_stride;
  const int64_t page_elements = padded * kPageTokens;
  for (int32_t page = 0; page < pages; ++page) {
    const bf16* k = a.kv.k + table[page] * a.kv.page_stride + head;
    if (page + 1 < pages) prefetch(a.kv.k + table[page + 1] * a.kv.page_stride + head, page_elements);
    prefetch(a.kv.v + table[page] * a.kv.page_stride + head, page_elements);
    tile_gemm<false>(
        w.q, padded, [k](int64_t kt) { return k + kt * kTileElements; }, a.head_tiles * kTileElements, 2, a.head_tiles,
        w.s + page * kPageTokens, kAttentionBlock, item.num_rows, false);
  }
  for (int32_t r = 0; r < item.num_rows; ++r) {
    const RowLimits limits = row_limits(a, item, r);
    float* s = w.s + r * kAttentionBlock;
    bf16* p = w.p + r * kAttentionBlock;
    if (limits.high <= first || limits.low >= first + kAttentionBlock) {
      __builtin_memset(p, 0, static_cast<size_t>(pages) * kPageTokens * sizeof(bf16));
      w.l[r] = 0.0f;
      w.m[r] = 0.0f;
    } else {
      softmax_row(a, limits, first, pages * kPageTokens, s, p, w.m[r], w.l[r]);
    }
  }
  const bf16* v = a.kv.v + head;
  const int64_t stride = a.kv.page_stride;
  tile_gemm<false>(
      w.p, kAttentionBlock, [v, table, stride](int64_t kt) { return v + table[kt] * stride; }, kTileElements,
      a.head_tiles * 2, pages, w.o, padded, item.num_rows, false);
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
  exp(F32x16::load(differences)).store(factors);
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

inline void attention_item(const AttentionArgs& a, const AttentionItem& item, void* scratch) {
  AttentionScratch& w = *static_cast<AttentionScratch*>(scratch);
  const int32_t padded = a.head_tiles * kTileK;
  gather_q(a, item, w);
  if (item.block >= 0) {
    attention_block(a, item, item.block, w);
    for (int32_t r = 0; r < item.num_rows; ++r) {
      float* partial = a.partial + (item.partial + r) * partial_stride(a);
      __builtin_memcpy(partial, w.o + r * padded, static_cast<size_t>(padded) * sizeof(float));
      partial[padded] = w.m[r];
      partial[padded + 1] = w.l[r];
    }
    return;
  }
  for (int32_t r = 0; r < item.num_rows; ++r) w.merged_l[r] = 0.0f;
  const int32_t first = row_limits(a, item, 0).low / kAttentionBlock;
  const int32_t end = row_limits(a, item, item.num_rows - 1).high;
  for (int32_t block = first; block * kAttentionBlock < end; ++block) {
    attention_block(a, item, block, w);
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
