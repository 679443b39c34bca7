// The division of work among the threads of a team: which rows, columns or items of an operation each thread computes.
//
// Functions here are always inlined; see types.h.
#pragma once

#include "kernels/include/adapter_args.h"
#include "kernels/include/attention_args.h"
#include "kernels/include/dense_args.h"
#include "kernels/include/moe_args.h"
#include "kernels/include/recurrent_args.h"

namespace numaserve {

struct RowShare {
  Range rows, columns;
};

// A thread's part of `rows` rows: whole rows if there are enough, otherwise a range of the columns of every row. Rows
// without columns, of a rank without heads, are shared as whole rows too: every range of columns would be the last one.
[[gnu::always_inline]] constexpr RowShare row_share(int64_t rows, int64_t cols, int thread, int threads,
                                                    int64_t unit = 16) {
  if (rows >= threads || cols == 0) return {split(rows, threads, thread), {0, cols}};
  return {{0, rows}, split(cols, threads, thread, unit)};
}

// The same where a thread reads whole rows in any case, for a sum of squares or the largest value. With several rows it
// takes some of them whole, even if other threads are then idle: with columns of every row it would read all rows. It
// reads all of a single row and writes some columns, which is cheaper than a barrier.
[[gnu::always_inline]] constexpr RowShare whole_row_share(int64_t rows, int64_t cols, int thread, int threads,
                                                          int64_t unit = 16) {
  if (rows > 1 || cols == 0) return {split(rows, threads, thread), {0, cols}};
  return {{0, rows}, split(cols, threads, thread, unit)};
}

[[gnu::always_inline]] constexpr RowShare share_of(const NormArgs& a, int thread, int threads) {
  if (a.weight == nullptr) return row_share(a.rows, a.written, thread, threads);
  return whole_row_share(a.rows, a.written, thread, threads);
}
[[gnu::always_inline]] constexpr RowShare share_of(const QuantizeArgs& a, int thread, int threads) {
  if (a.group > 0) return row_share(a.rows, a.depth, thread, threads, a.group);
  return whole_row_share(a.rows, a.depth, thread, threads);
}
// The part of a norm that is quantized at once.
[[gnu::always_inline]] constexpr RowShare share_of(const NormArgs&, const QuantizeArgs& a, int thread, int threads) {
  return whole_row_share(a.rows, a.depth, thread, threads, a.group > 0 ? a.group : 16);
}
// Rows whose result takes their place are never shared by threads: one would read what another has written.
[[gnu::always_inline]] constexpr RowShare share_of(const LayerNormArgs& a, int thread, int threads) {
  if (a.out_f32 == a.x) return {split(a.rows, threads, thread), {0, a.ldo}};
  return whole_row_share(a.rows, a.ldo, thread, threads);
}
// The part of the norm after the sum.
[[gnu::always_inline]] constexpr RowShare share_of(const ReduceArgs& a, int thread, int threads) {
  return whole_row_share(a.rows, a.ld, thread, threads);
}
[[gnu::always_inline]] constexpr RowShare share_of(const PoolArgs& a, int thread, int threads) {
  return row_share(a.num_sequences, a.ldo, thread, threads);
}
[[gnu::always_inline]] constexpr RowShare share_of(const MultiplyArgs& a, int thread, int threads) {
  return row_share(a.rows, a.ldo, thread, threads);
}
[[gnu::always_inline]] constexpr RowShare share_of(const CombineArgs& a, int thread, int threads) {
  return row_share(a.tokens, a.ldo, thread, threads);
}
[[gnu::always_inline]] constexpr RowShare share_of(const SigmoidGateArgs& a, int thread, int threads) {
  return row_share(a.rows, a.cols, thread, threads);
}

// Whole rows. Both functions of a divided norm give a thread the same ones. A thread therefore scales only rows that it
// has summed, and needs no barrier in between.
[[gnu::always_inline]] constexpr Range share_of(const DividedNormArgs& a, int thread, int threads) {
  return split(a.rows, threads, thread);
}
[[gnu::always_inline]] constexpr Range share_of(const EmbedArgs& a, int thread, int threads) {
  return split(a.rows, threads, thread);
}

// Groups, or heads, of rows: item / groups is the row.
[[gnu::always_inline]] constexpr Range share_of(const LayerInputsArgs& a, int thread, int threads) {
  return split(a.rows * a.groups, threads, thread);
}
[[gnu::always_inline]] constexpr Range share_of(const KeyDecaysArgs& a, int thread, int threads) {
  return split(a.rows * a.heads, threads, thread);
}
[[gnu::always_inline]] constexpr Range share_of(const GatedNormArgs& a, int thread, int threads) {
  return split(a.rows * a.heads, threads, thread);
}
[[gnu::always_inline]] constexpr Range share_of(const LatentGroupsArgs& a, int thread, int threads) {
  return split(a.num_rows * a.heads, threads, thread);
}

// Columns: with them a thread has their state, which no other thread reads or writes.
[[gnu::always_inline]] constexpr Range share_of(const ConvArgs& a, int thread, int threads) {
  return split(a.ldo, threads, thread, 16);
}

// Parts of runs of tokens in a page: item / parts is the run. The parts are heads of queries, keys and values; or heads
// of queries and the two halves of a page of latents.
[[gnu::always_inline]] constexpr int32_t parts_of_run(const RopeStoreArgs& a) {
  return a.q_heads + (a.source == KvSource::kCached ? 0 : 2 * a.kv_heads);
}
[[gnu::always_inline]] constexpr int32_t parts_of_run(const LatentStoreArgs& a) { return a.heads + 2; }
template <class Args>
[[gnu::always_inline]] constexpr Range share_of_runs(const Args& a, int thread, int threads) {
  return split(a.num_runs * parts_of_run(a), threads, thread);
}

// Returns the most rows of a block for threads that share a product.
[[gnu::always_inline]] constexpr int64_t most_rows_of_share(const GemmArgs& g, int threads) {
  return most_rows(g, g.b.n_panels / 2 * row_blocks(g.m, g.blocking.row_block) / threads);
}

// Calls `multiply` for each rectangle of a thread's part of [m, n_panels]: at most three, except for very many rows.
// Units of 32 rows and two panels are counted through row blocks (`row_block` with `most`), within a block through
// panels, and within panels through rows. Any number of threads, such as 43, then has equal parts. The parts are not
// flat, so data that is read stays in caches. A grid of threads would have to divide both sides evenly.
template <class Multiply>
[[gnu::always_inline]] constexpr void for_share(const GemmArgs& g, int64_t most, int thread, int threads,
                                                Multiply&& multiply) {
  const int64_t row_units = ceil_div(g.m, kRowUnit), pairs = g.b.n_panels / 2, blocks = row_blocks(g.m, most);
  const Range units = split(row_units * pairs, threads, thread);
  for (int64_t unit = units.begin; unit < units.end;) {
    // The block of units that `split` gives this row unit to.
    const Range block = split(row_units, blocks, ((unit / pairs + 1) * blocks - 1) / row_units);
    const int64_t height = block.end - block.begin;
    const int64_t within = unit - block.begin * pairs, pair = within / height, first = within % height;
    const int64_t left = units.end - unit < pairs * height - within ? units.end - unit : pairs * height - within;
    const int64_t below = height - first < left ? height - first : left;
    const int64_t wide = first == 0 && left >= height ? left / height : 1, tall = wide > 1 ? height : below;
    const int64_t row = (block.begin + first) * kRowUnit, end = row + tall * kRowUnit;
    multiply(GemmShare{{row, end < g.m ? end : g.m}, {2 * pair, 2 * (pair + wide)}});
    unit += wide * tall;
  }
}

// Parts of k of pairs of panels: item / k_parts is the pair. A step may have no rows (of logits, or at all).
[[gnu::always_inline]] constexpr Range share_of_parts(const GemmArgs& g, int thread, int threads) {
  return split(g.m == 0 ? 0 : g.b.n_panels / 2 * g.b.k_parts, threads, thread);
}
// Pairs of panels, whose parts of k are added.
[[gnu::always_inline]] constexpr Range share_of_pairs(const GemmArgs& g, int thread, int threads) {
  return split(g.b.n_panels / 2, threads, thread);
}

// Calls use(row, rows, part, first) for each tile of a thread's part of the sums that adapters begin with: up to
// `most.rows` consecutive rows with one adapter, and up to `most.sums` of its sums for a part, from `first` on. Tiles
// go round the threads, so that they need not be counted first.
template <class Use>
[[gnu::always_inline]] constexpr void for_shrink_tiles(const ShrinkArgs& s, ShrinkTile most, int thread, int threads,
                                                       Use&& use) {
  const auto sums_of = [&](int64_t row, int64_t part) -> int64_t {
    return s.table.ranks[(s.adapters[row] - 1) * s.table.parts + part];
  };
  int64_t tile = 0;
  for (int64_t row = 0, end = 0; row < s.rows; row = end) {
    for (++end; end < s.rows && end < row + most.rows && s.adapters[end] == s.adapters[row];) ++end;
    if (s.adapters[row] == 0) continue;
    for (int64_t part = 0; part < s.table.parts; ++part)
      for (int64_t first = 0; first < sums_of(row, part); first += most.sums, ++tile)
        if (tile % threads == thread) use(row, end - row, part, first);
  }
}

}  // namespace numaserve
