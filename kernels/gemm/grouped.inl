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

// What one group adds to 16 columns of a row. fp32:
inline F32x16 with_group(const GemmArgs&, int, const GroupColumns& columns, int64_t, int64_t, const float* sums,
                         F32x16 c) {
  return F32x16::fma(F32x16::load(sums), columns.scale, c);
}

// int32. Every conversion is exact: a sum of products is below 2^22.
inline F32x16 with_group(const GemmArgs& g, int zero, const GroupColumns& columns, int64_t row, int64_t group,
                         const int32_t* sums, F32x16 c) {
  const int8_t* a = static_cast<const int8_t*>(g.a) + row * g.lda + g.b.depth;
  GroupScale x;
  __builtin_memcpy(&x, a + group * static_cast<int64_t>(sizeof(x)), sizeof(x));
  const F32x16 total = F32x16::set1(static_cast<float>(x.sum)), scale = F32x16::set1(x.scale);
  // Without offsets the codes' zero is a constant; what a set's dot product takes off the codes is one too.
  const int32_t constant = (g.b.offsets == Offsets::kNone ? zero : 0) - kCodeOffset;
  F32x16 sum = F32x16::convert_less(sums, constant * x.sum);
  if (g.b.offsets == Offsets::kZeros) sum = sum - columns.offset * total;
  const F32x16 result = F32x16::fma(sum * scale, columns.scale, c);
  return g.b.offsets == Offsets::kMinima ? F32x16::fma(total * scale, columns.offset, result) : result;
}

template <WeightFormat kFormat, class Sum>
inline void add_scaled(const GemmArgs& g, const GroupLayout& layout, const std::byte* record, int64_t group,
                       int64_t row, int rows, const Sum* sums, float* c) {
  for (int half = 0; half < 2; ++half) {
    const GroupColumns columns = group_columns<kFormat>(g.b, layout, record, half);
    for (int r = 0; r < rows; ++r) {
      const int64_t at = r * 32 + half * kTileN;
      with_group(g, GroupCodes<kFormat>::kZero, columns, row + r, group, sums + at, F32x16::load(c + at)).store(c + at);
    }
  }
}

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
      const std::byte* codes = records + (first + i / 2) * layout.bytes + i % 2 * layout.lines * kLineBytes;
      std::byte* out = scratch.tiles + i * panel_bytes;
      for (int64_t line = 0; line < layout.lines; ++line)
        Codes::widen(codes + line * kLineBytes, out + line * Codes::kLinesPerCode * kLineBytes);
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
    if (takes_int8(kFormat) && g.b.group < kTileDepth<int8_t>)
      add_groups<kFormat, takes_int8(kFormat) ? kLines / 2 : kLines>(g, row, rows, panel, groups, scratch, c);
    else
      add_groups<kFormat, kLines>(g, row, rows, panel, groups, scratch, c);
  }
};
