// The arguments of products, norms and the operations between them: plain structs; their functions are in KernelTable.
#pragma once

#include "kernels/include/adapter_args.h"
#include "kernels/include/types.h"

namespace numaserve {

// kSwigluOai is the activation of gpt-oss: gate * sigmoid(kSigmoidGain * gate) * (up + 1), where gate is at most
// `limit` and up lies between -limit and limit.
inline constexpr float kSigmoidGain = 1.702f;
// kRelu2 is max(x, 0)^2 of every column, kGelu is x * Phi(x) of every column, with the cumulative distribution function
// of the normal distribution, and kPlainGeluTanh its tanh approximation of every column; the others multiply what they
// gate. The gates of kGeglu are those of kGelu.
enum class Activation : int32_t {
  kNone,
  kSilu,
  kGeluTanh,
  kSwigluOai,
  kRelu2,
  kGelu,
  kGeglu,
  kTanh,
  kRelu,
  kPlainGeluTanh
};
[[gnu::always_inline]] constexpr bool is_gated(Activation activation) {
  return activation == Activation::kSilu || activation == Activation::kGeluTanh ||
         activation == Activation::kSwigluOai || activation == Activation::kGeglu;
}

// A weight [n, k] as the GEMM reads it.
struct PackedWeights {
  WeightFormat format;
  Offsets offsets;
  int64_t group;          // of grouped formats
  const std::byte* data;  // [n_panels / 2][k_tiles][2] tiles, or [n_panels / 2][groups] records
  int64_t n_panels;       // even
  int64_t depth;          // k in whole tiles; in whole groups for formats with groups that take int8
  int64_t k_parts;        // see parts_of_k
  const float* scales;    // [n_panels * 16] or null: the factor of a column's sums
  // int8 only, [n_panels * 16]: 128 times the sum of a column's weights. Sets whose activations are offset by 128
  // subtract it.
  const int32_t* corrections;
};

// out[m, n] = a[m, k] · b[n, k]ᵀ (+ bias).
struct GemmArgs {
  const void* a;  // [m, b.depth]: bf16, or int8 as `quantize` writes it
  int64_t lda;    // in elements
  PackedWeights b;
  bool widened;  // for groups that take int8: `a` is bf16, codes are widened to bf16, and `depth` is in whole tiles
  Blocking blocking;
  int64_t m;
  const float* bias;      // [n_panels * 16] or null; added before the activation
  Activation activation;  // if it gates, panels are (gate, up) pairs and out is activation(gate) * up
  bool accumulate;        // out_f32 += instead of =
  float* out_f32;         // exactly one of the two outputs is set; with an activation it is bf16
  bf16* out_bf16;
  int64_t ldo;
  float limit = 0.0f;  // of kSwigluOai
  // The bytes that the whole operation writes before the next one reads them: beyond `Blocking::streamed_bytes`,
  // results are written past the caches. Zero where they are read from a cache of the same thread, or are in the ring.
  int64_t result_bytes = 0;
  // Whether rows of `a`, in bf16 or in int8 without groups, or of `out_bf16`, are in the order of tiles
  // (`tiled_index`), in whole groups of 32 rows. Only for sets whose table says that they take them.
  bool tiled_rows = false, tiled_results = false;
  ExpandArgs expand = {};  // added to the sums, before the activation
};

// Returns the most rows that pass by the weights of a product together, for a thread with some pairs of panels.
// Measured with AMX, 512 rows compared with 256: speed 1.04 with 32 pairs, 0.96 with 23. Where the k of 256 rows is one
// slab, sums pass through registers alone, and more rows lose 3 %.
inline constexpr int64_t kPairsOfLargeBlock = 32;
[[gnu::always_inline]] constexpr int64_t most_rows(const GemmArgs& g, int64_t pairs) {
  const int64_t most = g.blocking.row_block,
                k_tiles = g.b.depth / (takes_int8(g.b.format) ? kTileDepth<int8_t> : kTileK);
  const bool large = !is_grouped(g.b.format) && pairs >= kPairsOfLargeBlock && k_tiles > g.blocking.slab_tiles;
  return large || most < kRowBlock ? most : kRowBlock;
}

// A thread's share of a GEMM: all of k for some rows and panels; panels begin and end at even numbers.
struct GemmShare {
  Range rows, panels;
  int64_t item = -1;  // its number, if items are handed out to threads that are free
  // The weights that the thread reads after the share, for prefetching, or null: then the pair of panels after it.
  const std::byte* next = nullptr;
};

struct NormArgs {
  const float* x;  // [rows, ldx]
  int64_t ldx;
  const float* weight;  // [cols], or null: x is only rounded
  bf16* out;            // [rows, ldo], columns cols..written are zeroed
  int64_t ldo, written;
  int64_t rows, cols;
  float eps;
  bool tiled = false;  // whether `out` is in the order of tiles, as in GemmArgs
};

// Layer norm (Ba et al., 2016): (x - mean) / sqrt(variance + eps) * weight + bias. Exactly one output is set. `out_f32`
// may be `x`.
struct LayerNormArgs {
  const float* x;  // [rows, ldx]
  int64_t ldx;
  const float* weight;  // [cols]
  const float* bias;    // [cols], or null
  float* out_f32;       // [rows, ldo], columns cols..ldo are zeroed
  bf16* out_bf16;       // the same
  int64_t ldo;
  int64_t rows, cols;
  float eps;
};

// A rank's columns of a vector that ranks divide.
struct DividedVector {
  const float* weight;  // [cols]
  int64_t cols;
  int64_t counted;   // columns, the last ones, that no lower rank has too
  int64_t all_cols;  // of all ranks, each counted once
};

// RMS norms in place: each vector / sqrt(its mean of squares over all ranks + eps) * weight. The first function makes
// `own_sums`, and the second one reads `sums`.
struct DividedNormArgs {
  float* x;  // [rows, ldx]: the vectors next to each other, from the first column on
  int64_t ldx, rows;
  const DividedVector* vectors;
  int64_t num_vectors;
  float* own_sums;           // [rows, ld_sums]: a sum of squares for each vector
  const float* const* sums;  // `num_parts` such matrices, added in order
  int32_t num_parts;
  int64_t ld_sums;
  float eps;
};

enum class Pooling : int32_t { kLast, kFirst, kMean, kMax };

// The rows of a sequence.
struct PooledRows {
  int32_t first, count;
};

// out[i] = the last or first row, the mean or the maximum of the rows of sequence i, in fp32; of their norms if there
// is a weight.
struct PoolArgs {
  const float* x;  // [.., ldx]
  int64_t ldx;
  const PooledRows* sequences;  // [num_sequences]
  int64_t num_sequences;
  Pooling pooling;
  const float* weight;  // [cols], or null
  float* out;           // [num_sequences, ldo], columns cols..ldo are zeroed
  int64_t ldo;
  int64_t cols;
  float eps;
};

// Quantizes rows of bf16 to int8: x = scale * q, q in [-127, 127], rounded to nearest even. Without groups each row has
// one scale: a row of `out` is `depth` values, then the scale as a float. Values are offset by 128 if the set's dot
// product needs them unsigned. With groups a row is `depth` values, then a GroupScale for each group. In each four
// values the second and third are exchanged, as in the codes of the weights (see PackedMatrix).
struct QuantizeArgs {
  const bf16* x;  // [rows, ldx], zero from cols to the next multiple of 32
  int64_t ldx;
  int8_t* out;
  int64_t ldo;
  int64_t rows, cols;
  int64_t depth;  // cols in whole tiles or groups
  int64_t group;  // 0: none
  // A token may have a row for each of its heads: `rows` then counts the rows of all heads, and `ldx` and `ldo` are of
  // tokens.
  int64_t heads = 1, x_stride = 0, out_stride = 0;
  bool tiled = false;  // whether `out`, without groups and heads, is in the order of tiles, as in GemmArgs
};

// residual = (residual + post_norm?(sum over parts, in order, + bias)) * scale. The sum works on elements and the norm
// on rows, so these are two functions with a barrier between them.
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
  bool assign;         // residual = instead of +=: after the embedding
  float scale = 1.0f;  // used with post_norm only
};

struct EmbedArgs {
  const int32_t* indices;  // [rows, stride], the first of each row: tokens, or what else a table has rows of
  int64_t stride = 1;
  const bf16* table;  // packed [n, k]
  int64_t k_tiles;
  int64_t first_row, num_rows;  // the part of the rows that `table` has; other indices give zero
  float scale;
  const float* scales = nullptr;  // [rows, stride], the first of each row, in place of `scale`
  bool accumulate;                // out += instead of =
  float* out;                     // [rows, ld]
  int64_t ld;
  int64_t rows;
};

// The inputs of a rank's layers besides the residual stream: for each of `groups` layers the norm of its columns of
// `x`, plus the token's row of the layer's columns of `table`, times a scale.
struct LayerInputsArgs {
  const float* x;  // [rows, ldx]: `groups` groups of `width` columns
  int64_t ldx;
  int64_t groups, width;  // `width` is even
  const float* weight;    // [width]
  float eps;
  const int32_t* tokens;  // [rows]
  const bf16* table;      // packed [n, groups * width]
  int64_t k_tiles;
  int64_t num_rows;  // of the table; other tokens give zero
  float scale;       // of the table
  float* out;        // [rows, ldo]
  int64_t ldo;
  int64_t rows;
};

// out = x * activation(y).
struct MultiplyArgs {
  const float* x;  // [rows, ldx], or null: the factor alone
  int64_t ldx;
  const float* y;  // [rows, ldy]
  int64_t ldy;
  Activation activation;  // none, silu, gelu_tanh, gelu, tanh or relu
  float* out_f32;         // [rows, ldo], or null; columns cols..ldo are zeroed
  bf16* out_bf16;         // the same, if out_f32 is null
  int64_t ldo;
  int64_t rows, cols;
};

}  // namespace numaserve
