// Products with grouped weights as the avx512 set does them, on packed rows. Codes are widened in registers with few
// rows, where tiles in the cache would be written for one reading, and with any number of rows where widening takes
// next to nothing; otherwise to tiles. The bits are those of add_groups: sums inside a group are exact, or the same
// chain.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/group_codes.inl"
#include "kernels/gemm/packed_rows_avx512.inl"
#include "kernels/gemm/sums_avx512.h"
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
struct CodeLine<Int8GroupValues> {
  static constexpr int kOperands = 2;
  __m512i operand[kOperands];
  NUMASERVE_INLINE explicit CodeLine(__m512i codes) { widen_int8_values(codes, operand[0], operand[1]); }
};

// A pass of some rows by the groups of a pair of panels.
struct GroupPass {
  const GemmArgs& g;
  const GroupLayout& layout;
  const GemmScratch& scratch;
  const std::byte* records;
  Range groups;
  int64_t row, first, rows;  // the block's first row, the pass's first row in it, and the rows that are left
  const ActivationWord* a;   // packed, from the first group on
  const std::byte* ahead;    // what is fetched while this is multiplied

  // Rows that fill up the height count as the last one.
  int64_t row_of(int r) const { return first + (r < rows ? r : rows - 1); }
};

// The results of a pass: in registers, where sums leave some free, or in the first-level cache.
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

// What a group adds to the results.
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

// Calls `work` with the matrix's kind of offsets as a constant.
template <class Codes, class Work>
inline void with_offsets(Offsets offsets, Work&& work) {
  if constexpr (may_have_offsets(Codes::kFormat)) {
    if (offsets == Offsets::kZeros) return work.template operator()<Offsets::kZeros>();
    if (offsets == Offsets::kMinima) return work.template operator()<Offsets::kMinima>();
  }
  work.template operator()<Offsets::kNone>();
}

// Codes are widened in registers. `kAhead`: as many bytes ahead of each group are fetched as it has.
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
    // They begin with what the constant zero of codes without offsets takes off.
    if constexpr (kWholeNumbers<Codes> && kOffsets == Offsets::kNone)
      unrolled<kRows>([&]<int r>() NUMASERVE_INLINE {
        sums[r][0].v = sums[r][1].v = _mm512_set1_epi32(group_scale(x[r], group).minus8 * (Codes::kZero / 8));
      });
    // The two panels' lines lie side by side: in memory order, and two chains of sums at once with a single row.
    for (int64_t line = 0; line < p.layout.lines; line += 2) {
      unrolled<4>([&]<int step>() NUMASERVE_INLINE {
        constexpr int half = step % 2, first = step / 2 * Line::kOperands;
        const Line columns(_mm512_loadu_si512(record + (2 * line + step) * kLineBytes));
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

// Codes are in tiles, widened to bf16: [groups][2] panels. `kAhead`: a line is fetched each step.
template <class Codes, int kRows, bool kAhead, Offsets kOffsets>
NUMASERVE_FLAT [[gnu::noinline]] void tile_pass(const GroupPass& p, const bf16* tiles, float* c) {
  constexpr int64_t kLine = kTileN * kLineDepth<bf16>;
  const int64_t panel = p.g.b.group / kLineDepth<bf16> * kLine;
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

// The most rows of a pass: as few, where groups end often or have much to scale, that results stay in registers with
// the sums; no more than the set gives them; and all of them where those are few more: a second pass would widen again
// (measured with AMX and 8 rows, in groups of 32: 1.07 of the time).
template <class Codes>
inline constexpr bool kOnePass = kRowsInRegisters<typename Codes::Element> <= 8;
template <class Codes>
inline constexpr int kMostCodeRows = kOnePass<Codes>        ? kRowsInRegisters<typename Codes::Element>
                                     : kWholeNumbers<Codes> ? 6
                                                            : kMostTogether;
template <class Codes>
inline int64_t most_together(const GemmArgs& g) {
  return g.b.group <= 32 && !kOnePass<Codes> ? 6 : kMostCodeRows<Codes>;
}

// Calls `pass(height, GroupPass)` for the passes of all rows by some groups, with what each is to fetch: `next`, if
// there is more than one pass, in the first of them.
template <class Codes, class Pass>
inline void for_passes(const GemmArgs& g, const GroupLayout& layout, int64_t row, int64_t rows, int64_t panel,
                       Range groups, const std::byte* next, const GemmScratch& scratch, Pass&& pass) {
  const int64_t word = groups.begin * g.b.group / kLineDepth<typename Codes::Element>;
  const int together = scratch.together;
  for (int64_t r = 0; r < rows; r += together) {
    const int height = pass_height(rows, r, together);
    pass(height, GroupPass{g, layout, scratch, pair_records(g.b, layout, panel), groups, row, r, rows - r,
                           packed_pass(scratch, r, height, word), next});
  }
}

// Adds groups [begin, end) of one pair of panels to `c` [rows][32].
template <class Codes>
inline void add_groups_in_registers(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups,
                                    const GemmScratch& scratch, float* c) {
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const std::byte* records = pair_records(g.b, layout, panel);
  const bool alone = rows <= scratch.together;
  // A block of weights stays in the first level while the rows pass by it.
  const int64_t wanted = ceil_div(g.blocking.block_tiles * kTileBytes, layout.bytes);
  const int64_t block = alone ? groups.end - groups.begin : wanted;
  for (int64_t first = groups.begin; first < groups.end; first += block) {
    const Range some{first, groups.end - first < block ? groups.end : first + block};
    const std::byte* next = records + some.begin * layout.bytes + (alone ? kAheadBytes : block * layout.bytes);
    for_passes<Codes>(g, layout, row, rows, panel, some, next, scratch, [&](int height, const GroupPass& pass) {
      with_height<kMostCodeRows<Codes>>(height, [&]<int kRows>() {
        with_offsets<Codes>(g.b.offsets, [&]<Offsets kOffsets>() {
          // The first pass fetches the next block.
          if (kRows >= kFewestFetched && pass.first == 0)
            code_pass<Codes, kRows, (kRows >= kFewestFetched), kOffsets>(pass, c + pass.first * 32);
          else
            code_pass<Codes, kRows, false, kOffsets>(pass, c + pass.first * 32);
        });
      });
    });
  }
}

// The same of a block of groups whose codes are in tiles.
template <class Codes>
inline void multiply_scaled(const GemmArgs& g, const GroupLayout& layout, int64_t row, int64_t rows, int64_t panel,
                            Range groups, const GemmScratch& scratch, float* c) {
  const auto* tiles = reinterpret_cast<const bf16*>(scratch.tiles);
  const std::byte* next = pair_records(g.b, layout, panel) + groups.end * layout.bytes;
  for_passes<Codes>(g, layout, row, rows, panel, groups, next, scratch, [&](int height, const GroupPass& pass) {
    with_height(height, [&]<int kRows>() {
      with_offsets<Codes>(g.b.offsets, [&]<Offsets kOffsets>() {
        if (kRows > 4 && pass.first == 0)
          tile_pass<Codes, kRows, (kRows > 4), kOffsets>(pass, tiles, c + pass.first * 32);
        else
          tile_pass<Codes, kRows, false, kOffsets>(pass, tiles, c + pass.first * 32);
      });
    });
  });
}

}  // namespace
}  // namespace numaserve
