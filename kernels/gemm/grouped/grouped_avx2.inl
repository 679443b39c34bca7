// Passes of rows by weights in groups in the portable set; see grouped_passes.inl.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "kernels/gemm/grouped/group_pass.h"
#include "kernels/gemm/packed_rows_avx2.inl"
#include "kernels/gemm/tiles/sums_avx2.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// Half a line of codes as operands, in k order. Integers are unsigned. `kFits`: the number of lines whose byte products
// together fit 16 bits; 0 if even one line does not fit.
template <class>
struct CodeOperands;
template <>
struct CodeOperands<Int4Groups> {
  using Activations = ByteOperands;
  static constexpr int kOperands = 2, kFits = 4;  // 16 products of up to 15 x 127
  template <int i>
  static __m256i widen(__m256i codes) {
    return _mm256_and_si256(i == 0 ? codes : _mm256_srli_epi16(codes, 4), _mm256_set1_epi8(15));
  }
};
template <WeightFormat kOf, const NibbleBytes& kTable, int kZero>
struct CodeOperands<TableGroups<kOf, kTable, kZero>> {
  static constexpr bool kSmall = kOf == WeightFormat::kMxfp4;
  using Activations = std::conditional_t<kSmall, ByteOperands, PairOperands>;
  static constexpr int kOperands = kSmall ? 2 : 4, kFits = kSmall ? 2 : 0;  // 8 products of up to 28 x 127
  template <int i>
  static __m256i widen(__m256i codes) {
    const __m256i table = _mm256_broadcastsi128_si256(kTable.load());
    if constexpr (kSmall) return _mm256_shuffle_epi8(table, CodeOperands<Int4Groups>::widen<i>(codes));
    const __m256i bytes = _mm256_shuffle_epi8(table, CodeOperands<Int4Groups>::widen<i / 2>(codes));
    return i % 2 == 0 ? _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)) : _mm256_srli_epi16(bytes, 8);
  }
};
template <>
struct CodeOperands<Int8Groups> {
  using Activations = PairOperands;
  static constexpr int kOperands = 2, kFits = 0;
  template <int i>
  static __m256i widen(__m256i codes) {
    return i == 0 ? _mm256_and_si256(codes, _mm256_set1_epi16(0xff)) : _mm256_srli_epi16(codes, 8);
  }
};

// Converts bits [kAt, kAt + kBits) of words, minus kZero, or half of that, to fp32, exactly. The bits become the last
// bits of a number whose last bit counts one. Shifting left, shifting right and converting would keep the few shift
// units busy twice as long. Bits left in place would need different constants for each kAt: more registers than there
// are, or loads.
template <int kAt, int kBits, int kZero, bool kHalved = false>
NUMASERVE_INLINE inline __m256i float_of_bits(__m256i words) {
  constexpr int kExponent = kHalved ? 22 : 23;
  constexpr float kLess = static_cast<float>(1 << kExponent) + (kHalved ? 0.5f : 1.0f) * kZero;
  if constexpr (kAt > 0) words = _mm256_srli_epi32(words, kAt);
  if constexpr (kAt + kBits < 32) words = _mm256_and_si256(words, _mm256_set1_epi32((1 << kBits) - 1));
  const __m256i number = _mm256_or_si256(words, _mm256_set1_epi32((kExponent + 127) << 23));
  return _mm256_castps_si256(_mm256_sub_ps(_mm256_castsi256_ps(number), _mm256_set1_ps(kLess)));
}
// Returns the byte of a word that holds `k`: in each four, the second and third are exchanged.
constexpr int byte_of(int k) { return k == 1 ? 2 : k == 2 ? 1 : k; }
template <>
struct CodeOperands<Int8GroupValues> {
  static constexpr int kOperands = 4;
  template <int i>
  static __m256i widen(__m256i codes) {
    return float_of_bits<8 * byte_of(i), 8, Int8GroupValues::kZero>(codes);
  }
};
template <WeightFormat kOf, const NibbleTable& kValues, int kZero>
struct CodeOperands<TableGroupValues<kOf, kValues, kZero>> {
  static constexpr int kOperands = 8;
  template <int i>
  static __m256i widen(__m256i codes) {
    constexpr int kByte = 8 * byte_of(i % 4), kNibble = i / 4;
    if constexpr (kOf == WeightFormat::kInt4) {
      return float_of_bits<kByte + 4 * kNibble, 4, kZero>(codes);
    } else {
      const __m256i table = _mm256_broadcastsi128_si256(kValues.bytes.load());
      const __m256i bytes = _mm256_shuffle_epi8(table, CodeOperands<Int4Groups>::widen<kNibble>(codes));
      return float_of_bits<kByte, 8, NibbleTable::kByteZero, kValues.halved>(bytes);
    }
  }
};
// The exponent bias is 7 instead of 127; a subnormal code is a subnormal number until that is corrected.
template <>
struct CodeOperands<E4m3GroupValues> {
  static constexpr int kOperands = 4;
  template <int i>
  static __m256i widen(__m256i codes) {
    const __m256i high = _mm256_slli_epi32(codes, 24 - 8 * byte_of(i));
    const __m256i bits = _mm256_and_si256(_mm256_srai_epi32(high, 4), _mm256_set1_epi32(static_cast<int>(0x87f00000)));
    return _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f)));
  }
};

template <>
struct CodeOperands<Nvfp4GroupValues> : CodeOperands<Mxfp4GroupValues> {};

// Multiplies values by the scales of their columns, if these belong to the values.
template <class Codes>
NUMASERVE_INLINE inline Columns with_scales(const Columns& values, [[maybe_unused]] const uint8_t* scales) {
  if constexpr (kScalesValues<Codes>) {
    const F32x16 scale = e4m3_numbers(scales);
    const auto product = [](__m256i x, __m256 by) {
      return _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(x), by));
    };
    return {product(values.low, scale.lo), product(values.high, scale.hi)};
  } else {
    return values;
  }
}

// The operand type that activations are packed as.
template <class Codes>
  requires(sizeof(typename Codes::Element) == 1)
struct OperandsOf<Codes> {
  using type = typename CodeOperands<Codes>::Activations;
};
template <class Codes>
  requires(sizeof(typename Codes::Element) == 2)
struct OperandsOf<Codes> {
  using type = FloatOperands;
};
template <class Codes>
using GroupSums = std::conditional_t<kWholeNumbers<Codes>, Int32Sums, Fp32Sums>;

// Adds the products of one or more lines of codes, of one panel or both, from `codes` on. Lines of a panel are two
// lines apart. `scales`: of the first panel, see `line_scales`. `a`: the activations.
template <class Codes, int kRows, int kPanels, int kLinesOf, class Sums>
NUMASERVE_INLINE inline void add_lines(const std::byte* codes, const uint8_t* scales, const ActivationWord* a,
                                       Sums (&sums)[kRows * kPanels]) {
  static_assert(!kScalesValues<Codes> || kLinesOf == 1);
  using Operands = CodeOperands<Codes>;
  unrolled<kLinesOf * kPanels>([&]<int l>() NUMASERVE_INLINE {
    constexpr int line = l / kPanels, p = l % kPanels;
    const Columns raw = load_line(codes + (2 * line + p) * kLineBytes);
    unrolled<Operands::kOperands>([&]<int i>() NUMASERVE_INLINE {
      const Columns values = widened(raw, [](__m256i x) { return Operands::template widen<i>(x); });
      const Columns columns = with_scales<Codes>(values, scales + p * kTileN);
      unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
        sums[r * kPanels + p].add(_mm256_set1_epi32(a[(line * Operands::kOperands + i) * kRows + r]), columns);
      });
    });
  });
}

// Multiplies codes of a group, of one panel or both, from panel `half` on, by the rows of a pass. `kAhead`: prefetches
// as many lines from `ahead`.
template <class Codes, int kRows, int kPanels, bool kAhead, class Sums>
NUMASERVE_INLINE inline void add_codes(const GroupLayout& layout, const std::byte* record, int half,
                                       const std::byte* ahead, const ActivationWord* a, Sums (&sums)[kRows * kPanels]) {
  using Operands = CodeOperands<Codes>;
  constexpr bool kNarrow = requires { requires Operands::kFits > 0; };
  constexpr int kTogether = [] {
    if constexpr (kNarrow) return Operands::kFits;
    return Operands::kOperands > 4 ? 1 : 2;
  }();
  const std::byte* codes = record + half * kLineBytes;
  for (int64_t line = 0; line < layout.lines; line += kTogether) {
    const uint8_t* scales = line_scales(layout, record, line, half);
    if constexpr (kAhead)
      unrolled<kTogether * kPanels>(
          [&]<int i>() NUMASERVE_INLINE { prefetch_first(ahead + (line * kPanels + i) * kLineBytes); });
    if constexpr (kNarrow) {
      Int16Sums some[kRows * kPanels];
      unrolled<kRows * kPanels>([&]<int i>() NUMASERVE_INLINE { some[i] = Int16Sums::zero(); });
      add_lines<Codes, kRows, kPanels, kTogether>(codes, scales, a, some);
      unrolled<kRows * kPanels>([&]<int i>() NUMASERVE_INLINE { some[i].add_to(sums[i]); });
    } else {
      add_lines<Codes, kRows, kPanels, kTogether>(codes, scales, a, sums);
    }
    codes += 2 * kTogether * kLineBytes;
    a += kTogether * Operands::kOperands * kRows;
  }
}

// Adds a group's part to the results of one panel of a pair, the `kPanel`th of the panels that each row has sums of.
template <class Codes, Offsets kOffsets, int kRows, int kPanels, int kPanel, class Sums>
NUMASERVE_INLINE inline void add_group(const GroupPass& p, int64_t group, int half, const int8_t* const (&x)[kRows],
                                       const Sums (&sums)[kRows * kPanels], float* c) {
  const GroupColumns scales = group_columns<Codes>(p.g.b, p.layout, p.records + group * p.layout.bytes, half);
  unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
    const Sums& own = sums[r * kPanels + kPanel];
    float* to = c + r * 32 + half * kTileN;
    const F32x16 before = F32x16::load(to);
    if constexpr (kWholeNumbers<Codes>) {
      const F32x16 sum{_mm256_cvtepi32_ps(own.low), _mm256_cvtepi32_ps(own.high)};
      with_group(kOffsets, scales, group_scale(x[r], group), sum, before).store(to);
    } else {
      const float total = group_total(p.g, p.scratch, p.row_of(r), group);
      with_values(kOffsets, scales, Codes::kZero, total, {own.low, own.high}, before).store(to);
    }
  });
}

// A pass whose codes are widened in registers. `kAhead`: prefetches as many bytes ahead of each group as the group has.
template <class Codes, int kRows, bool kAhead, Offsets kOffsets>
NUMASERVE_FLAT [[gnu::noinline]] void code_pass(const GroupPass& p, float* c) {
  using Sums = GroupSums<Codes>;
  constexpr int kPanels = kPanelsTogether<kRows>;
  const int8_t* x[kRows] = {};
  if constexpr (kWholeNumbers<Codes>)
    unrolled<kRows>([&]<int r>() NUMASERVE_INLINE { x[r] = group_scales(p.g, p.row + p.row_of(r)); });
  const ActivationWord* a = p.a;
  const std::byte* ahead = p.ahead;
  for (int64_t group = p.groups.begin; group < p.groups.end; ++group) {
    const std::byte* record = p.records + group * p.layout.bytes;
    for (int half = 0; half < 2; half += kPanels) {
      Sums sums[kRows * kPanels];
      unrolled<kRows * kPanels>([&]<int i>() NUMASERVE_INLINE {
        // Sums begin with the correction for the constant zero of codes without offsets.
        if constexpr (kWholeNumbers<Codes> && kOffsets == Offsets::kNone)
          sums[i] = Sums::set1(group_scale(x[i / kPanels], group).minus8 * (Codes::kZero / 8));
        else
          sums[i] = Sums::zero();
      });
      const std::byte* fetched = ahead + half * p.layout.lines * kLineBytes;
      add_codes<Codes, kRows, kPanels, kAhead>(p.layout, record, half, fetched, a, sums);
      unrolled<kPanels>([&]<int panel>() NUMASERVE_INLINE {
        add_group<Codes, kOffsets, kRows, kPanels, panel>(p, group, half + panel, x, sums, c);
      });
    }
    a += p.layout.lines * CodeOperands<Codes>::kOperands * kRows;
    if constexpr (kAhead)
      for (int64_t at = p.layout.scales; at < p.layout.bytes; at += kLineBytes) prefetch_first(ahead + at);
    ahead += p.layout.bytes;
  }
}

// Widens codes of a panel of a group to fp32, [k][16]: codes in bf16 would have to be widened again in each pass.
template <class Codes>
NUMASERVE_FLAT inline void widen_panel(const GroupLayout& layout, const std::byte* record, int half, std::byte* out) {
  for (int64_t line = 0; line < layout.lines; ++line) {
    const Columns raw = load_line(record + (2 * line + half) * kLineBytes);
    unrolled<CodeOperands<Codes>::kOperands>([&]<int i>() NUMASERVE_INLINE {
      const Columns values = widened(raw, [](__m256i x) { return CodeOperands<Codes>::template widen<i>(x); });
      const Columns columns = with_scales<Codes>(values, line_scales(layout, record, line, half));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), columns.low);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + 1, columns.high);
      out += kLineBytes;
    });
  }
}
template <class>
inline int64_t widened_panel_bytes(int64_t group) {
  return group * kLineBytes;
}

// A pass whose codes are in tiles, widened: [groups][2] panels. `kAhead`: prefetches as many bytes as the codes have.
template <class Codes, int kRows, bool kAhead, Offsets kOffsets>
NUMASERVE_FLAT [[gnu::noinline]] void tile_pass(const GroupPass& p, const std::byte* tiles, float* c) {
  constexpr int kUnrolled = 8, kFetched = kAhead ? kUnrolled * code_bits(Codes::kFormat) / 32 : 0;
  const int8_t* const none[kRows] = {};
  const ActivationWord* a = p.a;
  const std::byte* ahead = p.ahead;
  for (int64_t group = p.groups.begin; group < p.groups.end; ++group) {
    const int64_t begin = group * p.g.b.group;
    const int64_t depth = p.g.b.depth - begin < p.g.b.group ? p.g.b.depth - begin : p.g.b.group;
    for (int half = 0; half < 2; ++half, tiles += p.g.b.group * kLineBytes) {
      Fp32Sums sums[kRows];
      unrolled<kRows>([&]<int r>() NUMASERVE_INLINE { sums[r] = Fp32Sums::zero(); });
      for (int64_t k = 0; k < depth; k += kUnrolled) {
        unrolled<kFetched>([&]<int i>() NUMASERVE_INLINE { prefetch_first(ahead + i * kLineBytes); });
        ahead += kFetched * kLineBytes;
        unrolled<kUnrolled>([&]<int i>() NUMASERVE_INLINE {
          const Columns columns = load_line(tiles + (k + i) * kLineBytes);
          unrolled<kRows>([&]<int r>()
                              NUMASERVE_INLINE { sums[r].add(_mm256_set1_epi32(a[(k + i) * kRows + r]), columns); });
        });
      }
      add_group<Codes, kOffsets, kRows, 1, 0>(p, group, half, none, sums, c);
    }
    a += depth * kRows;
  }
}

// The maximum number of rows of a pass.
template <class>
inline constexpr int kMostCodeRows = kMostTogether;
template <class>
inline int64_t most_together(const GemmArgs&, int64_t) {
  return kMostTogether;
}

}  // namespace
}  // namespace numaserve
