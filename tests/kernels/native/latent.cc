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

void latent_store(const std::string& isa, Array<const float, 2> q, Array<const float, 2> kv, int32_t heads,
                  int32_t nope_dim, int32_t value_dim, Array<const float, 2> cos, Array<const float, 2> sin,
                  Maybe<const float, 1> q_scale, Array<const float, 1> norm, float eps, Array<const int32_t, 2> runs,
                  Array<bf16, 2> nope, Array<bf16, 3> query, Pages cache, int threads) {
  const KernelTable& table = *table_by_name(isa);
  const auto rope_dim = static_cast<int32_t>(2 * size(cos, 1));
  require(size(cos, 0) == size(sin, 0) && size(cos, 1) == size(sin, 1), "cos and sin differ in shape");
  require(nope_dim % kPad == 0 && value_dim % kPad == 0 && rope_dim % kPad == 0, "dimensions are multiples of 32");
  require(size(q, 1) == heads * (nope_dim + rope_dim) && size(kv, 1) >= value_dim + rope_dim &&
              size(kv, 0) == size(q, 0) && size(norm, 0) == value_dim,
          "the projections have the wrong shape");
  require(size(nope, 0) >= size(q, 0) && size(nope, 1) >= heads * nope_dim && size(query, 0) >= size(q, 0) &&
              size(query, 1) == heads && size(query, 2) == value_dim + rope_dim,
          "the queries have the wrong shape");
  require(!q_scale || size(*q_scale, 0) == size(cos, 0), "there is no factor for each position");
  require(size(runs, 1) == 4, "a run is row, count, position, page");
  std::vector<PageRun> page_runs;
  for (int64_t i = 0; i < size(runs, 0); ++i) {
    const int32_t* run = runs.data() + 4 * i;
    require(run[0] >= 0 && run[1] >= 1 && run[0] + run[1] <= size(q, 0) && run[2] >= 0 &&
                run[2] % kPageTokens + run[1] <= kPageTokens && run[2] + run[1] <= size(cos, 0) && run[3] >= 0 &&
                run[3] < size(cache, 0),
            "a run is out of range");
    page_runs.push_back({.row = run[0], .count = run[1], .position = run[2], .page = run[3]});
  }
  const LatentStoreArgs args{.q = q.data(),
                             .ldq = size(q, 1),
                             .kv = kv.data(),
                             .ldkv = size(kv, 1),
                             .heads = heads,
                             .nope_dim = nope_dim,
                             .rope_dim = rope_dim,
                             .value_dim = value_dim,
                             .cos = cos.data(),
                             .sin = sin.data(),
                             .q_scale = data_or_null(q_scale),
                             .norm = norm.data(),
                             .eps = eps,
                             .nope = nope.data(),
                             .ld_nope = size(nope, 1),
                             .query = query.data(),
                             .kv_layer = latent_layer(cache, value_dim + rope_dim),
                             .runs = page_runs.data(),
                             .num_runs = static_cast<int64_t>(page_runs.size())};
  play_threads(threads, [&](int thread) { table.latent_store(args, thread, threads); });
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
  ops.def("latent_store", &latent_store, "isa"_a, "q"_a, "kv"_a, "heads"_a, "nope_dim"_a, "value_dim"_a, "cos"_a,
          "sin"_a, "q_scale"_a.none(), "norm"_a, "eps"_a, "runs"_a, "nope"_a, "query"_a, "cache"_a, "threads"_a);
  ops.def("latent_attention", &latent_attention, "isa"_a, "q"_a, "value_dim"_a, "cache"_a, "sequences"_a, "pages"_a,
          "scale"_a, "joined_blocks"_a, "blocks_per_item"_a, "rows_per_item"_a, "out"_a);
}

}  // namespace numaserve
