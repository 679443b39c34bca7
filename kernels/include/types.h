// The scalar types and sizes that every part of the kernels agrees on.
//
// Functions here are always inlined: left to itself, gcc stops inlining where an object grows large (under a
// sanitizer), and would make weak symbols of them, which instruction sets must not share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace numaserve {

// A bfloat16 value, kept as its bits: arithmetic is always done in fp32.
using bf16 = uint16_t;

// One packed weight tile: 16 lines of 64 bytes. A line holds, for 16 columns (output features), four bytes of
// consecutive k: two of bf16, four of int8. This is the shape of an AMX B operand, of one VDPBF16PS or VPDPBUSD operand
// a line, and of two AVX2 loads a line.
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
// int8: one scale for each output feature (row of the weight); activations are quantized for each row.
// int4, int8_group: unsigned codes, a scale for each output feature and group of k, to which activations are quantized
// too; weight = scale * (code - 8 or 128), or as `Offsets` says.
// fp8: e4m3 (Micikevicius et al., 2022), a scale for each output feature and group of k; activations are bf16.
// mxfp4: e2m1 in groups of 32 whose scale is a power of two (OCP Microscaling Formats, 2023); otherwise as int4.
// iq4: codes of 4 bits that stand for the whole numbers of `kIq4`; otherwise as int4 without offsets.
enum class WeightFormat : int32_t { kBf16, kInt8, kInt4, kInt8Group, kFp8, kMxfp4, kIq4 };
// Those of IQ4_NL and IQ4_XS (ggml-common.h of llama.cpp).
inline constexpr int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
[[gnu::always_inline]] constexpr bool is_grouped(WeightFormat format) { return format >= WeightFormat::kInt4; }
[[gnu::always_inline]] constexpr bool takes_int8(WeightFormat format) {
  return format != WeightFormat::kBf16 && format != WeightFormat::kFp8;
}
[[gnu::always_inline]] constexpr int64_t code_bits(WeightFormat format) {
  if (format == WeightFormat::kInt4 || format == WeightFormat::kMxfp4 || format == WeightFormat::kIq4) return 4;
  return format == WeightFormat::kBf16 ? 16 : 8;
}
// The bytes of a scale of a grouped format.
[[gnu::always_inline]] constexpr int64_t scale_bytes(WeightFormat format) {
  return format == WeightFormat::kFp8 ? 4 : format == WeightFormat::kMxfp4 ? 1 : 2;
}
[[gnu::always_inline]] constexpr bool has_half_scales(WeightFormat format) {
  return is_grouped(format) && scale_bytes(format) == 2;
}
[[gnu::always_inline]] constexpr bool may_have_offsets(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kInt8Group;
}
inline constexpr int64_t kMxGroup = 32;
[[gnu::always_inline]] constexpr int64_t tile_depth(WeightFormat format) {
  return takes_int8(format) ? kTileDepth<int8_t> : kTileDepth<bf16>;
}

// The offsets of int4 and int8_group: weight = scale * (code - zero), or scale * code + minimum.
enum class Offsets : int32_t { kNone, kZeros, kMinima };

// Grouped formats lie in records, one for each pair of panels and group of k, in the order in which the GEMM takes
// them: lines of codes of the one panel and of the other in turn, then their 32 scales, then their 32 offsets.
struct GroupLayout {
  int64_t lines;    // of 64 bytes of codes, of a panel
  int64_t scales;   // where in the record: fp16, of fp8 fp32, of mxfp4 the exponent of two plus 127
  int64_t offsets;  // where in the record: fp16
  int64_t bytes;
};

// Where a packed matrix has the tile of a panel (16 columns) and a k tile: two panels run side by side, so that the
// GEMM, which takes panels in pairs, reads memory strictly in order.
[[gnu::always_inline]] constexpr int64_t tile_index(int64_t panel, int64_t k_tile, int64_t k_tiles) {
  return (panel / 2 * k_tiles + k_tile) * 2 + panel % 2;
}

// Rows and columns of every matrix are padded to this, so that no kernel has a tail in N or K: padded weights are
// zero, padded activation columns are written as zero. Padded activation rows are neither read nor written.
inline constexpr int kPad = 32;

inline constexpr int64_t kRowBlock = 256;    // rows that a GEMM takes through the weights together
inline constexpr int64_t kMostPanels = 128;  // whose results a thread keeps for a row block

// How much of a GEMM with many rows is done at a time, so that what is used again is still in a cache. No bit depends
// on it.
struct Blocking {
  int64_t group_panels;  // whose results for a row block stay in the second level; even, at most kMostPanels
  int64_t slab_tiles;    // k tiles of a row block's activations that stay in the second level
  int64_t block_tiles;   // k tiles of two panels of weights that stay in the first
  int64_t few_tiles;     // the same with so few rows that the next block is fetched while half of one is still wanted
  int64_t few_rows;      // up to how many those are
};

// What a set's products keep in the first level while rows pass by a block of weights, and how much of it that may be.
struct FirstLevelUse {
  int64_t quarters;     // of the cache
  int64_t tile_bytes;   // for each k tile of the block
  int64_t other_bytes;  // besides
};

inline constexpr int kPageTokens = 32;       // tokens in a page of KV cache
inline constexpr int kAttentionBlock = 256;  // tokens whose softmax is computed at once; blocks are merged in order
inline constexpr int kAttentionRows = 32;    // query rows (token, head of the group) that pass by a block together
inline constexpr int kPromptRows = 128;      // query rows in a work item that sees all blocks at most; a multiple
inline constexpr int kMaxHeadDim = 512;      // padded
inline constexpr int kMaxLatentDim = 576;    // of a latent cache: values and rotated part
inline constexpr int kLatentRows = 256;      // query rows in a work item of latent attention at most; a multiple of 32
inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxTopK = 64;

[[gnu::always_inline]] constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
[[gnu::always_inline]] constexpr int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// `group` is 32, 64 or 128.
[[gnu::always_inline]] constexpr GroupLayout group_layout(WeightFormat format, int64_t group, Offsets offsets) {
  const int64_t lines = group * code_bits(format) * kTileN / 8 / kLineBytes, scales = 2 * lines * kLineBytes;
  const int64_t after = scales + 2 * kTileN * scale_bytes(format);
  return {lines, scales, after, after + (offsets == Offsets::kNone ? 0 : 2 * kTileN * 2)};
}

// Four bytes of activations of any type.
typedef int32_t ActivationWord __attribute__((may_alias));

// The scale of a group of quantized activations; a row of them is its values, then one of these for each group.
// Whatever a product wants of it is a number of its own: made of the others for each pair of panels it would take
// longer than the products.
struct GroupScale {
  float scale;
  int32_t minus8;  // -8 times the sum of the values: what sums with codes of 4 bits, whose zero is 8, have too little
  float total, scaled_total;  // the sum of the values, and that times the scale
};

// Values of a row of quantized activations: whole groups, or without groups whole tiles; and its bytes.
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

// Into how many parts of k a product is cut, each a sum of its own, added in order. Too few panels for many cores give
// them parts of k as well; how many parts there are follows from the matrix alone, so that the bits do too.
inline constexpr int64_t kSplitPairs = 64, kPartDepth = 1024;
[[gnu::always_inline]] constexpr int64_t parts_of_k(int64_t n_panels, int64_t depth) {
  const int64_t pairs = n_panels / 2, most = depth / kPartDepth;
  if (pairs == 0 || pairs >= kSplitPairs || most <= 1) return 1;
  const int64_t wanted = (kSplitPairs + pairs - 1) / pairs;
  return wanted < most ? wanted : most;
}
// Sums of all parts of all pairs of panels, with up to kStreamedRows rows.
inline constexpr int64_t kStreamedRows = 32;
inline constexpr int64_t kPartSums = 2 * kSplitPairs * kStreamedRows * 2 * kTileN;

// Part `index` of `parts` of [0, count), in whole units; parts differ by at most one unit.
[[gnu::always_inline]] constexpr Range split(int64_t count, int64_t parts, int64_t index, int64_t unit = 1) {
  const int64_t units = ceil_div(count, unit);
  const int64_t begin = units * index / parts * unit;
  const int64_t end = units * (index + 1) / parts * unit;
  return {begin < count ? begin : count, end < count ? end : count};
}

}  // namespace numaserve
