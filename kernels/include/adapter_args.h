// The arguments of low-rank updates of products (LoRA; Hu et al., 2021).
//
// A product with a matrix W [n, k] becomes x · Wᵀ + (x · Aᵀ * scale) · Bᵀ for rows whose sequence has an adapter.
// Shrink computes the factor in parentheses, and the product adds the rest when it finishes its sums
// (gemm/epilogue.inl): no intermediate result of n columns is written or read, and rows without an adapter keep their
// bits.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {

// The adapters of a matrix. `parts` of its rows have an A each, such as queries, keys and values. A block is a panel of
// 16 rows of the matrix and a part that has rows in it.
struct AdapterTable {
  int64_t places, rank, parts, depth;  // `rank`: the largest; `depth`: k in whole tiles
  int64_t blocks;
  const bf16* a;                // [places, parts, rank, depth]
  const bf16* b;                // [places, blocks, rank, 16]
  const int32_t* ranks;         // [places, parts]; 0: the adapter has nothing for the part
  const float* scales;          // [places, parts]
  const int32_t* first_blocks;  // [n_panels + 1]: the first block of each panel
  const int32_t* block_parts;   // [blocks]
};

// Rows that `shrink` computes at once, and rows of A: with vectors, and with tile registers.
struct ShrinkTile {
  int64_t rows, sums;
};
inline constexpr ShrinkTile kShrinkVectors{4, 4}, kShrinkTiles{64, kTileN};

// The columns of a part in a shrunk row: whole panels.
[[gnu::always_inline]] constexpr int64_t shrunk_columns(int64_t rank) { return round_up(rank, kTileN); }

// shrunk[row, part, i] = scale * sum over k of x[row, k] * a[part, i, k] for rows with an adapter: fp32, or with tile
// registers the operands of the next product (ops/shrink_amx.inl), in as many bytes.
struct ShrinkArgs {
  AdapterTable table;
  const bf16* x;  // [rows, ldx]
  int64_t ldx;
  const int32_t* adapters;  // [rows]: the number of the adapter, 1 to `places`; 0: none
  int64_t rows;
  float* shrunk;  // [rows, ld]: `shrunk_columns` for each part
  int64_t ld;
};

// What a product adds to its sums.
struct ExpandArgs {
  AdapterTable table{};
  const int32_t* adapters = nullptr;  // as in ShrinkArgs; null: no row has an adapter
  const float* shrunk = nullptr;
  int64_t ld = 0;
  // Whether the values of the next pair of panels are fetched meanwhile. With few rows each pair is read once, and the
  // weights in between hide the values from what the processor fetches by itself.
  bool fetches_ahead = false;
};

}  // namespace numaserve
