// The scalar types and sizes that every part of the kernels agrees on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace numaserve {

// A bfloat16 value, kept as its bits: arithmetic is always done in fp32.
using bf16 = uint16_t;

// One packed weight tile: 16 rows of 64 bytes. A row holds, for 16 columns (output features), two consecutive k.
// This is the shape of an AMX B operand, of one VDPBF16PS operand a row, and of two AVX2 loads a row.
inline constexpr int kTileN = 16;
inline constexpr int kTileK = 32;
inline constexpr int kTileElements = kTileN * kTileK;

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
