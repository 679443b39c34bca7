// The arguments of attention, and of the functions that fill its caches.
#pragma once

#include "kernels/include/kv_layer.h"
#include "kernels/include/types.h"

namespace numaserve {

// A run of consecutive new tokens of one sequence that lie in one page.
struct PageRun {
  int32_t row;       // of the first token in the batch
  int32_t count;     // 1..kPageTokens
  int32_t position;  // of the first token in its sequence
  int32_t page;
};

// A rank's query heads by KV head. All KV heads of a model have the same number of consecutive query heads. Lower and
// higher ranks may have some of the query heads of this rank's KV heads, so that these have different numbers here.
struct HeadGroups {
  int32_t q_heads, kv_heads;
  int32_t lower = 0, higher = 0;  // query heads of these KV heads that lower and higher ranks have

  // Returns the first of this rank's query heads that read a KV head.
  [[gnu::always_inline]] constexpr int32_t first(int32_t kv_head) const { return bound(kv_head); }
  // Returns the number of this rank's query heads that read a KV head. It can be 0 where a cache is borrowed.
  [[gnu::always_inline]] constexpr int32_t count(int32_t kv_head) const { return bound(kv_head + 1) - bound(kv_head); }
  // Returns the largest number of query heads that read one KV head.
  [[gnu::always_inline]] constexpr int32_t largest() const {
    int32_t most = 0;
    for (int32_t i = 0; i < kv_heads; ++i) most = count(i) > most ? count(i) : most;
    return most;
  }

 private:
  [[gnu::always_inline]] constexpr int32_t bound(int32_t kv_head) const {
    const int32_t at = kv_head * ((lower + q_heads + higher) / kv_heads) - lower;
    return at < 0 ? 0 : at < q_heads ? at : q_heads;
  }
};

// The norm of each head of queries and of keys: none, before the rotation, or after it.
enum class HeadNorm : int32_t { kNone, kBefore, kAfter };

// The source of a layer's keys and values: columns of both; columns of keys, which are the values too before they are
// normalised and rotated; or the cache, where an earlier layer has stored them.
enum class KvSource : int32_t { kProjected, kKeys, kCached };

struct RopeStoreArgs {
  const float* qkv;  // [rows, ld]: q heads, then k heads and v heads as `source` states
  int64_t ld;
  int32_t q_heads, kv_heads, head_dim, head_tiles;  // head_tiles = ceil(head_dim / 32)
  int32_t value_dim, value_tiles;                   // the same of a value
  const float* cos;                                 // [positions, rot_dim / 2], or with `by_row` [rows, rot_dim / 2]
  const float* sin;
  int64_t ld_rope;  // of both
  bool by_row = false;
  int32_t rot_dim;
  int32_t distance;      // from a rotated dimension to the other one of its pair, at least rot_dim / 2
  const float* q_scale;  // [positions], the factors of queries; or null
  KvSource source = KvSource::kProjected;
  HeadNorm norm;
  const float* q_norm;  // [head_dim], or null for weights of 1
  const float* k_norm;
  bool norm_values = false;  // an RMS norm of each head of values, with weights of 1
  float eps;
  bf16* q;  // [rows, q_heads, head_tiles * 32]
  KvLayer kv;
  const PageRun* runs;
  int64_t num_runs;
};

// The arguments of the work before the products of multi-head latent attention. All dimensions are multiples of 32.
struct LatentStoreArgs {
  const float* q;  // [rows, ldq]: for each head nope_dim values, then rope_dim values to rotate
  int64_t ldq;
  const float* kv;  // [rows, ldkv]: value_dim values of the latent, then rope_dim of the key that all heads share
  int64_t ldkv;
  int32_t heads, nope_dim, rope_dim, value_dim;
  const float* cos;  // [positions, rope_dim / 2]
  const float* sin;
  const float* q_scale;  // [positions], the factors of queries; or null
  const float* norm;     // [value_dim], of the latent
  float eps;
  bf16* nope;  // [rows, ld_nope]: for each head its first nope_dim values
  int64_t ld_nope;
  bf16* query;  // [rows, heads, value_dim + rope_dim]; only the last rope_dim of each head are written
  KvLayer kv_layer;
  const PageRun* runs;
  int64_t num_runs;
};

// A block of query rows of one sequence and KV head. Row r is token r / group, head r % group of the `group` query
// heads that this rank has for the KV head.
struct AttentionItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_row;  // within the sequence's q_len * group rows
  int32_t num_rows;   // 1..kPromptRows, or 1..kLatentRows for a latent cache
  int32_t block;      // the first KV block of this item; or -1: all blocks that its rows see, in order
  int32_t blocks;     // the number of its blocks when block >= 0; see `block_step`
  // Whether the item merges its blocks to one partial result for each row. It is then the first item of its rows: the
  // merge of partial results goes on from there, and bits are the same as with a partial result for each block.
  bool joined;
  int64_t partial;  // index of its first row in the partial results when block >= 0; a block has num_rows of them
};

struct AttentionSequence {
  int32_t row;           // first row in the batch
  int32_t q_len;         // new tokens
  int32_t start;         // position of the first of them
  const int32_t* pages;  // page table
  // For each new token the position after the last token of its image, 0 outside of images; null: no new token is of an
  // image.
  const int32_t* image_ends = nullptr;
};

// Returns the run of `s` that begins at `position`, with tokens before `end`.
[[gnu::always_inline]] constexpr PageRun page_run(const AttentionSequence& s, int32_t position, int32_t end) {
  const int32_t room = kPageTokens - position % kPageTokens, left = end - position;
  return {.row = s.row + position - s.start,
          .count = left < room ? left : room,
          .position = position,
          .page = s.pages[position / kPageTokens]};
}

// The positions that a token sees: [first, end).
struct Window {
  int32_t tokens = 0;    // 0: from position 0 on
  bool aligned = false;  // from the last multiple of `tokens` on; otherwise the last `tokens` positions
  // Tokens see later ones too: `tokens` positions on either side, 0: all. A sequence is then always whole in a step.
  bool bidirectional = false;
  // The tokens of an image see later ones of the same image, as far as these are in the step.
  bool images = false;
  [[gnu::always_inline]] constexpr int32_t first(int32_t position) const {
    if (tokens == 0) return 0;
    if (aligned) return position / tokens * tokens;
    const int32_t before = bidirectional ? tokens : tokens - 1;
    return position > before ? position - before : 0;
  }
  // Returns the end of what the token at `position` of a sequence of `count` tokens sees.
  [[gnu::always_inline]] constexpr int32_t end(int32_t position, int32_t count) const {
    if (!bidirectional) return position + 1;
    return tokens == 0 || position + tokens >= count ? count : position + tokens + 1;
  }
  // Returns the end of what the new token at `position` of `s` sees.
  [[gnu::always_inline]] constexpr int32_t end(const AttentionSequence& s, int32_t position) const {
    const int32_t last = end(position, s.start + s.q_len);
    if (!images || s.image_ends == nullptr) return last;
    const int32_t image = s.image_ends[position - s.start];
    return image > last ? image : last;
  }
};

struct AttentionArgs {
  const bf16* q;  // [rows, q_heads, head_tiles * 32]
  HeadGroups heads;
  int32_t head_dim, head_tiles, value_dim, value_tiles;
  float scale;    // above 0
  float softcap;  // 0: none
  Window window;
  KvLayer kv;
  const AttentionSequence* sequences;
  bf16* out;  // [rows, ldo]
  int64_t ldo;
  bool tiled = false;  // whether `out` is in the order of tiles, as in GemmArgs
  float* partial;  // [partial rows, padded dimensions of a value + kPartialExtra]: unnormalised output, maximum, sum
  bool latent = false;       // whether the first value_dim dimensions of a key are its value; there is one KV head
  float value_scale = 1.0f;  // of the results
  // [q_heads] or null: for each head a logit that takes part in the softmax but has no value.
  const float* sinks = nullptr;
  // The number of groups for merging blocks of a latent cache: block b in group b % block_groups, then the groups in
  // order. If `block_group` is not negative, only that group is attended, and its results go to `group_out` [rows,
  // q_heads, value_dim + kPartialExtra].
  int32_t block_groups = 1, block_group = -1;
  float* group_out = nullptr;
  // If set, items rotate their queries and store the new keys and values of their blocks themselves; `q` is not read.
  // Not for latents.
  const RopeStoreArgs* rope = nullptr;
  // Memory that is needed after all items of this thread, fetched while the last item is computed.
  const std::byte* after = nullptr;
  int64_t after_lines = 0;
};

// Returns the distance of consecutive blocks of an item.
[[gnu::always_inline]] constexpr int32_t block_step(const AttentionArgs& a) {
  return a.block_group < 0 ? 1 : a.block_groups;
}

// Floats after a partial result: its maximum, its sum, and padding to a cache line.
inline constexpr int64_t kPartialExtra = 16;

// Merges results of groups of blocks, `parts`[group][rows, all_heads, value_dim + kPartialExtra], for some of the
// heads.
struct LatentGroupsArgs {
  const float* const* parts;
  int32_t num_parts;
  int32_t all_heads, first_head, heads, value_dim;
  const int32_t* rows;  // [num_rows], of `out`
  int64_t num_rows;
  bf16* out;  // [.., ldo], a row has its heads' values
  int64_t ldo;
};

}  // namespace numaserve
