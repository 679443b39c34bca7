// The operations on the KV cache, one by one; see module.cc.
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/runtime/machine/memory.h"
#include "kernels/runtime/program/operations.h"
#include "kernels/runtime/program/program.h"
#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

using CacheBytes = Array<uint8_t, 3>;  // [pages, kv_heads, bytes of a page and head: of K, then of V]

KvLayer kv_layer(const CacheBytes& cache, const std::string& dtype, const HeadGeometry& heads) {
  const KvDtype kept = kv_dtype(dtype);
  const int64_t bytes = heads.page_bytes(kept);
  require(size(cache, 1) == heads.kv_heads && size(cache, 2) == bytes, "the cache has the wrong shape");
  std::byte* const k = reinterpret_cast<std::byte*>(cache.data());
  return {.dtype = kept,
          .k = k,
          .v = k + kv_half_bytes(kept, heads.head_tiles()),
          .page_stride = heads.kv_heads * bytes,
          .head_stride = bytes};
}

void require_dims(int32_t head_dim, int32_t value_dim) {
  require(head_dim >= 1 && head_dim <= kMaxHeadDim && value_dim >= 1 && value_dim <= kMaxHeadDim,
          "a head has the wrong size");
}

// All work of one block of query rows: in one item, or in items of some of the blocks that it sees, and a merge.
void attend(const KernelTable& table, AttentionArgs args, AttentionItem item, BlockCut cut, std::byte* scratch) {
  const AttentionSequence& sequence = args.sequences[item.sequence];
  const auto compute = args.latent ? table.latent_attention_item : table.attention_item;
  if (cut.each == 0) {
    compute(args, item, nullptr, scratch);
    return;
  }
  const int32_t group = args.heads.count(item.kv_head);
  const int32_t begin = args.window.first(sequence.start + item.first_row / group) / kAttentionBlock;
  const int32_t last = sequence.start + (item.first_row + item.num_rows - 1) / group;
  const int32_t all = args.window.end(last, sequence.start + sequence.q_len);
  const auto blocks = static_cast<int32_t>(ceil_div(all, kAttentionBlock)) - begin,
             joined = std::min(cut.joined, blocks);
  const int64_t row_floats = round_up(args.value_dim, kTileK) + kPartialExtra;
  const LargeBuffer partial(static_cast<size_t>(blocks * item.num_rows * row_floats) * sizeof(float));
  args.partial = partial.as<float>();
  int32_t parts = 0;
  for (int32_t at = 0; at < blocks;) {
    AttentionItem part = item;
    part.joined = at < joined;
    part.block = begin + at;
    part.blocks = part.joined ? joined : std::min(cut.each, blocks - at);
    part.partial = parts * item.num_rows;
    compute(args, part, nullptr, scratch);
    at += part.blocks;
    parts += part.joined ? 1 : part.blocks;
  }
  const auto merge = args.latent ? table.latent_attention_merge : table.attention_merge;
  merge(args, item, parts, item.num_rows);
}

}  // namespace

std::vector<AttentionSequence> attention_sequences(const Array<const int32_t, 2>& sequences,
                                                   const Array<const int32_t, 2>& pages, int64_t rows,
                                                   int64_t num_pages) {
  require(size(sequences, 1) == 3 && size(pages, 0) == size(sequences, 0), "a sequence is row, q_len, start");
  for (int64_t i = 0; i < size(pages, 0) * size(pages, 1); ++i)
    require(pages.data()[i] >= 0 && pages.data()[i] < num_pages, "a page is out of range");
  std::vector<AttentionSequence> all;
  for (int64_t i = 0; i < size(sequences, 0); ++i) {
    const int32_t* s = sequences.data() + 3 * i;
    require(s[0] >= 0 && s[1] >= 1 && s[0] + s[1] <= rows && s[2] >= 0 && s[2] + s[1] <= size(pages, 1) * kPageTokens,
            "a sequence is out of range");
    all.push_back({.row = s[0], .q_len = s[1], .start = s[2], .pages = pages.data() + i * size(pages, 1)});
  }
  return all;
}

void attend_all(const KernelTable& table, const AttentionArgs& args, int64_t num_sequences, int32_t rows_per_item,
                BlockCut cut) {
  const LargeBuffer scratch(
      static_cast<size_t>(args.latent ? table.latent_attention_scratch : table.attention_scratch));
  for (int32_t i = 0; i < static_cast<int32_t>(num_sequences); ++i) {
    for (int32_t head = 0; head < args.heads.kv_heads; ++head) {
      const int32_t rows = args.sequences[i].q_len * args.heads.count(head);
      for (int32_t first = 0; first < rows; first += rows_per_item) {
        const int32_t count = rows - first < rows_per_item ? rows - first : rows_per_item;
        attend(table, args,
               {.sequence = i,
                .kv_head = head,
                .first_row = first,
                .num_rows = count,
                .block = -1,
                .blocks = 0,
                .joined = false,
                .partial = 0},
               cut, scratch.data());
      }
    }
  }
}

namespace {

void attention(const std::string& isa, Array<const bf16, 3> q, std::pair<int32_t, int32_t> others, int32_t head_dim,
               int32_t value_dim, CacheBytes cache, const std::string& kv_dtype_name, Array<const int32_t, 2> sequences,
               Array<const int32_t, 2> pages, float scale, float softcap, float value_scale, int32_t window,
               bool aligned, bool bidirectional, Maybe<const float, 1> sinks, int32_t joined_blocks,
               int32_t blocks_per_item, int32_t rows_per_item, Array<bf16, 2> out, bool tiled) {
  const KernelTable& table = *table_by_name(isa);
  const int32_t q_heads = static_cast<int32_t>(size(q, 1)), kv_heads = static_cast<int32_t>(size(cache, 1));
  const HeadGroups groups{.q_heads = q_heads, .kv_heads = kv_heads, .lower = others.first, .higher = others.second};
  require(kv_heads >= 1 && std::min(groups.lower, groups.higher) >= 0 &&
              (groups.lower + q_heads + groups.higher) % kv_heads == 0,
          "query heads are not a multiple of KV heads");
  require_dims(head_dim, value_dim);
  require(size(q, 2) == round_up(head_dim, kTileK), "q has the wrong shape");
  require(size(out, 0) >= size(q, 0) && size(out, 1) >= q_heads * value_dim, "the output is too small");
  require(scale > 0.0f, "the scale of scores must be above 0");
  require(!sinks || size(*sinks, 0) == q_heads, "each head has a sink");
  require(rows_per_item >= 1 && rows_per_item <= kPromptRows, "an item has 1 to 128 rows");
  const HeadGeometry heads{.q_heads = q_heads, .kv_heads = kv_heads, .head_dim = head_dim, .value_dim = value_dim};
  const std::vector<AttentionSequence> all = attention_sequences(sequences, pages, size(q, 0), size(cache, 0));
  const AttentionArgs args{.q = q.data(),
                           .heads = groups,
                           .head_dim = head_dim,
                           .head_tiles = heads.head_tiles(),
                           .value_dim = value_dim,
                           .value_tiles = heads.value_tiles(),
                           .scale = scale,
                           .softcap = softcap,
                           .window = {.tokens = window, .aligned = aligned, .bidirectional = bidirectional},
                           .kv = kv_layer(cache, kv_dtype_name, heads),
                           .sequences = all.data(),
                           .out = out.data(),
                           .ldo = size(out, 1),
                           .tiled = tiled,
                           .partial = nullptr,
                           .value_scale = value_scale,
                           .sinks = data_or_null(sinks)};
  attend_all(table, args, static_cast<int64_t>(all.size()), rows_per_item, {joined_blocks, blocks_per_item});
}

}  // namespace

void bind_attention(nb::module_& ops) {
  ops.def("attention", &attention, "isa"_a, "q"_a, "others"_a, "head_dim"_a, "value_dim"_a, "cache"_a, "kv_dtype"_a,
          "sequences"_a, "pages"_a, "scale"_a, "softcap"_a, "value_scale"_a, "window"_a, "aligned"_a, "bidirectional"_a,
          "sinks"_a.none(), "joined_blocks"_a, "blocks_per_item"_a, "rows_per_item"_a, "out"_a, "tiled"_a = false);
}

}  // namespace numaserve
