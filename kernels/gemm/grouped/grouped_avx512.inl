// Passes of rows by weights in groups in the avx512 set; see grouped_passes.inl.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/grouped/group_pass.h"
#include "kernels/gemm/packed_rows_avx512.inl"
#include "kernels/gemm/tiles/sums_avx512.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unrolled.h"

namespace numaserve {
namespace {

// A line of codes as operands of dot products, in k order.
template <class>
struct CodeLine;
template <>
struct CodeLine<Int4Groups> {
  static constexpr int kOperands = 2;
  __m512i operand[kOperands];
  NUMASERVE_INLINE explicit CodeLine(__m512i codes)
      : operand{_mm512_and_si512(codes, low()), _mm512_and_si512(_mm512_srli_epi16(codes, 4), low())} {}
  static __m512i low() { return _mm512_set1_epi8(15); }
};
template <WeightFormat kOf, const NibbleBytes& kTable, int kZero>
struct CodeLine<TableGroups<kOf, kTable, kZero>> : CodeLine<Int4Groups> {
  NUMASERVE_INLINE explicit CodeLine(__m512i codes) : CodeLine<Int4Groups>(codes) {
    const __m512i table = _mm512_broadcast_i32x4(kTable.load());
    for (__m512i& each : operand) each = _mm512_shuffle_epi8(table, each);
  }
};
template <>
struct CodeLine<Int8Groups> {
  static constexpr int kOperands = 1;
  __m512i operand[kOperands];
  NUMASERVE_INLINE explicit CodeLine(__m512i codes) : operand{codes} {}
};
template <>
struct CodeLine<E4m3GroupValues> {
  static constexpr int kOperands = 2;
  __m512i operand[kOperands];
  NUMASERVE_INLINE explicit CodeLine(__m512i codes) { widen_e4m3(codes, operand[0], operand[1]); }
};

template <WeightFormat kOf, const NibbleTable& kTable, int kZero>
struct CodeLine<TableGroupValues<kOf, kTable, kZero>> {
  static constexpr int kOperands = 4;
  __m512i operand[kOperands];
  NUMASERVE_INLINE explicit CodeLine(__m512i codes) { widen_nibble_values(kTable, codes, operand); }
};
template <>
struct CodeLine<Nvfp4GroupValues> : CodeLine<Mxfp4GroupValues> {
  NUMASERVE_INLINE CodeLine(__m512i codes, F32x16 scales) : CodeLine<Mxfp4GroupValues>(codes) {
    scale_values(scales.v, operand);
  }
};
template <>
struct CodeLine<Int8GroupValues> {
  static constexpr int kOperands = 2;
  __m512i operand[kOperands];
  NUMASERVE_INLINE explicit CodeLine(__m512i codes) { widen_int8_values(codes, operand[0], operand[1]); }
};

// Returns a line of codes of half a pair of panels.
template <class Codes>
NUMASERVE_INLINE inline CodeLine<Codes> code_line(const GroupLayout& layout, const std::byte* record, int64_t line,
                                                  int half) {
  const __m512i codes = _mm512_loadu_si512(record + (2 * line + half) * kLineBytes);
  if constexpr (kScalesValues<Codes>)
    return CodeLine<Codes>(codes, e4m3_numbers(line_scales(layout, record, line, half)));
  else
    return CodeLine<Codes>(codes);
}

// The results of a pass: in registers if the sums leave enough free, otherwise in the first-level cache.
template <int kRows>
struct GroupResults {
  static constexpr bool kInRegisters = kRows <= 6;
  float* c;
  F32x16 kept[kInRegisters ? kRows : 1][2];

  NUMASERVE_INLINE explicit GroupResults(float* results) : c(results) {
    if constexpr (kInRegisters)
      unrolled<2 * kRows>([&]<int i>() NUMASERVE_INLINE { kept[i / 2][i % 2] = F32x16::load(c + 16 * i); });
  }
  template <int r, int half, class Update>
  NUMASERVE_INLINE void update(Update&& updated) {
    if constexpr (kInRegisters)
      kept[r][half] = updated(kept[r][half]);
    else
      updated(F32x16::load(c + r * 32 + half * kTileN)).store(c + r * 32 + half * kTileN);
  }
  NUMASERVE_INLINE void store() const {
    if constexpr (kInRegisters)
      unrolled<2 * kRows>([&]<int i>() NUMASERVE_INLINE { kept[i / 2][i % 2].store(c + 16 * i); });
  }
};

// Adds a group's part to the results.
template <class Codes, Offsets kOffsets, int kRows, class Sums>
NUMASERVE_INLINE inline void add_group(const GroupPass& p, int64_t group, const int8_t* const (&x)[kRows],
                                       const Sums (&sums)[kRows][2], GroupResults<kRows>& results) {
  const std::byte* record = p.records + group * p.layout.bytes;
  unrolled<2>([&]<int half>() NUMASERVE_INLINE {
    const GroupColumns scales = group_columns<Codes>(p.g.b, p.layout, record, half);
    unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
      results.template update<r, half>([&](F32x16 before) NUMASERVE_INLINE {
        if constexpr (kWholeNumbers<Codes>)
          return with_group(kOffsets, scales, group_scale(x[r], group), {_mm512_cvtepi32_ps(sums[r][half].v)}, before);
        else
          return with_values(kOffsets, scales, Codes::kZero, group_total(p.g, p.scratch, p.row_of(r), group),
                             {sums[r][half].v}, before);
      });
    });
  });
}

// A pass whose codes are widened in registers. `kAhead`: prefetches as many bytes ahead of each group as the group has.
template <class Codes, int kRows, bool kAhead, Offsets kOffsets>
NUMASERVE_FLAT [[gnu::noinline]] void code_pass(const GroupPass& p, float* c) {
  using Line = CodeLine<Codes>;
  using Sums = typename SumsOf<typename Codes::Element>::type;
  GroupResults<kRows> results(c);
  const int8_t* x[kRows] = {};
  if constexpr (kWholeNumbers<Codes>)
    unrolled<kRows>([&]<int r>() NUMASERVE_INLINE { x[r] = group_scales(p.g, p.row + p.row_of(r)); });
  const ActivationWord* a = p.a;
  const std::byte* ahead = p.ahead;
  for (int64_t group = p.groups.begin; group < p.groups.end; ++group) {
    const std::byte* record = p.records + group * p.layout.bytes;
    Sums sums[kRows][2];
    // Sums begin with the correction for the constant zero of codes without offsets.
    if constexpr (kWholeNumbers<Codes> && kOffsets == Offsets::kNone)
      unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
        sums[r][0].v = sums[r][1].v = _mm512_set1_epi32(group_scale(x[r], group).minus8 * (Codes::kZero / 8));
      });
    // The lines of the two panels alternate: this is memory order, and gives two chains of sums even with a single row.
    for (int64_t line = 0; line < p.layout.lines; line += 2) {
      unrolled<4>([&]<int step>() NUMASERVE_INLINE {
        constexpr int half = step % 2, first = step / 2 * Line::kOperands;
        const Line columns = code_line<Codes>(p.layout, record, line + step / 2, half);
        if constexpr (kAhead) prefetch_first(ahead + (2 * line + step) * kLineBytes);
        unrolled<Line::kOperands>([&]<int i>() NUMASERVE_INLINE {
          unrolled<kRows>([&]<int r>()
                              NUMASERVE_INLINE { sums[r][half].add(a[(first + i) * kRows + r], columns.operand[i]); });
        });
      });
      a += 2 * Line::kOperands * kRows;
    }
    if constexpr (kAhead) {
      for (int64_t at = p.layout.scales; at < p.layout.bytes; at += kLineBytes) prefetch_first(ahead + at);
      ahead += p.layout.bytes;
    }
    add_group<Codes, kOffsets, kRows>(p, group, x, sums, results);
  }
  results.store();
}

// Widens a line of codes to lines of tiles.
inline void widen_line(Int4Groups, const std::byte* codes, std::byte* out) { widen_int4(codes, out); }
inline void widen_line(Int8Groups, const std::byte* codes, std::byte* out) { copy_line(codes, out); }
template <WeightFormat kOf, const NibbleBytes& kTable, int kZero>
inline void widen_line(TableGroups<kOf, kTable, kZero>, const std::byte* codes, std::byte* out) {
  widen_by(kTable, codes, out);
}
template <WeightFormat kOf, const NibbleTable& kTable, int kZero>
inline void widen_line(TableGroupValues<kOf, kTable, kZero>, const std::byte* codes, std::byte* out) {
  widen_nibble_values(kTable, codes, out);
}
inline void widen_line(Int8GroupValues, const std::byte* codes, std::byte* out) { widen_int8_values(codes, out); }
inline void widen_line(E4m3GroupValues, const std::byte* codes, std::byte* out) { widen_e4m3(codes, out); }

// Widens a line of codes of half a pair of panels.
template <class Codes>
NUMASERVE_INLINE inline void widen_codes(const GroupLayout& layout, const std::byte* record, int64_t line, int half,
                                         std::byte* out) {
  if constexpr (kScalesValues<Codes>) {
    const auto columns = code_line<Codes>(layout, record, line, half);
    for (int i = 0; i < columns.kOperands; ++i) _mm512_storeu_si512(out + i * kLineBytes, columns.operand[i]);
  } else {
    widen_line(Codes{}, record + (2 * line + half) * kLineBytes, out);
  }
}
// Widens codes of a panel of a group to bf16 tiles.
template <class Codes>
inline void widen_panel(const GroupLayout& layout, const std::byte* record, int half, std::byte* out) {
  for (int64_t line = 0; line < layout.lines; ++line)
    widen_codes<Codes>(layout, record, line, half, out + line * Codes::kLinesPerCode * kLineBytes);
}
template <class Codes>
inline int64_t widened_panel_bytes(int64_t group) {
  return group / kLineDepth<typename Codes::Element> * kLineBytes;
}

// A pass whose codes are in tiles, widened to bf16: [groups][2] panels. `kAhead`: prefetches a line at each step.
template <class Codes, int kRows, bool kAhead, Offsets kOffsets>
NUMASERVE_FLAT [[gnu::noinline]] void tile_pass(const GroupPass& p, const std::byte* widened, float* c) {
  constexpr int64_t kLine = kTileN * kLineDepth<bf16>;
  const int64_t panel = p.g.b.group / kLineDepth<bf16> * kLine;
  const auto* tiles = reinterpret_cast<const bf16*>(widened);
  GroupResults<kRows> results(c);
  const ActivationWord* a = p.a;
  const std::byte* ahead = p.ahead;
  for (int64_t group = p.groups.begin; group < p.groups.end; ++group, tiles += 2 * panel) {
    const int64_t k = group * p.g.b.group, left = p.g.b.depth - k < p.g.b.group ? p.g.b.depth - k : p.g.b.group;
    Fp32Sums sums[kRows][2];
    for (int64_t line = 0; line < left / kLineDepth<bf16>; line += kSteps) {
      unrolled<kSteps>([&]<int i>() NUMASERVE_INLINE {
        const __m512i first = _mm512_loadu_si512(tiles + (line + i) * kLine);
        const __m512i second = _mm512_loadu_si512(tiles + panel + (line + i) * kLine);
        if constexpr (kAhead) prefetch_first(ahead + (line + i) * kLineBytes);
        unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
          sums[r][0].add(a[i * kRows + r], first);
          sums[r][1].add(a[i * kRows + r], second);
        });
      });
      a += kSteps * kRows;
    }
    ahead += left / kLineDepth<bf16> * kLineBytes;
    const int8_t* const none[kRows] = {};
    add_group<Codes, kOffsets, kRows>(p, group, none, sums, results);
  }
  results.store();
}

// The maximum number of rows of a pass. Where groups end often or need much scaling, results must stay in registers
// with the sums. The set gives a further limit. AMX takes only few rows this way, but up to eight at once: a second
// pass would widen again (measured with 8 rows, in groups of 32: 1.07 of the time).
inline constexpr int kMostAtOnce = kPacksRows ? 6 : 8;
template <class Codes>
inline constexpr int kMostCodeRows = kWholeNumbers<Codes> ? kMostAtOnce : kMostTogether;
template <class Codes>
inline int64_t most_together(const GemmArgs& g, int64_t rows) {
  if (g.b.group > 32) return kMostCodeRows<Codes>;
  return rows <= kMostAtOnce ? kMostAtOnce : 6;
}

}  // namespace
}  // namespace numaserve
