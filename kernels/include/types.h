// The scalar types and sizes shared by all parts of the kernels.
//
// Functions here are always inlined. Left to itself, gcc stops inlining in large objects (under a sanitizer) and would
// emit weak symbols, which instruction sets must not share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace numaserve {

// A bfloat16 value, stored as its bits: arithmetic is always in fp32.
using bf16 = uint16_t;

// One packed weight tile: 16 lines of 64 bytes. A line holds, for each of 16 columns (output features), four bytes of
// consecutive k: two values of bf16, or four of int8. This is the shape of an AMX B operand. A line is one operand of
// VDPBF16PS or VPDPBUSD, or two AVX2 loads.
inline constexpr int kTileN = 16;
inline constexpr int kLines = 16;
inline constexpr int64_t kLineBytes = 64;
inline constexpr int64_t kTileBytes = kLines * kLineBytes;
template <class T>
inline constexpr int kLineDepth = 4 / static_cast<int>(sizeof(T));  // k of one line
template <class T>
inline constexpr int kTileDepth = kLines * kLineDepth<T>;  // k of one tile
inline constexpr int kTileK = kTileDepth<bf16>;
inline constexpr int kTileElements = kTileN * kTileK;

// The formats of packed matrices.
// int8: one scale for each output feature (row of the weight); activations are quantized per row.
// int4, int8_group: unsigned codes, with a scale for each output feature and group of k. Activations are quantized per
// group too. weight = scale * (code - 8 or 128), or as `Offsets` says.
// fp8: e4m3 (Micikevicius et al., 2022), with a scale for each output feature and group of k; activations are bf16.
// mxfp4: e2m1 in groups of 32 whose scale is a power of two (OCP Microscaling Formats, 2023); otherwise like int4.
// iq4: codes of 4 bits that stand for the integers of `kIq4`; otherwise like int4 without offsets.
// iq3, iq2: the same with the integers of `kIq3` and `kIq2`.
// nvfp4: e2m1 with a scale in e4m3 for each output feature and 16 of k, and a factor for each output feature. Widening
// multiplies values by these scales: a product has six binary digits, and bf16 holds it. A group is a record of any of
// the sizes; activations are bf16.
enum class WeightFormat : int32_t { kBf16, kInt8, kInt4, kInt8Group, kFp8, kMxfp4, kIq4, kNvfp4, kIq3, kIq2 };
// The integers of IQ4_NL and IQ4_XS (ggml-common.h of llama.cpp).
inline constexpr int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// The integers of IQ3_XXS, and of IQ2_XXS, which has three magnitudes: a sign, then the index of a magnitude.
inline constexpr int kIq3[16] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
inline constexpr int kIq2[16] = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43, 0, 0, 0, 0, 0};
[[gnu::always_inline]] constexpr bool is_grouped(WeightFormat format) { return format >= WeightFormat::kInt4; }
[[gnu::always_inline]] constexpr bool takes_int8(WeightFormat format) {
  return format != WeightFormat::kBf16 && format != WeightFormat::kFp8 && format != WeightFormat::kNvfp4;
}
[[gnu::always_inline]] constexpr int64_t code_bits(WeightFormat format) {
  if (format == WeightFormat::kInt4 || format >= WeightFormat::kMxfp4) return 4;
  return format == WeightFormat::kBf16 ? 16 : 8;
}
inline constexpr int64_t kMxGroup = 32, kNvGroup = 16;
// Returns the bytes of a scale of a grouped format, and the columns of k that share a scale.
[[gnu::always_inline]] constexpr int64_t scale_bytes(WeightFormat format) {
  if (format == WeightFormat::kFp8) return 4;
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4 ? 1 : 2;
}
[[gnu::always_inline]] constexpr int64_t scale_depth(WeightFormat format, int64_t group) {
  return format == WeightFormat::kNvfp4 ? kNvGroup : group;
}
[[gnu::always_inline]] constexpr bool has_half_scales(WeightFormat format) {
  return is_grouped(format) && scale_bytes(format) == 2;
}
[[gnu::always_inline]] constexpr bool may_have_offsets(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kInt8Group;
}
[[gnu::always_inline]] constexpr int64_t tile_depth(WeightFormat format) {
  return takes_int8(format) ? kTileDepth<int8_t> : kTileDepth<bf16>;
}

// The offsets of int4 and int8_group: weight = scale * (code - zero), or scale * code + minimum.
enum class Offsets : int32_t { kNone, kZeros, kMinima };

// The record of a grouped format, one for each pair of panels and group of k, in the order in which the GEMM reads
// records. A record has lines of codes, alternately of the two panels, then their 32 scales (nvfp4: for each 16 of k),
// then their 32 offsets.
struct GroupLayout {
  int64_t lines;    // of 64 bytes of codes, for one panel
  int64_t scales;   // offset in the record: fp16, for fp8 fp32, for mxfp4 the exponent of two plus 127, for nvfp4 e4m3
  int64_t offsets;  // offset in the record: fp16
  int64_t bytes;
};

// Returns the index in a packed matrix of the tile of a panel (16 columns) and a k tile. The tiles of two panels
// alternate, so that the GEMM, which takes panels in pairs, reads memory strictly in order.
[[gnu::always_inline]] constexpr int64_t tile_index(int64_t panel, int64_t k_tile, int64_t k_tiles) {
  return (panel / 2 * k_tiles + k_tile) * 2 + panel % 2;
}

// Returns the index of an element of rows of bf16 or int8 in the order in which the amx set reads tiles: [groups of 32
// rows][k tiles][32 rows][columns of a k tile]. `ld` has whole k tiles.
template <class T>
[[gnu::always_inline]] constexpr int64_t tiled_index(int64_t row, int64_t column, int64_t ld) {
  constexpr int64_t kRows = 32, kDepth = kTileDepth<T>;  // powers of two: masks, since signed divisions take longer
  return (row & -kRows) * ld + (column & -kDepth) * kRows + (row & (kRows - 1)) * kDepth + (column & (kDepth - 1));
}
// The same where `tiled`, otherwise row by row.
template <class T>
[[gnu::always_inline]] constexpr int64_t row_index(bool tiled, int64_t row, int64_t column, int64_t ld) {
  return tiled ? tiled_index<T>(row, column, ld) : row * ld + column;
}
// Returns the index of the scale of a row of int8 in the order of tiles: the scales of a group of 32 rows lie side by
// side after its `depth` columns, so that a product that finishes these rows reads two lines for all scales.
[[gnu::always_inline]] constexpr int64_t tiled_scale_index(int64_t row, int64_t depth, int64_t ld) {
  return (row & -32) * ld + 32 * depth + (row & 31) * static_cast<int64_t>(sizeof(float));
}

// Rows and columns of every matrix are padded to this, so that no kernel has a tail in N or K. Padded weights are zero,
// and padded activation columns are written as zero. Padded activation rows are neither read nor written.
inline constexpr int kPad = 32;

inline constexpr int64_t kRowBlock = 256;      // rows that a GEMM takes through the weights together
inline constexpr int64_t kMostRowBlock = 512;  // the maximum that a blocking may choose for formats without groups
inline constexpr int64_t kRowUnit = 32;        // blocks and shares of rows begin at multiples of this
inline constexpr int64_t kMostPanels = 128;    // panels whose results a thread stores for a row block

// The block sizes of a GEMM with many rows, which keep reused data in a cache. They change no bit of a result.
struct Blocking {
  int64_t group_panels;  // whose results for a row block stay in the second level; even, at most kMostPanels
  int64_t slab_tiles;    // k tiles of kRowBlock rows of activations that stay in the second level
  int64_t block_tiles;   // k tiles of two panels of weights that stay in the first
  int64_t few_tiles;     // the same for a small batch: the next block is fetched while half of this one is in use
  int64_t few_rows;      // the maximum rows of a small batch
  // For sets with tile registers: k tiles of a block where activations are copied tile by tile, which do not pass
  // through the first level; and the bytes of an operation's results beyond which their lines are written past the
  // caches.
  int64_t copied_tiles, streamed_bytes;
  int64_t row_block;           // rows that pass by weights without groups together
  int64_t least_copied_pairs;  // the minimum pairs of panels of a share whose activations are copied
};

// The first-level cache that a set's products use while rows pass by a block of weights.
struct FirstLevelUse {
  int64_t quarters;     // quarters of the cache that may be used
  int64_t tile_bytes;   // for each k tile of the block
  int64_t other_bytes;  // for everything else
};

inline constexpr int kPageTokens = 32;       // tokens in a page of KV cache
inline constexpr int kAttentionBlock = 256;  // tokens whose softmax is computed at once; blocks are merged in order
inline constexpr int kAttentionRows = 32;    // query rows (token, head of the group) that pass by a block together
inline constexpr int kPromptRows = 128;      // maximum query rows in a work item that sees all blocks; a multiple of 32
inline constexpr int kMaxHeadDim = 512;      // padded
inline constexpr int kMaxLatentDim = 576;    // of a latent cache: values and rotated part
inline constexpr int kLatentRows = 256;      // maximum query rows in a work item of latent attention; a multiple of 32
inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxTopK = 64;

[[gnu::always_inline]] constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
[[gnu::always_inline]] constexpr int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// `group` is 32, 64 or 128.
[[gnu::always_inline]] constexpr GroupLayout group_layout(WeightFormat format, int64_t group, Offsets offsets) {
  const int64_t lines = group * code_bits(format) * kTileN / 8 / kLineBytes, scales = 2 * lines * kLineBytes;
  const int64_t after = scales + 2 * kTileN * scale_bytes(format) * (group / scale_depth(format, group));
  return {lines, scales, after, after + (offsets == Offsets::kNone ? 0 : 2 * kTileN * 2)};
}

// Four bytes of activations of any type.
typedef int32_t ActivationWord __attribute__((may_alias));

// The scale of a group of quantized activations; a row is its values, then one of these for each group. Each number
// that a product needs is stored. Deriving a number for each pair of panels would take longer than the products.
struct GroupScale {
  float scale;
  int32_t minus8;             // -8 times the sum of the values: corrects sums with 4-bit codes, whose zero is 8
  float total, scaled_total;  // the sum of the values, and that times the scale
};

// Returns the number of values in a row of quantized activations (in whole groups, or without groups in whole tiles).
// The second function returns the row's bytes.
[[gnu::always_inline]] constexpr int64_t quantized_depth(int64_t cols, int64_t group) {
  return round_up(cols, group > 0 ? group : kTileDepth<int8_t>);
}
[[gnu::always_inline]] constexpr int64_t quantized_bytes(int64_t cols, int64_t group) {
  const int64_t scales = group == 0 ? static_cast<int64_t>(sizeof(float))
                                    : ceil_div(cols, group) * static_cast<int64_t>(sizeof(GroupScale));
  return quantized_depth(cols, group) + scales;
}

struct Range {
  int64_t begin, end;
};

// The number of parts of k of a product, each with a sum of its own, added in order. With few panels and many cores,
// parts of k are divided among threads as well. The number of parts depends on the matrix alone, and so the bits do
// too. Parts of a narrow matrix, such as a router, are shorter: with long ones most threads would be idle.
inline constexpr int64_t kSplitPairs = 64, kPartDepth = 1024;
inline constexpr int64_t kNarrowPairs = 16, kNarrowPartDepth = 256;
[[gnu::always_inline]] constexpr int64_t parts_of_k(int64_t n_panels, int64_t depth) {
  const int64_t pairs = n_panels / 2, most = depth / (pairs <= kNarrowPairs ? kNarrowPartDepth : kPartDepth);
  if (pairs == 0 || pairs >= kSplitPairs || most <= 1) return 1;
  const int64_t wanted = (kSplitPairs + pairs - 1) / pairs;
  return wanted < most ? wanted : most;
}
// The size of the sums of all parts of all pairs of panels, with up to kStreamedRows rows.
inline constexpr int64_t kStreamedRows = 32;
inline constexpr int64_t kPartSums = 2 * kSplitPairs * kStreamedRows * 2 * kTileN;

// Returns part `index` of `parts` of [0, count), in whole units; parts differ by at most one unit.
[[gnu::always_inline]] constexpr Range split(int64_t count, int64_t parts, int64_t index, int64_t unit = 1) {
  const int64_t units = ceil_div(count, unit);
  const int64_t begin = units * index / parts * unit;
  const int64_t end = units * (index + 1) / parts * unit;
  return {begin < count ? begin : count, end < count ? end : count};
}

// A GEMM takes `rows` rows through the weights in blocks of up to `most` rows. These functions return the number of
// blocks, and the rows of one block. Blocks are nearly equal: a last block of few rows would read all weights again for
// few rows.
[[gnu::always_inline]] constexpr int64_t row_blocks(int64_t rows, int64_t most) { return ceil_div(rows, most); }
[[gnu::always_inline]] constexpr Range row_block(int64_t rows, int64_t most, int64_t index) {
  return split(rows, row_blocks(rows, most), index, kRowUnit);
}

}  // namespace numaserve
