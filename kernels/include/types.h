// The scalar types and sizes that every part of the kernels agrees on.
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

// What a packed matrix holds. int8: per output feature (row of the weight) one scale; activations are quantised for
// each row when they are used.
enum class WeightFormat : int32_t { kBf16, kInt8 };
constexpr int64_t tile_depth(WeightFormat format) {
  return format == WeightFormat::kInt8 ? kTileDepth<int8_t> : kTileDepth<bf16>;
}

// Where a packed matrix has the tile of a panel (16 columns) and a k tile: two panels run side by side, so that the
// GEMM, which takes panels in pairs, reads memory strictly in order.
constexpr int64_t tile_index(int64_t panel, int64_t k_tile, int64_t k_tiles) {
  return (panel / 2 * k_tiles + k_tile) * 2 + panel % 2;
}

// Rows and columns of every matrix are padded to this, so that no kernel has a tail in N or K: padded weights are
// zero, padded activation columns are written as zero, padded activation rows are computed and never read.
inline constexpr int kPad = 32;

inline constexpr int kPageTokens = 32;       // tokens in a page of KV cache
inline constexpr int kAttentionBlock = 256;  // tokens whose softmax is computed at once; blocks are merged in order
inline constexpr int kAttentionRows = 32;    // query rows (token, head of the group) in a work item at most
inline constexpr int kMaxHeadDim = 512;      // padded

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

struct Range {
  int64_t begin, end;
};

// Part `index` of `parts` of [0, count), in whole units; parts differ by at most one unit.
constexpr Range split(int64_t count, int64_t parts, int64_t index, int64_t unit = 1) {
  const int64_t units = ceil_div(count, unit);
  const int64_t begin = units * index / parts * unit;
  const int64_t end = units * (index + 1) / parts * unit;
  return {begin < count ? begin : count, end < count ? end : count};
}

}  // namespace numaserve
