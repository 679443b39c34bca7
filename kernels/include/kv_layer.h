// The KV cache of one layer, as kernels read and write it.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {

// The formats of cached keys and values. int8 and fp8_e4m3 are codes of one byte, with a bf16 scale for each token and
// KV head, of K and of V. A token is never quantized again when other tokens follow it into its page, so its bits
// depend on nothing but itself.
enum class KvDtype : int32_t { kBf16, kInt8, kFp8E4m3 };

[[gnu::always_inline]] constexpr int64_t kv_code_bytes(KvDtype dtype) { return dtype == KvDtype::kBf16 ? 2 : 1; }
[[gnu::always_inline]] constexpr int64_t kv_tile_bytes(KvDtype dtype) { return kTileElements * kv_code_bytes(dtype); }

// The size of K, or V, of one page and KV head, where a token has `tiles` tiles of dimensions: the tiles, then, for
// codes, the scales of its tokens.
[[gnu::always_inline]] constexpr int64_t kv_tiles_bytes(KvDtype dtype, int64_t tiles) {
  return 2 * tiles * kv_tile_bytes(dtype);
}
[[gnu::always_inline]] constexpr int64_t kv_half_bytes(KvDtype dtype, int64_t tiles) {
  const int64_t scales = dtype == KvDtype::kBf16 ? 0 : kPageTokens * static_cast<int64_t>(sizeof(bf16));
  return kv_tiles_bytes(dtype, tiles) + scales;
}

// For each page and KV head, K is [2][head_tiles] tiles (lines: dimensions, columns: 16 tokens) and V is [2 *
// value_tiles] tiles (lines: tokens, columns: 16 dimensions). A line of bf16 has pairs of dimensions (or tokens) for 16
// columns. A line of codes has four of them for 16 columns, with the second and third exchanged. Its even bytes are
// widened to one line of bf16, and its odd bytes to the next.
//
// A latent cache (multi-head latent attention) has only K, of one KV head, in bf16: V is K's first dimensions.
struct KvLayer {
  KvDtype dtype;
  std::byte* k;
  std::byte* v;
  int64_t page_stride;  // bytes from page to page
  int64_t head_stride;  // bytes from head to head inside a page
};

}  // namespace numaserve
