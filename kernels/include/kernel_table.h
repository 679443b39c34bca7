// The interface between the runtime and an instruction set: plain argument structs and one table of functions.
//
// Every function is called by all threads of a team with (thread, threads) and does its own part; the caller puts
// barriers between calls. No function allocates.
#pragma once

#include "kernels/include/kv_layer.h"
#include "kernels/include/types.h"

namespace numaserve {

// kSwigluOai is gpt-oss's: with gate at most `limit` and up from -limit to limit, gate * sigmoid(kSigmoidGain * gate) *
// (up + 1).
inline constexpr float kSigmoidGain = 1.702f;
enum class Activation : int32_t { kNone, kSilu, kGeluTanh, kSwigluOai };

// A weight [n, k] as the GEMM reads it.
struct PackedWeights {
  WeightFormat format;
  Offsets offsets;
  int64_t group;          // of grouped formats
  const std::byte* data;  // [n_panels / 2][k_tiles][2] tiles, or [n_panels / 2][groups] records
  int64_t n_panels;       // even
  int64_t depth;          // k in whole tiles; of those with groups, but fp8, in whole groups
  int64_t k_parts;        // see parts_of_k
  const float* scales;    // [n_panels * 16] of int8, int4 and int8_group: what a column's sums are multiplied by
  // int8 only, [n_panels * 16]: 128 times the sum of a column's weights, which is what sets whose activations are
  // offset by 128 have too much.
  const int32_t* corrections;
};

// out[m, n] = a[m, k] · b[n, k]ᵀ (+ bias).
struct GemmArgs {
  const void* a;  // [rows padded to kPad, b.depth]: bf16, or int8 as `quantize` writes it
  int64_t lda;    // in elements
  PackedWeights b;
  bool widened;  // of groups but fp8: `a` is bf16, to which the codes are widened, and `depth` whole tiles
  Blocking blocking;
  int64_t m;
  const float* bias;      // [n_panels * 16] or null; added before the activation
  Activation activation;  // with one, panels are (gate, up) pairs and out is activation(gate) * up
  bool accumulate;        // out_f32 += instead of =
  float* out_f32;         // exactly one of the two outputs is set; an activation writes bf16
  bf16* out_bf16;
  int64_t ldo;
  float limit = 0.0f;  // of kSwigluOai
};

// A thread's share of a GEMM: all of k for some rows and panels; panels begin and end at even numbers.
struct GemmShare {
  Range rows, panels;
};

struct NormArgs {
  const float* x;  // [rows, ldx]
  int64_t ldx;
  const float* weight;  // [cols]
  bf16* out;            // [rows, ldo], columns cols..ldo are zeroed
  int64_t ldo;
  int64_t rows, cols;
  float eps;
};

// out[i] = the norm of x[rows[i]], in fp32.
struct PoolArgs {
  const float* x;  // [.., ldx]
  int64_t ldx;
  const int32_t* rows;  // [num_rows]
  int64_t num_rows;
  const float* weight;  // [cols]
  float* out;           // [num_rows, ldo], columns cols..ldo are zeroed
  int64_t ldo;
  int64_t cols;
  float eps;
};

// Rows of bf16 to int8: x = scale * q, q in [-127, 127], rounded to nearest even.
// Without groups each row has a scale of its own: a row of `out` is `depth` values, then its scale as a float. Values
// are offset by 128 where the set's dot product wants them unsigned.
// With groups: `depth` values, then a GroupScale for each group. Of each four values the second and third change
// places, as they do in the codes of the weights (see PackedMatrix).
struct QuantizeArgs {
  const bf16* x;  // [rows, ldx], zero from cols to the next multiple of 32
  int64_t ldx;
  int8_t* out;
  int64_t ldo;
  int64_t rows, cols;
  int64_t depth;  // cols in whole tiles or groups
  int64_t group;  // 0: none
  // A token may have a row for each of its heads: `rows` are of all heads then, and `ldx` and `ldo` of tokens.
  int64_t heads = 1, x_stride = 0, out_stride = 0;
};

// residual += post_norm?(sum over parts, in order, + bias); out = rms_norm(residual). The first half works on
// elements, the second on rows: two functions with a barrier between.
struct ReduceArgs {
  const float* const* parts;  // `num_parts` matrices [rows, ld]
  int32_t num_parts;
  float* residual;  // [rows, ld]
  int64_t ld;
  int64_t rows, cols;
  const float* bias;       // [cols] or null
  const float* post_norm;  // [cols] or null
  float* sum;              // [rows, ld] scratch, used with post_norm only
  float eps;
  bool assign;  // residual = instead of +=: after the embedding
};

struct EmbedArgs {
  const int32_t* tokens;  // [rows]
  const bf16* table;      // packed [n, k]
  int64_t k_tiles;
  int64_t first_row, num_rows;  // the part of the vocabulary that `table` holds; other tokens give zero
  float scale;
  float* out;  // [rows, ld]
  int64_t ld;
  int64_t rows;
};

// A run of consecutive new tokens of one sequence that lie in one page.
struct PageRun {
  int32_t row;       // of the first token in the batch
  int32_t count;     // 1..kPageTokens
  int32_t position;  // of the first token in its sequence
  int32_t page;
};

struct RopeStoreArgs {
  const float* qkv;  // [rows, ld]: q heads, k heads, v heads
  int64_t ld;
  int32_t q_heads, kv_heads, head_dim, head_tiles;  // head_tiles = ceil(head_dim / 32)
  const float* cos;                                 // [positions, rot_dim / 2]
  const float* sin;
  int32_t rot_dim;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  float eps;
  bool norm_rotated;  // norms come after the rotation, not before it
  bf16* q;            // [rows, q_heads, head_tiles * 32]
  KvLayer kv;
  const PageRun* runs;
  int64_t num_runs;
};

// The arguments of the work before the products of multi-head latent attention. All dimensions are multiples of 32.
struct LatentStoreArgs {
  const float* q;  // [rows, ldq]: of each head nope_dim values, then rope_dim that are rotated
  int64_t ldq;
  const float* kv;  // [rows, ldkv]: value_dim values of the latent, then rope_dim of the key that all heads share
  int64_t ldkv;
  int32_t heads, nope_dim, rope_dim, value_dim;
  const float* cos;  // [positions, rope_dim / 2]
  const float* sin;
  const float* norm;  // [value_dim], of the latent
  float eps;
  bf16* nope;  // [rows, ld_nope]: of each head the first nope_dim values
  int64_t ld_nope;
  bf16* query;  // [rows, heads, value_dim + rope_dim]; the last rope_dim of each head are written
  KvLayer kv_layer;
  const PageRun* runs;
  int64_t num_runs;
};

// A block of query rows of one sequence and KV head. Row r is token r / group, head r % group of the group.
struct AttentionItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_row;  // within the sequence's q_len * group rows
  int32_t num_rows;   // 1..kAttentionRows, of a latent cache 1..kLatentRows
  int32_t block;      // the KV block of this item, one its rows see; or -1: all blocks, in order
  int64_t partial;    // index of its first row in the partial results when block >= 0
};

struct AttentionSequence {
  int32_t row;           // first row in the batch
  int32_t q_len;         // new tokens
  int32_t start;         // position of the first of them
  const int32_t* pages;  // page table
};

struct AttentionArgs {
  const bf16* q;  // [rows, q_heads, head_tiles * 32]
  int32_t q_heads, kv_heads, head_dim, head_tiles;
  float scale;     // above 0
  float softcap;   // 0: none
  int32_t window;  // 0: none; otherwise a token sees itself and window - 1 before it
  KvLayer kv;
  const AttentionSequence* sequences;
  bf16* out;  // [rows, ldo]
  int64_t ldo;
  float* partial;  // [partial rows, padded dimensions of a value + kPartialExtra]: unnormalised output, maximum, sum
  // The leading dimensions of a key that are its value in a latent cache, which has one KV head. Otherwise 0.
  int32_t value_dim = 0;
  // [q_heads] or null: a logit of each head that takes part in the softmax, and has no value.
  const float* sinks = nullptr;
  // Blocks of a latent cache are merged in so many groups, block b in group b % block_groups, then the groups in order.
  // With `block_group` not negative only that group is attended, and its results go to `group_out`
  // [rows, q_heads, value_dim + kPartialExtra] instead.
  int32_t block_groups = 1, block_group = -1;
  float* group_out = nullptr;
};

// Floats that follow a partial result: its maximum, its sum, and what rounds them up to a cache line.
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

enum class Scoring : int32_t { kSoftmax, kSigmoid };
enum class GroupScore : int32_t { kMax, kTop2 };

// Which experts a token goes to, and with which weights.
struct RouteArgs {
  const float* logits;  // [tokens, ldl]
  int64_t ldl;
  int32_t num_experts, top_k;
  Scoring scoring;
  bool renormalize;         // weights are divided by their sum
  float scale;              // and multiplied by this
  const float* correction;  // [num_experts] or null: added to the scores for choosing, not for weighing
  // Experts lie in `num_groups` equal groups; those of the best `top_groups` can be chosen. 1 and 1: all.
  int32_t num_groups, top_groups;
  GroupScore group_score;
};

// out[t] (+)= the sum over a token's routes, in their order, of weight * y[row], then + shared_weight * shared[t].
// A record of `routes` is top_k rows of y (-1: not on this rank), their weights, and the shared expert's weight.
struct CombineArgs {
  const float* y;  // [rows, ldy]
  int64_t ldy;
  const float* shared;  // [tokens, lds] or null
  int64_t lds;
  const int32_t* routes;  // [tokens, ldr]
  int64_t ldr;
  int32_t top_k;
  float* out;  // [tokens, ldo]
  int64_t ldo;
  int64_t tokens;
  bool accumulate;
};

// How one row of logits is sampled; see workers/protocol/steps.py for the meaning of the fields.
struct SamplingState {
  float temperature, top_p, min_p;
  int32_t top_k;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  const int32_t* bias_ids;
  const float* bias_values;
  int32_t num_bias;
  const int32_t* suppress_ids;
  int32_t num_suppress;
  int32_t min_position;
  int32_t num_logprobs;          // -1: none wanted
  const int32_t* prompt_counts;  // [vocabulary], or null without penalties
  const int32_t* output_counts;
  // Tokens whose log-probabilities are wanted, and where they go; in the vocabulary.
  const int32_t* named_ids;
  float* named_logprobs;
  int32_t num_named;
};

inline constexpr int kMaxLogprobs = 20;

struct SampledRow {
  int32_t token;
  bool usable;   // the row's logits, before anything changed them, are numbers whose maximum is finite
  bool dropped;  // its mask leaves no token, or there is none
  float logprob;
  int32_t num_top;
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];
};

struct KernelTable {
  const char* name;
  void (*gemm)(const GemmArgs&, void* scratch, int thread, int threads);
  void (*gemm_share)(const GemmArgs&, const GemmShare&, void* scratch);
  // The same for up to kStreamedRows rows, with the parts of k divided too: `sums` has room for kPartSums, and there is
  // a barrier between the two.
  void (*gemm_parts)(const GemmArgs&, void* sums, void* scratch, int thread, int threads);
  void (*gemm_finish)(const GemmArgs&, void* sums, int thread, int threads);
  int64_t gemm_scratch;  // bytes of scratch a thread needs, on a cache line boundary
  void (*quantize)(const QuantizeArgs&, int thread, int threads);
  void (*rms_norm)(const NormArgs&, int thread, int threads);
  // A norm, and what it writes quantized; `scratch` holds a row.
  void (*rms_norm_quantize)(const NormArgs&, const QuantizeArgs&, void* scratch, int thread, int threads);
  void (*pool)(const PoolArgs&, int thread, int threads);
  void (*reduce_add)(const ReduceArgs&, int thread, int threads);
  void (*post_norm_add)(const ReduceArgs&, int thread, int threads);
  void (*embed)(const EmbedArgs&, int thread, int threads);
  // One token: writes top_k different experts, whatever its logits, the first ones first, and their weights.
  void (*route)(const RouteArgs&, int64_t token, int32_t* experts, float* weights);
  float (*sigmoid)(float);
  void (*combine)(const CombineArgs&, int thread, int threads);
  void (*rope_store)(const RopeStoreArgs&, int thread, int threads);
  // `next`: what the thread will probably compute next, to prefetch it; or null.
  void (*attention_item)(const AttentionArgs&, const AttentionItem&, const AttentionItem* next, void* scratch);
  void (*attention_merge)(const AttentionArgs&, const AttentionItem&, int num_blocks, int64_t block_stride);
  int64_t attention_scratch;  // bytes of scratch a thread needs
  // The same over a latent cache, and what comes before it.
  void (*latent_store)(const LatentStoreArgs&, int thread, int threads);
  void (*latent_attention_item)(const AttentionArgs&, const AttentionItem&, const AttentionItem* next, void* scratch);
  int64_t latent_attention_scratch;
  void (*latent_attention_merge)(const AttentionArgs&, const AttentionItem&, int num_blocks, int64_t block_stride);
  void (*latent_groups_merge)(const LatentGroupsArgs&, int thread, int num_threads);
  void (*softcap)(float* x, int64_t count, float cap);
  // mask: bit i of its words tells whether token i is allowed; null: all are. scratch: 3 * vocab entries.
  void (*sample)(const float* logits, int64_t vocab, int64_t position, const SamplingState&, const uint32_t* mask,
                 int32_t* scratch, SampledRow*);
  void (*token_logprobs)(const float* logits, int64_t vocab, int32_t token, int num_top, SampledRow*);
  // For benchmarks: does nothing but multiply-adds of a format, returns how many operations.
  int64_t (*peak)(WeightFormat, int64_t rounds);
  void (*read)(const std::byte* data, int64_t bytes);  // for benchmarks: reads memory, a multiple of 256 bytes
  void (*thread_begin)();  // once on each thread of a team, before anything else (AMX: the tile configuration)
};

extern const KernelTable kPortableTable;
extern const KernelTable kAvx512Table;
extern const KernelTable kAmxTable;
extern const KernelTable kAmxEmulatedTable;  // the amx sources over tiles emulated in software; for tests only

}  // namespace numaserve
