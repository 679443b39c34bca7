// Multi-head latent attention, one operation after the other; see module.cc.
#include <string>
#include <vector>

#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

using Pages = Array<uint8_t, 2>;  // [pages, bytes of a page]

KvLayer latent_layer(const Pages& cache, int64_t dim) {
  require(dim % kTileK == 0 && dim <= kMaxLatentDim, "a latent has the wrong size");
  const int64_t bytes = kv_half_bytes(KvDtype::kBf16, dim / kTileK);
  require(size(cache, 1) == bytes, "the cache has the wrong shape");
  return {.dtype = KvDtype::kBf16,
          .k = reinterpret_cast<std::byte*>(cache.data()),
          .v = nullptr,
          .page_stride = bytes,
          .head_stride = bytes};
}

void latent_attention(const std::string& isa, Array<const bf16, 3> q, int32_t value_dim, Pages cache,
                      Array<const int32_t, 2> sequences, Array<const int32_t, 2> pages, float scale,
                      int32_t joined_blocks, int32_t blocks_per_item, int32_t rows_per_item, Array<bf16, 2> out) {
  const auto heads = static_cast<int32_t>(size(q, 1)), dim = static_cast<int32_t>(size(q, 2));
  require(value_dim >= 1 && value_dim % kTileK == 0 && value_dim < dim && value_dim <= kMaxHeadDim,
          "a value has the wrong size");
  require(size(out, 0) >= size(q, 0) && size(out, 1) >= heads * value_dim, "the output is too small");
  require(scale > 0.0f, "the scale of scores must be above 0");
  require(rows_per_item >= 1 && rows_per_item <= kLatentRows, "an item has 1 to 256 rows");
  const std::vector<AttentionSequence> all = attention_sequences(sequences, pages, size(q, 0), size(cache, 0));
  const AttentionArgs args{.q = q.data(),
                           .heads = {.q_heads = heads, .kv_heads = 1},
                           .head_dim = dim,
                           .head_tiles = dim / kTileK,
                           .value_dim = value_dim,
                           .value_tiles = value_dim / kTileK,
                           .scale = scale,
                           .softcap = 0.0f,
                           .window = {},
                           .kv = latent_layer(cache, dim),
                           .sequences = all.data(),
                           .out = out.data(),
                           .ldo = size(out, 1),
                           .partial = nullptr,
                           .latent = true};
  attend_all(*table_by_name(isa), args, static_cast<int64_t>(all.size()), rows_per_item,
             {joined_blocks, blocks_per_item});
}

}  // namespace

void bind_latent(nb::module_& ops) {
  ops.def("latent_attention", &latent_attention, "isa"_a, "q"_a, "value_dim"_a, "cache"_a, "sequences"_a, "pages"_a,
          "scale"_a, "joined_blocks"_a, "blocks_per_item"_a, "rows_per_item"_a, "out"_a);
}

}  // namespace numaserve
