// Products with weights in groups of k that have scales of their own. The codes of a block of groups are widened once
// to tiles in the L1 cache, all rows pass by these, and what a group adds is scaled when its sum is finished: the sum
// inside a group has the exact values of the codes, in int32 or, of e4m3, fp32. Scaling the weights instead would round
// them to bf16 and cost four times the instructions a weight.

template <WeightFormat>
struct GroupCodes;
template <>
struct GroupCodes<WeightFormat::kInt4> {
  using Element = uint8_t;
  static constexpr int kLinesPerCode = 2, kZero = 8;
  static void widen(const std::byte* codes, std::byte* out) { widen_int4(codes, out); }
};
template <>
struct GroupCodes<WeightFormat::kInt8Group> {
  using Element = uint8_t;
  static constexpr int kLinesPerCode = 1, kZero = 128;
  static void widen(const std::byte* codes, std::byte* out) { copy_line(codes, out); }
};
template <>
struct GroupCodes<WeightFormat::kFp8> {
  using Element = bf16;
  static constexpr int kLinesPerCode = 2, kZero = 0;
  static void widen(const std::byte* codes, std::byte* out) { widen_e4m3(codes, out); }
};

// Half a pair of panels' scales and offsets.
struct GroupColumns {
  F32x16 scale, offset;
};

template <WeightFormat kFormat>
inline GroupColumns group_columns(const PackedWeights& b, const GroupLayout& layout, const std::byte* record,
                                  int half) {
  if constexpr (kFormat == WeightFormat::kFp8) {
    return {F32x16::load(reinterpret_cast<const float*>(record + layout.scales) + half * kTileN), F32x16::zero()};
  } else {
    const auto at = [&](int64_t where) {
      return F32x16::load_half(reinterpret_cast<const uint16_t*>(record + where) + half * kTileN);
    };
    return {at(layout.scales), b.offsets == Offsets::kNone ? F32x16::zero() : at(layout.offsets)};
  }
}

inline GroupScale group_scale(const GemmArgs& g, int64_t row, int64_t group) {
  GroupScale x;
  const int8_t* a = static_cast<const int8_t*>(g.a) + row * g.lda + g.b.depth;
  __builtin_memcpy(&x, a + group * static_cast<int64_t>(sizeof(x)), sizeof(x));
  return x;
}

// c and what a group adds to it; `sum`, of whole numbers below 2^22, has lost the constant zero of codes without
// offsets. `sum` and `x` of int4 and int8_group:
inline F32x16 with_group(Offsets offsets, const GroupColumns& columns, const GroupScale& x, F32x16 sum, F32x16 c) {
  const F32x16 total = F32x16::set1(-0.125f * static_cast<float>(x.minus8)), scale = F32x16::set1(x.scale);
  if (offsets == Offsets::kZeros) sum = sum - columns.offset * total;
  const F32x16 result = F32x16::fma(sum * scale, columns.scale, c);
  return offsets == Offsets::kMinima ? F32x16::fma(total * scale, columns.offset, result) : result;
}

template <WeightFormat kFormat, class Sum>
inline void add_scaled(const GemmArgs& g, const GroupLayout& layout, const std::byte* record, int64_t group,
                       int64_t row, int rows, const Sum* sums, float* c) {
  for (int half = 0; half < 2; ++half) {
    const GroupColumns columns = group_columns<kFormat>(g.b, layout, record, half);
    for (int r = 0; r < rows; ++r) {
      const int64_t at = r * 32 + half * kTileN;
      const F32x16 before = F32x16::load(c + at);
      if constexpr (takes_int8(kFormat)) {
        const GroupScale x = group_scale(g, row + r, group);
        // What a set's dot products have taken off the codes is a constant too.
        const int32_t zero = g.b.offsets == Offsets::kNone ? GroupCodes<kFormat>::kZero : 0;
        const F32x16 sum = F32x16::convert_less(sums + at, (kCodeOffset - zero) / 8 * x.minus8);
        with_group(g.b.offsets, columns, x, sum, before).store(c + at);
      } else {
        F32x16::fma(F32x16::load(sums + at), columns.scale, before).store(c + at);
      }
    }
  }
}

#if defined(__AVX512VNNI__)
#include "kernels/gemm/grouped_avx512.inl"
#else
template <WeightFormat>
inline bool add_groups_in_registers(const GemmArgs&, int64_t, int64_t, int64_t, Range, float*) {
  return false;
}
#endif

// Adds groups [begin, end) of one pair of panels to `c` [rows][32], or begins with them where begin is 0. `kUsed`: the
// lines of a tile that a group fills, all of them or, in int8 groups of 32, half.
template <WeightFormat kFormat, int kUsed>
inline void add_groups(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, GemmScratch& scratch,
                       float* c) {
  using Codes = GroupCodes<kFormat>;
  using T = typename Codes::Element;
  constexpr int64_t kDepth = kUsed * kLineDepth<T>, kTileBytesHere = (kWholeTiles ? kLines : kUsed) * kLineBytes;
  const GroupLayout layout = group_layout(kFormat, g.b.group, g.b.offsets);
  const std::byte* records = g.b.data + panel / 2 * ceil_div(g.b.depth, g.b.group) * layout.bytes;
  const int64_t panel_bytes = g.b.group / kDepth * kTileBytesHere;
  const int64_t block = kWidenedBytes / (2 * panel_bytes);
  const T* tiles = reinterpret_cast<const T*>(scratch.tiles);
  if (groups.begin == 0) __builtin_memset(c, 0, static_cast<size_t>(rows) * 32 * sizeof(float));
  for (int64_t first = groups.begin; first < groups.end; first += block) {
    const int64_t count = groups.end - first < block ? groups.end - first : block;
    for (int64_t i = 0; i < 2 * count; ++i) {
      const std::byte* codes = records + (first + i / 2) * layout.bytes + i % 2 * kLineBytes;
      std::byte* out = scratch.tiles + i * panel_bytes;
      for (int64_t line = 0; line < layout.lines; ++line)
        Codes::widen(codes + line * 2 * kLineBytes, out + line * Codes::kLinesPerCode * kLineBytes);
      if constexpr (kTileBytesHere != kUsed * kLineBytes)
        __builtin_memset(out + kUsed * kLineBytes, 0, static_cast<size_t>(kTileBytesHere - kUsed * kLineBytes));
    }
    for (int64_t r = 0; r < rows; r += 32) {
      const int tile_rows = static_cast<int>(rows - r < 32 ? rows - r : 32);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = (first + i) * g.b.group;
        const T* a = static_cast<const T*>(g.a) + (row + r) * g.lda + k;
        const int64_t left = g.b.depth - k < g.b.group ? g.b.depth - k : g.b.group;
        const T* group_tiles = tiles + 2 * i * panel_bytes / static_cast<int64_t>(sizeof(T));
        const auto tile = [group_tiles](int64_t kt) {
          return group_tiles + kt * (kTileBytesHere / static_cast<int64_t>(sizeof(T)));
        };
        auto* sums = reinterpret_cast<typename SumOf<T>::type*>(scratch.sums);
        tile_gemm<false, kUsed>(a, g.lda, tile, panel_bytes / static_cast<int64_t>(sizeof(T)), 2, left / kDepth, sums,
                                32, tile_rows, false);
        add_scaled<kFormat>(g, layout, records + (first + i) * layout.bytes, first + i, row + r, tile_rows, sums,
                            c + r * 32);
      }
    }
  }
}

// The loop nest's view of a grouped format: its unit of k is a group.
template <WeightFormat kFormat>
struct Grouped {
  using Sum = float;
  static int64_t unit(const PackedWeights& b) { return b.group; }
  static void add(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups, bool, GemmScratch& scratch,
                  float* c) {
    if (add_groups_in_registers<kFormat>(g, row, rows, panel, groups, c)) return;
    if (takes_int8(kFormat) && g.b.group < kTileDepth<int8_t>)
      add_groups<kFormat, takes_int8(kFormat) ? kLines / 2 : kLines>(g, row, rows, panel, groups, scratch, c);
    else
      add_groups<kFormat, kLines>(g, row, rows, panel, groups, scratch, c);
  }
};
