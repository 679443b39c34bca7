// Per-head norm, rotary embedding (Su et al., 2021; the half-rotation form of Hugging Face checkpoints), and the
// one write of K and V, in the tiles that attention loads.

// One head's vector, rotated and normalised in fp32; `x` has room for head_tiles * 32 values.
inline void prepare_head(const RopeStoreArgs& a, const float* source, const float* norm, int32_t position, float* x) {
  const int32_t dim = a.head_dim;
  __builtin_memcpy(x, source, static_cast<size_t>(dim) * sizeof(float));
  for (int32_t i = dim; i < a.head_tiles * kTileK; ++i) x[i] = 0.0f;
  if (norm != nullptr) {
    const float scale = rms_scale(x, dim, a.eps);
    for (int32_t i = 0; i < dim; ++i) x[i] = x[i] * scale * norm[i];
  }
  const int32_t half = a.rot_dim / 2;
  const float* cos = a.cos + static_cast<int64_t>(position) * half;
  const float* sin = a.sin + static_cast<int64_t>(position) * half;
  for (int32_t i = 0; i < half; ++i) {
    const float low = x[i], high = x[i + half];
    x[i] = low * cos[i] - high * sin[i];
    x[i + half] = high * cos[i] + low * sin[i];
  }
}

inline void round_head(const float* x, int32_t count, bf16* out) {
  for (int32_t i = 0; i < count; i += 16) F32x16::load(x + i).store(out + i);
}

// K of one token: its pairs of dimensions go to column `token % 16` of the tiles of half page `token / 16`.
inline void store_k(const bf16* x, int32_t tiles, int32_t token, bf16* page) {
  bf16* column = page + token / kTileN * tiles * kTileElements + token % kTileN * 2;
  for (int32_t i = 0; i < tiles * kTileK / 2; ++i) __builtin_memcpy(column + i * 32, x + 2 * i, 2 * sizeof(bf16));
}

// V of one token: dimension d goes to column d % 16 of tile d / 16, as one half of its pair of tokens.
inline void store_v(const bf16* x, int32_t tiles, int32_t token, bf16* page) {
  bf16* row = page + token / 2 * 32 + token % 2;
  for (int32_t d = 0; d < tiles * kTileK; ++d) row[d / kTileN * kTileElements + d % kTileN * 2] = x[d];
}

// A run of tokens of one head. A page's first token clears it: what an earlier sequence left is never read, not
// even multiplied by a zero probability (it could be a NaN).
inline void rope_store_run(const RopeStoreArgs& a, const PageRun& run, int32_t head) {
  const int32_t padded = a.head_tiles * kTileK;
  const int32_t kv = head - a.q_heads;
  const bool is_q = kv < 0, is_k = !is_q && kv < a.kv_heads;
  const int32_t kv_head = is_k ? kv : kv - a.kv_heads;
  bf16* page = nullptr;
  if (!is_q) {
    page = (is_k ? a.kv.k : a.kv.v) + run.page * a.kv.page_stride + kv_head * a.kv.head_stride;
    if (run.position % kPageTokens == 0)
      __builtin_memset(page, 0, static_cast<size_t>(padded) * kPageTokens * sizeof(bf16));
  }
  alignas(64) float x[kMaxHeadDim];
  alignas(64) bf16 rounded[kMaxHeadDim];
  for (int32_t t = 0; t < run.count; ++t) {
    const float* source = a.qkv + (run.row + t) * a.ld + head * a.head_dim;
    const int32_t position = run.position + t;
    if (is_q) {
      prepare_head(a, source, a.q_norm, position, x);
      round_head(x, padded, a.q + (static_cast<int64_t>(run.row + t) * a.q_heads + head) * padded);
    } else if (is_k) {
      prepare_head(a, source, a.k_norm, position, x);
      round_head(x, padded, rounded);
      store_k(rounded, a.head_tiles, position % kPageTokens, page);
    } else {
      for (int32_t i = 0; i < padded; ++i) x[i] = i < a.head_dim ? source[i] : 0.0f;
      round_head(x, padded, rounded);
      store_v(rounded, a.head_tiles, position % kPageTokens, page);
    }
  }
}

inline void rope_store(const RopeStoreArgs& a, int thread, int threads) {
  const int32_t heads = a.q_heads + 2 * a.kv_heads;
  const Range items = split(a.num_runs * heads, threads, thread);
  for (int64_t i = items.begin; i < items.end; ++i)
    rope_store_run(a, a.runs[i / heads], static_cast<int32_t>(i % heads));
}
