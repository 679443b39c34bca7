// The work of multi-head latent attention on projections before they are multiplied with anything: queries are split
// and rotated, the latent is normalised, the key that all heads share is rotated, and latent and key are written to the
// cache, once. See latent_attention.inl.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/include/shares.h"
#include "kernels/ops/norm.inl"
#include "kernels/ops/rope_store.inl"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// Writes one head's part without positions, for the product that absorbs W_UK, and its rotated part. The rotated part
// is not multiplied with anything and goes straight to its place after that product's results.
inline void split_query(const LatentStoreArgs& a, const PageRun& run, int32_t head) {
  for (int32_t t = 0; t < run.count; ++t) {
    const int64_t row = run.row + t;
    const float* source = a.q + row * a.ldq + head * (a.nope_dim + a.rope_dim);
    const int32_t position = run.position + t;
    bf16* const nope = a.nope + row * a.ld_nope + head * a.nope_dim;
    if (a.q_scale == nullptr) {
      round_head(source, a.nope_dim, nope);
    } else {
      const F32x16 scale = F32x16::set1(a.q_scale[position]);
      for (int32_t i = 0; i < a.nope_dim; i += 16) (F32x16::load(source + i) * scale).store(nope + i);
    }
    alignas(64) float x[kMaxLatentDim];
    __builtin_memcpy(x, source + a.nope_dim, static_cast<size_t>(a.rope_dim) * sizeof(float));
    const int64_t rope = int64_t{position} * (a.rope_dim / 2);
    rotate_pairs(x, a.rope_dim / 2, a.rope_dim / 2, a.cos + rope, a.sin + rope);
    scale_query(x, a.rope_dim, a.q_scale, position);
    round_head(x, a.rope_dim, a.query + (row * a.heads + head + 1) * (a.value_dim + a.rope_dim) - a.rope_dim);
  }
}

// Stores the tokens of a run that lie in one half of its page: 16 of them share tiles. A page's first token clears the
// page, as in rope_store; here each half separately, because different threads may write the halves.
inline void store_latents(const LatentStoreArgs& a, const PageRun& run, int32_t half) {
  const int32_t dim = a.value_dim + a.rope_dim, tiles = dim / kTileK, first = run.position % kPageTokens;
  bf16* page = reinterpret_cast<bf16*>(a.kv_layer.k + run.page * a.kv_layer.page_stride);
  if (first == 0) __builtin_memset(page + half * tiles * kTileElements, 0, static_cast<size_t>(tiles * kTileBytes));
  for (int32_t t = 0; t < run.count; ++t) {
    if ((first + t) / kTileN != half) continue;
    const float* source = a.kv + (run.row + t) * a.ldkv;
    const F32x16 scale = F32x16::set1(rms_scale(source, a.value_dim, a.eps));
    alignas(64) float x[kMaxLatentDim];
    for (int32_t i = 0; i < a.value_dim; i += 16)
      (F32x16::load(source + i) * scale * F32x16::load(a.norm + i)).store(x + i);
    __builtin_memcpy(x + a.value_dim, source + a.value_dim, static_cast<size_t>(a.rope_dim) * sizeof(float));
    const int64_t rope = int64_t{run.position + t} * (a.rope_dim / 2);
    rotate_pairs(x + a.value_dim, a.rope_dim / 2, a.rope_dim / 2, a.cos + rope, a.sin + rope);
    if (!are_numbers(x, dim)) {  // the latent is the value: as in rope_store, NaN in the rest of the key marks it
      fill(x, a.value_dim, 0.0f);
      fill(x + a.value_dim, a.rope_dim, __builtin_nanf(""));
    }
    alignas(64) bf16 rounded[kMaxLatentDim];
    round_head(x, dim, rounded);
    store_k(rounded, tiles, first + t, page);
  }
}

inline void latent_store(const LatentStoreArgs& a, int thread, int threads) {
  const int32_t parts = parts_of_run(a);
  const Range items = share_of_runs(a, thread, threads);
  for (int64_t i = items.begin; i < items.end; ++i) {
    const auto part = static_cast<int32_t>(i % parts);
    if (part < a.heads)
      split_query(a, a.runs[i / parts], part);
    else
      store_latents(a, a.runs[i / parts], part - a.heads);
  }
}

}  // namespace
}  // namespace numaserve
