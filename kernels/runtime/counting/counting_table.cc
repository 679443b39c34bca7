#include "kernels/runtime/counting/counting_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/include/shares.h"
#include "kernels/runtime/counting/counter.h"

namespace numaserve {
namespace {

constexpr int64_t kFloat = sizeof(float), kHalf = sizeof(bf16), kPair = 2 * kTileN;

void count(const Work& work) { Lane::current().add(work); }
void count_moved(int64_t bytes) { count({.moved = bytes}); }

int64_t size(Range range) { return range.end - range.begin; }
int64_t values(const RowShare& share) { return size(share.rows) * size(share.columns); }

// Products

// Returns the bytes of a pair of panels.
int64_t pair_bytes(const PackedWeights& b) {
  if (is_grouped(b.format)) return ceil_div(b.depth, b.group) * group_layout(b.format, b.group, b.offsets).bytes;
  return b.depth * kPair * code_bits(b.format) / 8;
}

int64_t row_bytes(const GemmArgs& g) {
  return takes_int8(g.b.format) && !g.widened ? quantized_bytes(g.b.depth, g.b.group) : g.b.depth * kHalf;
}

int64_t result_bytes(const GemmArgs& g, int64_t pairs) {
  const int64_t columns = pairs * kPair / (is_gated(g.activation) ? 2 : 1);
  return columns * (g.out_f32 == nullptr ? kHalf : g.accumulate ? 2 * kFloat : kFloat);
}

// Weights are read for each block of rows. They come from memory for the first rows, and then from the last-level cache
// of the node: its share of a matrix fits there.
void gemm_share(const GemmArgs& g, const GemmShare& share, void*) {
  const int64_t rows = size(share.rows), pairs = size(share.panels) / 2, bytes = pairs * pair_bytes(g.b);
  const int64_t first = share.rows.begin == 0 ? 1 : 0;
  Lane::current().add({.memory = first * bytes,
                       .moved = rows * (row_bytes(g) + result_bytes(g, pairs)) +
                                (row_blocks(rows, most_rows(g, pairs)) - first) * bytes,
                       .flops = 2 * rows * pairs * kPair * g.b.depth},
                      share.item);
}

void gemm(const GemmArgs& g, void* scratch, int thread, int threads) {
  for_share(g, most_rows_of_share(g, threads), thread, threads,
            [&](const GemmShare& share) { gemm_share(g, share, scratch); });
}

void gemm_parts(const GemmArgs& g, void*, void*, int thread, int threads) {
  const int64_t items = size(share_of_parts(g, thread, threads)), parts = g.b.k_parts;
  count({.memory = items * pair_bytes(g.b) / parts,
         .moved = items * g.m * (row_bytes(g) / parts + kPair * kFloat),
         .flops = 2 * items * g.m * kPair * g.b.depth / parts});
}

void gemm_finish(const GemmArgs& g, void*, int thread, int threads) {
  const int64_t pairs = size(share_of_pairs(g, thread, threads));
  count_moved(g.m * (pairs * g.b.k_parts * kPair * kFloat + result_bytes(g, pairs)));
}

// Rows

// The matrices come from the caches of the node where several tiles of rows read them: what is in memory is counted as
// moved.
template <ShrinkTile kTile>
void shrink(const ShrinkArgs& s, int thread, int threads) {
  for_shrink_tiles(s, kTile, thread, threads, [&](int64_t, int64_t rows, int64_t, int64_t) {
    count({.moved = (rows + kTile.sums) * s.table.depth * kHalf, .flops = 2 * rows * kTile.sums * s.table.depth});
  });
}

// A thread with some columns of a row reads the whole row for its norm or its largest value.
void quantize(const QuantizeArgs& q, int thread, int threads) {
  const RowShare share = share_of(q, thread, threads);
  const int64_t read = q.group > 0 ? values(share) : size(share.rows) * q.cols;
  count_moved(read * kHalf + values(share));
}

void rms_norm(const NormArgs& n, int thread, int threads) {
  const RowShare share = share_of(n, thread, threads);
  const int64_t read = n.weight == nullptr ? values(share) : size(share.rows) * n.cols;
  count_moved(read * kFloat + values(share) * kHalf);
}

void rms_norm_quantize(const NormArgs& n, const QuantizeArgs& q, void*, int thread, int threads) {
  const RowShare share = share_of(n, q, thread, threads);
  count_moved(size(share.rows) * n.cols * (kFloat + kHalf) + values(share));
}

void layer_norm(const LayerNormArgs& n, int thread, int threads) {
  const RowShare share = share_of(n, thread, threads);
  count_moved(size(share.rows) * n.cols * kFloat + values(share) * (n.out_bf16 == nullptr ? kFloat : kHalf));
}

int64_t divided_columns(const DividedNormArgs& n) {
  int64_t columns = 0;
  for (int64_t v = 0; v < n.num_vectors; ++v) columns += n.vectors[v].cols;
  return columns;
}

void divided_norm_sums(const DividedNormArgs& n, int thread, int threads) {
  count_moved(size(share_of(n, thread, threads)) * divided_columns(n) * kFloat);
}

void divided_norm_scale(const DividedNormArgs& n, int thread, int threads) {
  const int64_t rows = size(share_of(n, thread, threads));
  count({.moved = rows * divided_columns(n) * 2 * kFloat, .remote = rows * (n.num_parts - 1) * n.num_vectors * kFloat});
}

void pool(const PoolArgs& p, int thread, int threads) {
  const RowShare share = share_of(p, thread, threads);
  const bool takes_all = p.pooling == Pooling::kMean || p.pooling == Pooling::kMax;
  for (int64_t i = share.rows.begin; i < share.rows.end; ++i)
    count_moved((takes_all ? p.sequences[i].count : 1) * size(share.columns) * 2 * kFloat);
}

void reduce_add(const ReduceArgs& a, Range values) {
  const Counter& counter = Lane::current().counter();
  const auto remote = std::count_if(a.parts, a.parts + a.num_parts, [&](auto* at) { return counter.is_remote(at); });
  const int64_t bytes = size(values) * kFloat;
  count({.moved = bytes * (a.num_parts - remote + (a.assign ? 1 : 2)), .remote = bytes * remote});
}

void post_norm_add(const ReduceArgs& a, int thread, int threads) {
  const RowShare share = share_of(a, thread, threads);
  count_moved(size(share.rows) * a.cols * kFloat + values(share) * 3 * kFloat);
}

void embed(const EmbedArgs& e, int thread, int threads) {
  const Range rows = share_of(e, thread, threads);
  int64_t here = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int32_t index = e.indices[row * e.stride];
    here += index >= e.first_row && index < e.first_row + e.num_rows;
  }
  // A row of packed values is in as many lines as it has pairs of values.
  count({.memory = here * e.k_tiles * kTileK / 2 * kLineBytes, .moved = size(rows) * e.ld * kFloat});
}

void layer_inputs(const LayerInputsArgs& a, int thread, int threads) {
  const int64_t columns = size(share_of(a, thread, threads)) * a.width;
  count({.memory = columns / 2 * kLineBytes, .moved = columns * 2 * kFloat});
}

void multiply(const MultiplyArgs& a, int thread, int threads) {
  const int64_t read = a.x == nullptr ? kFloat : 2 * kFloat, written = a.out_f32 == nullptr ? kHalf : kFloat;
  count_moved(values(share_of(a, thread, threads)) * (read + written));
}

void sigmoid_gate(const SigmoidGateArgs& a, int thread, int threads) {
  count_moved(values(share_of(a, thread, threads)) * (2 * kHalf + kFloat));
}

void gated_norm(const GatedNormArgs& a, int thread, int threads) {
  count_moved(size(share_of(a, thread, threads)) * a.dim * (2 * kFloat + kHalf));
}

void copy(const void* from, void*, int64_t bytes) {
  const bool remote = Lane::current().counter().is_remote(from);
  count({.moved = remote ? bytes : 2 * bytes, .remote = remote ? bytes : 0});
}

// Experts

uint64_t mixed(uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

double uniform(uint64_t key) { return (static_cast<double>(mixed(key) >> 11) + 0.5) / 9007199254740992.0; }

// The best of scores with a Gumbel distribution are a sample without replacement, by weight.
void route(const RouteArgs& r, int64_t token, int32_t* experts, float* weights) {
  Lane& lane = Lane::current();
  const Routing& routing = lane.counter().routing();
  const uint64_t all = mixed(routing.seed), of_token = all + mixed(static_cast<uint64_t>(token));
  std::vector<float> scores(static_cast<size_t>(r.num_experts));
  for (int32_t e = 0; e < r.num_experts; ++e) {
    const int32_t popularity = (e + static_cast<int32_t>(all % static_cast<uint64_t>(r.num_experts))) % r.num_experts;
    const double drawn = -std::log(-std::log(uniform(of_token + static_cast<uint64_t>(e))));
    scores[static_cast<size_t>(e)] = static_cast<float>(drawn - routing.skew * std::log(popularity + 1.0));
  }
  RouteArgs drawn = r;
  drawn.logits = scores.data();
  drawn.ldl = 0;
  drawn.correction = nullptr;
  drawn.factors = nullptr;
  kPortableTable.route(drawn, 0, experts, weights);
  lane.add({.moved = r.num_experts * kFloat});
}

float sigmoid(float) { return 1.0f; }

void weigh_row(const bf16*, float, int64_t columns, bf16*) { count_moved(2 * columns * kHalf); }

void clear_columns(float*, int64_t, int64_t rows, Range columns) { count_moved(rows * size(columns) * kFloat); }

void add_weighted_rows(const WeightedRowsArgs& a, Range columns) { count_moved(a.rows * size(columns) * 3 * kFloat); }

void move_sums(const MoveSumsArgs& a, Range columns) {
  count_moved(a.rows * size(columns) * (a.accumulate ? 3 : 2) * kFloat);
}

void combine(const CombineArgs& a, int thread, int threads) {
  const RowShare share = share_of(a, thread, threads);
  for (int64_t t = share.rows.begin; t < share.rows.end; ++t) {
    const int32_t* rows = a.routes + t * a.ldr;
    const auto here = std::count_if(rows, rows + a.top_k, [](int32_t row) { return row >= 0; });
    const int64_t others = (a.shared == nullptr ? 0 : 1) + (a.accumulate ? 2 : 1);
    count_moved(size(share.columns) * (here + others) * kFloat);
  }
}

// Attention

void rope_store(const RopeStoreArgs& a, int thread, int threads) {
  const Range items = share_of_runs(a, thread, threads);
  const int32_t parts = parts_of_run(a);
  for (int64_t i = items.begin; i < items.end; ++i)
    count_moved(int64_t{a.runs[i / parts].count} * a.head_dim * (kFloat + kHalf));
}

void latent_store(const LatentStoreArgs& a, int thread, int threads) {
  const Range items = share_of_runs(a, thread, threads);
  const int32_t parts = parts_of_run(a);
  for (int64_t i = items.begin; i < items.end; ++i) {
    const bool is_query = i % parts < a.heads;
    const int64_t columns = is_query ? a.nope_dim + a.rope_dim : (a.value_dim + a.rope_dim) / 2;
    count_moved(a.runs[i / parts].count * columns * (kFloat + kHalf));
  }
}

// Returns the tokens that some row of an item sees.
int64_t seen(const AttentionArgs& a, const AttentionItem& item) {
  const AttentionSequence& s = a.sequences[item.sequence];
  const int32_t group = a.heads.count(item.kv_head);
  const int32_t first = s.start + item.first_row / group, last = s.start + (item.first_row + item.num_rows - 1) / group;
  const int32_t begin = a.window.first(first), end = a.window.end(s, last);
  if (item.block < 0 && a.block_group < 0) return end - begin;
  const int32_t step = block_step(a), from = item.block < 0 ? a.block_group : item.block;
  const int32_t blocks = item.block < 0 ? static_cast<int32_t>(ceil_div(end, kAttentionBlock)) : item.blocks;
  int64_t tokens = 0;
  for (int32_t i = 0; i < blocks; ++i) {
    const int32_t block = (from + i * step) * kAttentionBlock;
    tokens += std::max(std::min(end, block + kAttentionBlock) - std::max(begin, block), 0);
  }
  return tokens;
}

void attention_item(const AttentionArgs& a, const AttentionItem& item, const AttentionItem*, void*) {
  const int64_t tokens = seen(a, item), page = a.latent ? a.kv.page_stride : a.kv.head_stride;
  // Items of other rows read the same pages at about the same time, from the last-level cache.
  const int64_t bytes = ceil_div(tokens, kPageTokens) * page, first = item.first_row == 0 ? 1 : 0;
  // Items are handed out in the order of their addresses.
  Lane::current().add({.memory = first * bytes,
                       .moved = item.num_rows * (a.head_dim + a.value_dim) * kHalf + (1 - first) * bytes,
                       .flops = 2 * item.num_rows * tokens * (a.head_dim + a.value_dim)},
                      reinterpret_cast<intptr_t>(&item));
}

void attention_merge(const AttentionArgs& a, const AttentionItem& item, int num_blocks, int64_t) {
  count_moved(item.num_rows * a.value_dim * (num_blocks * kFloat + kHalf));
}

void latent_groups_merge(const LatentGroupsArgs& g, int thread, int threads) {
  const int64_t columns = size(share_of(g, thread, threads)) * g.value_dim;
  count({.moved = columns * (kFloat + kHalf), .remote = columns * (g.num_parts - 1) * kFloat});
}

// Layers with states

constexpr int64_t kDeltaFlops = 8;  // for each element of a state and token: decay, two products, an addition

void causal_conv(const ConvArgs& a, int thread, int threads) {
  const int64_t columns = size(share_of(a, thread, threads));
  count({.memory = 2 * columns * (a.taps - 1) * kFloat, .moved = columns * a.count * 2 * kFloat});
}

void delta(const DeltaArgs& a, DeltaItem item, void*) {
  const int64_t columns = int64_t{item.strips} * item.columns, elements = columns * a.key_dim;
  for (int64_t i = 0; i < item.num_segments; ++i) {
    const StateSegment& segment = item.segments[i];
    count({.memory = 2 * elements * kFloat,
           .moved = segment.count * (2 * a.key_dim + 2 * columns) * kFloat,
           .flops = kDeltaFlops * elements * (segment.count + segment.replayed)});
  }
}

void key_decays(const KeyDecaysArgs& a, int thread, int threads) {
  count_moved(size(share_of(a, thread, threads)) * a.key_dim * 2 * kFloat);
}

// Sampling

void softcap(float*, int64_t values, float) { count_moved(2 * values * kFloat); }

void sample_blocks_of(const SampleArgs& a, Range blocks) {
  const auto [begin, end] = tokens_of_blocks(blocks, a.vocab);
  count_moved((end - begin) * kFloat);
}

void sample(const SampleArgs& a, SampledRow* out) {
  *out = {};
  out->usable = true;
  count_moved(sample_blocks(a.vocab) * static_cast<int64_t>(sizeof(SampledBlock)) + kSampleBlock * kFloat);
}

void token_logprobs(const float*, int64_t vocab, int32_t token, int, SampledRow* out) {
  *out = {};
  out->token = token;
  out->usable = true;
  count_moved(vocab * kFloat);
}

}  // namespace

KernelTable counting_table(const KernelTable& like) {
  return {.name = like.name,
          .gemm = gemm,
          .gemm_share = gemm_share,
          .gemm_parts = gemm_parts,
          .gemm_finish = gemm_finish,
          .first_level = like.first_level,
          .takes_tiled_rows = like.takes_tiled_rows,
          .gemm_scratch = like.gemm_scratch,
          .shrink_tile = like.shrink_tile,
          .shrink = like.shrink_tile.rows == kShrinkTiles.rows ? shrink<kShrinkTiles> : shrink<kShrinkVectors>,
          .quantize = quantize,
          .rms_norm = rms_norm,
          .rms_norm_quantize = rms_norm_quantize,
          .layer_norm = layer_norm,
          .divided_norm_sums = divided_norm_sums,
          .divided_norm_scale = divided_norm_scale,
          .pool = pool,
          .reduce_add = reduce_add,
          .post_norm_add = post_norm_add,
          .embed = embed,
          .layer_inputs = layer_inputs,
          .multiply = multiply,
          .copy = copy,
          .route = route,
          .sigmoid = sigmoid,
          .weigh_row = weigh_row,
          .combine = combine,
          .clear_columns = clear_columns,
          .add_weighted_rows = add_weighted_rows,
          .move_sums = move_sums,
          .rope_store = rope_store,
          .attention_item = attention_item,
          .attention_merge = attention_merge,
          .attention_scratch = like.attention_scratch,
          .latent_store = latent_store,
          .latent_attention_item = attention_item,
          .latent_attention_scratch = like.latent_attention_scratch,
          .latent_attention_merge = attention_merge,
          .latent_groups_merge = latent_groups_merge,
          .causal_conv = causal_conv,
          .gated_delta = delta,
          .state_space = delta,
          .key_decays = key_decays,
          .key_delta = delta,
          .gated_norm = gated_norm,
          .sigmoid_gate = sigmoid_gate,
          .softcap = softcap,
          .sample_begin = sample_blocks_of,
          .sample_weigh = sample_blocks_of,
          .sample = sample,
          .token_logprobs = token_logprobs,
          .peak = like.peak,
          .peak_fp32 = like.peak_fp32,
          .nest = like.nest,
          .read = like.read};
}

}  // namespace numaserve
