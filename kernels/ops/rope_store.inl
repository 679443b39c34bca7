// Per-head norm, rotary embedding (Su et al., 2021; the half-rotation form of Hugging Face checkpoints), and the
// one write of K and V, in the tiles that attention loads.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/norm.inl"
#include "kernels/ops/quantize.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/kv_codes.h"

namespace numaserve {
namespace {

// Rotates dimension i with dimension i + distance, for each i below `half`.
inline void rotate_pairs(float* x, int32_t half, int32_t distance, const float* cos, const float* sin) {
  for (int32_t i = 0; i < half; ++i) {
    const float low = x[i], high = x[i + distance];
    x[i] = low * cos[i] - high * sin[i];
    x[i + distance] = high * cos[i] + low * sin[i];
  }
}

inline void normalise_head(float* x, int32_t dim, const float* norm, float eps) {
  const float scale = rms_scale(x, dim, eps);
  for (int32_t i = 0; i < dim; ++i) x[i] = x[i] * scale * (norm == nullptr ? 1.0f : norm[i]);
}

// The row of the cosines and sines of a token, in a row of the batch and at a position.
inline int64_t rope_row(const RopeStoreArgs& a, int64_t row, int32_t position) {
  return (a.by_row ? row : position) * a.ld_rope;
}

// One head's vector, normalised and rotated in fp32; `x` has room for head_tiles * 32 values. `rope` is where the
// cosines and sines of the token begin.
inline void prepare_head(const RopeStoreArgs& a, const float* source, const float* norm, int64_t rope, float* x) {
  const int32_t dim = a.head_dim;
  __builtin_memcpy(x, source, static_cast<size_t>(dim) * sizeof(float));
  for (int32_t i = dim; i < a.head_tiles * kTileK; ++i) x[i] = 0.0f;
  if (a.norm == HeadNorm::kBefore) normalise_head(x, dim, norm, a.eps);
  rotate_pairs(x, a.rot_dim / 2, a.distance, a.cos + rope, a.sin + rope);
  if (a.norm == HeadNorm::kAfter) normalise_head(x, dim, norm, a.eps);
}

// One head's values in fp32, as `prepare_head`; `x` has room for value_tiles * 32.
inline void prepare_values(const RopeStoreArgs& a, const float* source, float* x) {
  for (int32_t i = 0; i < a.value_tiles * kTileK; ++i) x[i] = i < a.value_dim ? source[i] : 0.0f;
  if (a.norm_values) normalise_head(x, a.value_dim, nullptr, a.eps);
}

inline void round_head(const float* x, int32_t count, bf16* out) {
  for (int32_t i = 0; i < count; i += 16) F32x16::load(x + i).store(out + i);
}

inline void scale_query(float* x, int32_t count, const float* scales, int32_t position) {
  if (scales == nullptr) return;
  for (int32_t i = 0; i < count; ++i) x[i] *= scales[position];
}

// Returns the place in a tile line of the values of token or dimension `i` of its column; see KvLayer.
inline int32_t place_in_line(int32_t i, bf16) { return i % 2; }
inline int32_t place_in_line(int32_t i, uint8_t) { return i % 2 * 2 + i / 2 % 2; }

// K of one token: dimensions go down column `token % 16` of the tiles of half page `token / 16`.
template <class T>
inline void store_k(const T* x, int32_t tiles, int32_t token, T* page) {
  T* column = page + token / kTileN * tiles * kTileElements + token % kTileN * kLineDepth<T>;
  for (int32_t i = 0; i < tiles * kTileK; i += kLineDepth<T>) {
    T line[kLineDepth<T>];
    for (int32_t j = 0; j < kLineDepth<T>; ++j) line[place_in_line(j, T{})] = x[i + j];
    __builtin_memcpy(column + i * kTileN, line, sizeof(line));
  }
}

// V of one token: dimension d goes to column d % 16 of tile d / 16.
template <class T>
inline void store_v(const T* x, int32_t tiles, int32_t token, T* page) {
  T* row = page + token / kLineDepth<T> * kTileN * kLineDepth<T> + place_in_line(token, T{});
  for (int32_t d = 0; d < tiles * kTileK; ++d) row[d / kTileN * kTileElements + d % kTileN * kLineDepth<T>] = x[d];
}

// Stores K or V of one token, [tiles * 32] values, in the format of the cache.
template <class Codes>
inline void store_token(const float* x, int32_t tiles, int32_t token, bool is_k, std::byte* half) {
  const int32_t padded = tiles * kTileK;
  const auto store = [&]<class T>(const T* values) {
    T* page = reinterpret_cast<T*>(half);
    if (is_k)
      store_k(values, tiles, token, page);
    else
      store_v(values, tiles, token, page);
  };
  if constexpr (Codes::kScaled) {
    alignas(64) uint8_t codes[kMaxHeadDim];
    const bf16 scale = kv_scale<Codes>(largest_magnitude(x, padded));
    const F32x16 divisor = F32x16::set1(widened(scale));
    for (int32_t i = 0; i < padded; i += 16) Codes::encode(F32x16::load(x + i) / divisor, codes + i);
    store(codes);
    std::byte* scales = half + kv_tiles_bytes(Codes::kDtype, tiles);
    __builtin_memcpy(scales + token * static_cast<int64_t>(sizeof(scale)), &scale, sizeof(scale));
  } else {
    alignas(64) bf16 rounded[kMaxHeadDim];
    round_head(x, padded, rounded);
    store(rounded);
  }
}

// Whether values are numbers that bf16 can represent.
inline bool are_numbers(const float* x, int32_t count) {
  constexpr float kLargestBf16 = 0x1.fep127f;
  F32x16 peak = F32x16::zero();
  for (int32_t i = 0; i < count; i += 16) peak = F32x16::larger_magnitude(peak, F32x16::load_head(x + i, count - i));
  return peak.max_magnitude() <= kLargestBf16;
}

// The first column of a token's values.
inline int64_t value_column(const RopeStoreArgs& a, int32_t kv_head) {
  const int32_t before = a.source == KvSource::kKeys ? a.q_heads : a.q_heads + a.kv_heads;
  return int64_t{before} * a.head_dim + int64_t{kv_head} * a.value_dim;
}

// Whether V of a token is all numbers. Otherwise V is stored as zeros, and K as NaN marks the token. Tokens that do not
// see this token multiply its V by a probability of zero, which would not hide a NaN. The NaN would reach earlier
// tokens, and pages that other sequences share.
inline bool has_values(const RopeStoreArgs& a, const float* token, int32_t kv_head) {
  return are_numbers(token + value_column(a, kv_head), a.value_dim);
}

inline void fill(float* x, int32_t count, float value) {
  for (int32_t i = 0; i < count; ++i) x[i] = value;
}

// Rotates a head of a new token's queries, [head_tiles * 32], for attention.
inline void rotate_query(const RopeStoreArgs& a, int64_t row, int32_t head, int32_t position, bf16* out) {
  alignas(64) float x[kMaxHeadDim];
  prepare_head(a, a.qkv + row * a.ld + head * a.head_dim, a.q_norm, rope_row(a, row, position), x);
  scale_query(x, a.head_tiles * kTileK, a.q_scale, position);
  round_head(x, a.head_tiles * kTileK, out);
}

// Stores a run of tokens of one head. A page's first token clears the page: data of an earlier sequence is never read,
// not even multiplied by a zero probability (it could be a NaN).
template <class Codes>
inline void rope_store_run(const RopeStoreArgs& a, const PageRun& run, int32_t head) {
  const int32_t kv = head - a.q_heads;
  const bool is_q = kv < 0, is_k = !is_q && kv < a.kv_heads;
  const int32_t tiles = is_q || is_k ? a.head_tiles : a.value_tiles, padded = tiles * kTileK;
  const int32_t kv_head = is_k ? kv : kv - a.kv_heads;
  std::byte* half = nullptr;
  if (!is_q) {
    half = (is_k ? a.kv.k : a.kv.v) + run.page * a.kv.page_stride + kv_head * a.kv.head_stride;
    if (run.position % kPageTokens == 0)
      __builtin_memset(half, 0, static_cast<size_t>(kv_half_bytes(Codes::kDtype, tiles)));
  }
  alignas(64) float x[kMaxHeadDim];
  for (int32_t t = 0; t < run.count; ++t) {
    const float* token = a.qkv + (run.row + t) * a.ld;
    const int32_t position = run.position + t;
    if (is_q) {
      const int64_t row = run.row + t;
      rotate_query(a, row, head, position, a.q + (row * a.q_heads + head) * padded);
      continue;
    }
    if (!has_values(a, token, kv_head))
      fill(x, padded, is_k ? __builtin_nanf("") : 0.0f);
    else if (is_k)
      prepare_head(a, token + head * a.head_dim, a.k_norm, rope_row(a, run.row + t, position), x);
    else
      prepare_values(a, token + value_column(a, kv_head), x);
    store_token<Codes>(x, tiles, position % kPageTokens, is_k, half);
  }
}

inline void rope_store(const RopeStoreArgs& a, int thread, int threads) {
  const int32_t heads = parts_of_run(a);
  const Range items = share_of_runs(a, thread, threads);
  with_codes(a.kv.dtype, [&]<class Codes>(Codes) {
    for (int64_t i = items.begin; i < items.end; ++i)
      rope_store_run<Codes>(a, a.runs[i / heads], static_cast<int32_t>(i % heads));
  });
}

}  // namespace
}  // namespace numaserve
