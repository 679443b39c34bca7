// The KV cache of one layer, as the kernels see it.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {

// The formats of cached keys and values. int8 and fp8_e4m3 are codes of one byte and one scale, a bf16, for each token
// and KV head, of K and of V: a token is never quantized again when others follow it into its page, so that its bits
// depend on nothing but itself.
enum class KvDtype : int32_t { kBf16, kInt8, kFp8E4m3 };

[[gnu::always_inline]] constexpr int64_t kv_code_bytes(KvDtype dtype) { return dtype == KvDtype::kBf16 ? 2 : 1; }
[[gnu::always_inline]] constexpr int64_t kv_tile_bytes(KvDtype dtype) { return kTileElements * kv_code_bytes(dtype); }

// K, or V, of one page and KV head: its tiles, then the scales of its tokens where there are codes.
[[gnu::always_inline]] constexpr int64_t kv_tiles_bytes(KvDtype dtype, int64_t head_tiles) {
  return 2 * head_tiles * kv_tile_bytes(dtype);
}
[[gnu::always_inline]] constexpr int64_t kv_half_bytes(KvDtype dtype, int64_t head_tiles) {
  const int64_t scales = dtype == KvDtype::kBf16 ? 0 : kPageTokens * static_cast<int64_t>(sizeof(bf16));
  return kv_tiles_bytes(dtype, head_tiles) + scales;
}

// Per page and KV head, K as [2][head_tiles] tiles (lines: dimensions, columns: 16 tokens) and V as [2 * head_tiles]
// tiles (lines: tokens, columns: 16 dimensions). A line of bf16 has pairs of dimensions (or tokens) for 16 columns. A
// line of codes has four of them for 16 columns, the second and third exchanged: its even bytes are one line of bf16
// and its odd bytes the next, which is how they are widened.
//
// A latent cache (multi-head latent attention) has K only, of one KV head, in bf16: V is its first dimensions.
struct KvLayer {
  KvDtype dtype;
  std::byte* k;
  std::byte* v;
  int64_t page_stride;  // bytes from page to page
  int64_t head_stride;  // bytes from head to head inside a page
};

}  // namespace numaserve
