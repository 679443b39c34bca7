// The one GEMM loop nest. Only `tile_gemm` differs between the instruction sets, and between the formats only what four
// bytes of a line mean and how a finished sum is read.
//
// With many rows, for a thread's share of rows and panels:
//   rows in blocks of 256                     weights are read from memory once a block: 256 operations a byte
//     panels in groups                        the block's results for a group stay in L2, in fp32
//       k in slabs                            the block of A for a slab stays in L2 while the group passes by it
//         panels in pairs
//           k in blocks                       a pair's block of weights stays in L1 while the rows pass by it
//             rows in tiles of 32
// The sizes follow from the processor's caches (blocking_for). Results are carried between slabs and blocks of k in
// fp32 or int32, which is exact: the bits do not depend on the blocking. For formats in groups (grouped.inl) a slab and
// a block are as many groups. With up to 32 rows there is nothing to reuse, and every panel pair is read once, from its
// first tile to its last.

inline constexpr int64_t kStreamedRows = 32;
inline constexpr int64_t kMostTotals = 64 << 10;    // no slab has more groups times rows
inline constexpr int64_t kWidenedBytes = 16 << 10;  // a block of widened codes of two panels: half an L1 cache

// Calls `multiply` for each rectangle of a thread's part of [m, n_panels], three at most but for very many rows. Units
// of 32 rows and two panels are counted through row blocks one after the other, in these through panels, in these
// through rows: any number of threads, 43 too, has equal parts, and parts are not flat, so that what is read stays in
// caches. A grid of threads would have to divide both sides evenly.
template <class Multiply>
inline void for_share(int64_t m, int64_t n_panels, int thread, int threads, Multiply&& multiply) {
  constexpr int64_t kUnitRows = 32, kBlockUnits = kRowBlock / kUnitRows;
  const int64_t row_units = ceil_div(m, kUnitRows), pairs = n_panels / 2;
  const Range units = split(row_units * pairs, threads, thread);
  for (int64_t unit = units.begin; unit < units.end;) {
    const int64_t block = unit / (kBlockUnits * pairs), left_units = row_units - block * kBlockUnits;
    const int64_t height = left_units < kBlockUnits ? left_units : kBlockUnits;
    const int64_t within = unit - block * kBlockUnits * pairs, pair = within / height, first = within % height;
    const int64_t left = units.end - unit < pairs * height - within ? units.end - unit : pairs * height - within;
    const int64_t below = height - first < left ? height - first : left;
    const int64_t wide = first == 0 && left >= height ? left / height : 1, tall = wide > 1 ? height : below;
    const int64_t row = (block * kBlockUnits + first) * kUnitRows, end = row + tall * kUnitRows;
    multiply(GemmShare{{row, end < m ? end : m}, {2 * pair, 2 * (pair + wide)}});
    unit += wide * tall;
  }
}

inline F32x16 activate(F32x16 x, Activation activation) {
  if (activation == Activation::kSilu) return x / (F32x16::set1(1.0f) + exp(F32x16::zero() - x));
  // GELU, tanh approximation (Hendrycks and Gimpel, 2016).
  const F32x16 inner = F32x16::fma(x * x * x, F32x16::set1(0.044715f), x) * F32x16::set1(0.79788456f);
  return F32x16::set1(0.5f) * x * (F32x16::set1(1.0f) + tanh(inner));
}

// The type that a format's products are summed in.
template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<int8_t> {
  using type = int32_t;
};
template <>
struct SumOf<uint8_t> {  // codes without a sign, by signed activations
  using type = int32_t;
};

struct GemmScratch {
  alignas(64) float c[kMostPanels / 2 * kRowBlock * 32];  // results of a block, fp32 or int32
  alignas(64) float sums[32 * 32];                        // of one group of k, fp32 or int32
  alignas(64) std::byte tiles[kWidenedBytes];
  // Of the activations of a slab of groups, [groups][rows]; see sum_groups.
  alignas(64) float totals[kMostTotals];
  int64_t first_group, total_rows;
};

inline F32x16 finished(const GemmArgs& g, const float* c, int64_t, int64_t column) {
  const F32x16 sum = F32x16::load(c);
  return g.b.scales != nullptr ? sum * F32x16::load(g.b.scales + column) : sum;
}
inline F32x16 finished(const GemmArgs& g, const int32_t* c, int64_t row, int64_t column) {
  const int8_t* a = static_cast<const int8_t*>(g.a) + row * g.lda + g.b.depth;
  float scale;
  __builtin_memcpy(&scale, a, sizeof(scale));
  const F32x16 sum = F32x16::convert(c, kActivationOffset != 0 ? g.b.corrections + column : nullptr);
  return sum * F32x16::set1(scale) * F32x16::load(g.b.scales + column);
}

// Writes the finished results of two panels for `rows` rows; c is [rows][32].
template <class Sum>
inline void gemm_epilogue(const GemmArgs& g, const Sum* c, int64_t row, int64_t rows, int64_t panel) {
  const auto value_at = [&](int64_t r, int half) {
    return finished(g, c + r * 32 + half * kTileN, row + r, (panel + half) * kTileN);
  };
  if (g.activation != Activation::kNone) {
    for (int64_t r = 0; r < rows; ++r) {
      const F32x16 gate = value_at(r, 0), up = value_at(r, 1);
      (activate(gate, g.activation) * up).store(g.out_bf16 + (row + r) * g.ldo + panel / 2 * kTileN);
    }
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const int64_t column = (panel + half) * kTileN;
    const F32x16 bias = g.bias != nullptr ? F32x16::load(g.bias + column) : F32x16::zero();
    for (int64_t r = 0; r < rows; ++r) {
      const F32x16 value = value_at(r, half) + bias;
      const int64_t at = (row + r) * g.ldo + column;
      if (g.accumulate)
        (F32x16::load(g.out_f32 + at) + value).store(g.out_f32 + at);
      else if (g.out_f32 != nullptr)
        value.store(g.out_f32 + at);
      else
        value.store(g.out_bf16 + at);
    }
  }
}

// The loop nest's view of formats whose tiles lie in memory as the dot products take them: its unit of k is a tile.
template <class T>
struct Plain {
  using Sum = typename SumOf<T>::type;
  static int64_t unit(const PackedWeights&) { return kTileDepth<T>; }
  static int64_t slab(const GemmArgs& g) { return g.blocking.slab_tiles; }
  static void begin(const GemmArgs&, int64_t, int64_t, Range, GemmScratch&) {}

  // Adds k tiles [begin, end) of one pair of panels to `c` [rows][32], or begins with them where begin is 0.
  static void add(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range k, bool streamed, GemmScratch&,
                  Sum* c) {
    constexpr int64_t kElements = kTileBytes / static_cast<int64_t>(sizeof(T));
    const int64_t k_tiles = g.b.depth / kTileDepth<T>;
    const T* b = reinterpret_cast<const T*>(g.b.data) + tile_index(panel, 0, k_tiles) * kElements;
    const int64_t depth = streamed ? k.end : g.blocking.block_tiles;
    int64_t kt = k.begin;
    do {  // once even where k is empty, so that the results are zero
      const int64_t count = k.end - kt < depth ? k.end - kt : depth;
      const T* block = b + kt * 2 * kElements;
      const auto tile = [block](int64_t t) { return block + t * 2 * kElements; };
      const T* next = kt + count < k.end ? block + count * 2 * kElements : b + (k_tiles + k.begin) * 2 * kElements;
      for (int64_t r = 0; r < rows; r += 32) {
        const T* a = static_cast<const T*>(g.a) + (row + r) * g.lda + kt * kTileDepth<T>;
        const int tile_rows = static_cast<int>(rows - r < 32 ? rows - r : 32);
        if (streamed) {
          tile_gemm<true>(a, g.lda, tile, kElements, 2, count, c, 32, tile_rows, kt > 0);
        } else {
          // A share of the next block of weights at each step: what comes from memory then waits in the second level.
          const Range ahead = split(count * 2 * kLines, ceil_div(rows, 32), r / 32);
          for (int64_t line = ahead.begin; line < ahead.end; ++line)
            prefetch_line(next + line * kTileN * kLineDepth<T>);
          tile_gemm<false>(a, g.lda, tile, kElements, 2, count, c + r * 32, 32, tile_rows, kt > 0);
        }
      }
      kt += count;
    } while (kt < k.end);
  }
};

#include "kernels/gemm/grouped.inl"

template <class Weights>
inline void gemm_nest(const GemmArgs& g, const GemmShare& share, GemmScratch& scratch) {
  using Sum = typename Weights::Sum;
  const int64_t unit = Weights::unit(g.b), units = ceil_div(g.b.depth, unit);
  for (int64_t row = share.rows.begin; row < share.rows.end; row += kRowBlock) {
    const int64_t rows = share.rows.end - row < kRowBlock ? share.rows.end - row : kRowBlock;
    const bool streamed = rows <= kStreamedRows;
    const int64_t group = streamed ? 2 : g.blocking.group_panels,
                  slab = streamed ? kMostTotals / kStreamedRows : Weights::slab(g);
    if (slab >= units) Weights::begin(g, row, rows, {0, units}, scratch);
    for (int64_t first = share.panels.begin; first < share.panels.end; first += group) {
      const int64_t end = share.panels.end - first < group ? share.panels.end : first + group;
      const auto c = [&](int64_t panel) {
        return reinterpret_cast<Sum*>(scratch.c) + (panel - first) / 2 * kRowBlock * 32;
      };
      int64_t k = 0;
      do {
        const Range some{k, units - k < slab ? units : k + slab};
        if (slab < units) Weights::begin(g, row, rows, some, scratch);
        for (int64_t panel = first; panel < end; panel += 2) {
          Weights::add(g, row, rows, panel, some, streamed, scratch, c(panel));
          if (some.end == units) gemm_epilogue(g, c(panel), row, rows, panel);
        }
        k = some.end;
      } while (k < units);
    }
  }
}

inline void gemm_share(const GemmArgs& g, const GemmShare& share, void* memory) {
  auto& scratch = *static_cast<GemmScratch*>(memory);
  switch (g.b.format) {
    case WeightFormat::kBf16:
      return gemm_nest<Plain<bf16>>(g, share, scratch);
    case WeightFormat::kInt8:
      return gemm_nest<Plain<int8_t>>(g, share, scratch);
    case WeightFormat::kInt4:
      return g.widened ? gemm_nest<Grouped<Int4GroupValues>>(g, share, scratch)
                       : gemm_nest<Grouped<Int4Groups>>(g, share, scratch);
    case WeightFormat::kInt8Group:
      return g.widened ? gemm_nest<Grouped<Int8GroupValues>>(g, share, scratch)
                       : gemm_nest<Grouped<Int8Groups>>(g, share, scratch);
    case WeightFormat::kFp8:
      return gemm_nest<Grouped<E4m3GroupValues>>(g, share, scratch);
  }
}

inline void gemm(const GemmArgs& g, void* scratch, int thread, int threads) {
  for_share(g.m, g.b.n_panels, thread, threads, [&](const GemmShare& share) { gemm_share(g, share, scratch); });
}

inline int64_t gemm_peak(WeightFormat format, int64_t rounds) {
  return takes_int8(format) ? tile_peak<int8_t>(rounds) : tile_peak<bf16>(rounds);
}
