// Arguments of operations that keep a state for each sequence.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {

// Rows of a step between two places at which the states of their sequence are kept. States are numbered: first those of
// the slots, then the snapshots.
struct StateSegment {
  int32_t row, count;  // no rows: the states are copied
  int32_t load;        // the number of the states before the rows; negative: zeros
  int32_t store;       // the number of the states after them; negative: none, because the rows are draft tokens
  // Draft tokens of the last step that were accepted: they come between the states of slot `load` and the rows.
  int32_t replayed;
};

inline constexpr int32_t kMaxConvTaps = 8;

// A causal convolution of each column of a segment's tokens:
//   out[t][c] = bias[c] + sum over j of weight[j][c] * x[t - taps + 1 + j][c], summed from the oldest tap on.
// A token's result has the same bits wherever a step cuts its sequence.
struct ConvArgs {
  const float* x;  // [count, ldx]
  int64_t ldx;
  int64_t count;
  const float* weight;  // [taps, ldw]
  int64_t ldw;
  const float* bias;  // [cols], or null
  int32_t taps;       // from 2 to kMaxConvTaps
  bool silu;          // whether the result is x * sigmoid(x) of the sum
  // [taps - 1, lds]: the inputs before the tokens, the oldest first, null for zeros; and the last inputs, null if they
  // are not wanted.
  const float* before;
  float* after;
  int64_t lds;
  // [drafts, ldd]: `replayed` inputs between `before` and the tokens; and where the tokens are stored, or null.
  const float* kept;
  float* drafted;
  int64_t ldd;
  int64_t replayed;
  float* out;  // [count, ldo]; columns cols..ldo are zeroed
  int64_t ldo;
  int64_t cols;
};

// The gated delta rule (Yang et al., 2024) of a rank's value heads. For each token, with k and q divided by
// sqrt(sum of squares + 1e-6), and q by sqrt(key_dim) too:
//   S = g S;  u = beta (v - S^T k);  S = S + k u^T;  out = S^T q
// where g = exp(decay * softplus(a + decay_bias)) and beta = sigmoid(b). Consecutive value heads share a key head.
//
// A state has the matrices of the heads one after the other, and then scales, ceil(value_dim / kScaleColumns) for each
// head; see gated_delta.inl. A head's matrix [key_dim, value_dim] is kept in strips of kStripColumns columns, each of
// them contiguous [key_dim, columns]: a strip stays in the first level of caches, of which rows of the whole matrix,
// 512 bytes apart, would use an eighth of the sets.
inline constexpr int32_t kStripColumns = 32, kScaleColumns = 16;
struct DeltaArgs {
  const float* x;  // [tokens, ldx]: queries and keys of all key heads, then values
  int64_t ldx;
  const float* gates;  // [tokens, ldg]: b of all value heads, then a
  int64_t ldg;
  const float *decay, *decay_bias;  // [value_heads]
  int32_t key_heads, value_heads, key_dim, value_dim;
  std::byte* states;  // of all slots and snapshots
  int64_t state_bytes;
  // Keys, values and gates [drafts, ldd] of the draft tokens of each slot's last step, `slot_bytes` for a slot.
  const std::byte* drafts;
  int64_t slot_bytes, ldd;
  float* out;  // [tokens, ldo]
  int64_t ldo;
  // Only state spaces have these, and `gates` of one column dt for each value head: the factor of each head's values
  // [value_heads], and the range to which steps are clamped. See ops/state_space.inl.
  const float* skip = nullptr;
  float least_step = 0.0f, most_step = 0.0f;
  // Where each dimension of keys decays by itself there is no `decay`, and `gates` has b of all value heads, then the
  // decays of each. See ops/key_delta.inl.
};

// Gates of value heads that decay by dimension of their keys: out = [b | exp(decay * softplus(x + bias))].
struct KeyDecaysArgs {
  const float* b;  // [rows, ldb]: of all heads
  int64_t ldb;
  const float* x;  // [rows, ldx]: `heads` heads of `key_dim` columns
  int64_t ldx;
  const float *decay, *bias;  // [heads], [heads * key_dim]
  float* out;                 // [rows, ldo]
  int64_t ldo;
  int64_t rows, heads, key_dim;
};

inline constexpr int32_t kMaxKeyDim = 512;
// Bytes of scratch for a strip and its scales: the states of draft tokens.
inline constexpr int64_t kDeltaScratch = int64_t{4} * kStripColumns * kMaxKeyDim + kLineBytes;

// Consecutive strips of a value head for some segments of a sequence, in order: work for one thread. `column` is a
// multiple of `columns`, and `columns` of a strip kScaleColumns or kStripColumns. A result has the same bits however
// items cut columns and tokens.
struct DeltaItem {
  const StateSegment* segments;
  int64_t num_segments;
  int32_t head, column, columns, strips;
  const float* ahead;  // the strip that the thread reads next, to be fetched meanwhile; or null
};

// Returns the number of values of a state before a strip's columns.
[[gnu::always_inline]] inline int64_t strip_offset(const DeltaArgs& a, int32_t head, int32_t column) {
  const int32_t first = column / kStripColumns * kStripColumns;
  return (int64_t{head} * a.value_dim + first) * a.key_dim + (column - first);
}

// Returns the strip that an item reads first, or null if it begins with zeros.
[[gnu::always_inline]] inline const float* first_strip(const DeltaArgs& a, const DeltaItem& item) {
  const int32_t load = item.segments->load;
  if (load < 0) return nullptr;
  return reinterpret_cast<const float*>(a.states + load * a.state_bytes) + strip_offset(a, item.head, item.column);
}

// The norm of each head of x times the gate: out = x * weight / sqrt(mean of squares + eps) * silu(gate), or *
// sigmoid(gate).
struct GatedNormArgs {
  const float* x;  // [rows, ldx]: `heads` heads of `dim` columns
  int64_t ldx;
  const float* gate;  // [rows, ldg]
  int64_t ldg;
  const float* weight;  // [dim]
  bf16* out;            // [rows, ldo]; columns after the heads are zeroed
  int64_t ldo;
  int64_t rows, heads, dim;
  float eps;
  bool silu;
  bool tiled = false;  // whether `out` is in the order of tiles, as in GemmArgs; `dim` is then a multiple of 16
};

// x *= sigmoid(gate).
struct SigmoidGateArgs {
  bf16* x;  // [rows, ldx]
  int64_t ldx;
  const float* gate;  // [rows, ldg]
  int64_t ldg;
  int64_t rows, cols;
  bool tiled = false;  // whether `x` is in the order of tiles, as in GemmArgs
};

}  // namespace numaserve
