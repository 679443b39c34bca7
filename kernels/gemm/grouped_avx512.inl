// Products with grouped weights whose codes are widened in registers: what the avx512 set does with few rows, where
// tiles in the cache would be written for one reading, and with any number of rows where widening takes next to
// nothing. The bits are those of add_groups: sums inside a group are exact, or the same chain.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/group_codes.inl"
#include "kernels/gemm/sums_avx512.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

// A line of codes as operands of dot products, in k order.
template <class>
struct CodeLine;
template <>
struct CodeLine<Int4Groups> {
  static constexpr int kOperands = 2;
  __m512i operand[kOperands];
  explicit CodeLine(__m512i codes)
      : operand{_mm512_and_si512(codes, low()), _mm512_and_si512(_mm512_srli_epi16(codes, 4), low())} {}
  static __m512i low() { return _mm512_set1_epi8(15); }
};
template <WeightFormat kOf, const NibbleBytes& kTable, int kZero>
struct CodeLine<TableGroups<kOf, kTable, kZero>> : CodeLine<Int4Groups> {
  explicit CodeLine(__m512i codes) : CodeLine<Int4Groups>(codes) {
    const __m512i table = _mm512_broadcast_i32x4(kTable.load());
    for (__m512i& each : operand) each = _mm512_shuffle_epi8(table, each);
  }
};
template <>
struct CodeLine<Int8Groups> {
  static constexpr int kOperands = 1;
  __m512i operand[kOperands];
  explicit CodeLine(__m512i codes) : operand{codes} {}
};
template <>
struct CodeLine<E4m3GroupValues> {
  static constexpr int kOperands = 2;
  __m512i operand[kOperands];
  explicit CodeLine(__m512i codes) { widen_e4m3(codes, operand[0], operand[1]); }
};

template <WeightFormat kOf, const NibbleTable& kTable, int kZero>
struct CodeLine<TableGroupValues<kOf, kTable, kZero>> {
  static constexpr int kOperands = 4;
  __m512i operand[kOperands];
  explicit CodeLine(__m512i codes) { widen_nibble_values(kTable, codes, operand); }
};
template <>
struct CodeLine<Int8GroupValues> {
  static constexpr int kOperands = 2;
  __m512i operand[kOperands];
  explicit CodeLine(__m512i codes) { widen_int8_values(codes, operand[0], operand[1]); }
};

// The sums of one group: they begin with what the constant zero of codes without offsets takes off.
template <class Codes>
inline typename SumsOf<typename Codes::Element>::type first_sums(const GemmArgs& g, const GroupScale& x) {
  typename SumsOf<typename Codes::Element>::type sums;
  if constexpr (kWholeNumbers<Codes>)
    if (g.b.offsets == Offsets::kNone) sums.v = _mm512_set1_epi32(x.minus8 * (Codes::kZero / 8));
  return sums;
}

// Rows first ... of the block that begins at `row`.
template <class Codes, int kRows>
inline void group_rows(const GemmArgs& g, int64_t row, int64_t first, int64_t panel, Range groups, bool fresh,
                       const GemmScratch& scratch, float* c) {
  using T = typename Codes::Element;
  using Line = CodeLine<Codes>;
  const GroupLayout layout = group_layout(Codes::kFormat, g.b.group, g.b.offsets);
  const std::byte* records = pair_records(g.b, layout, panel);
  F32x16 result[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half)
      result[r][half] = fresh ? F32x16::zero() : F32x16::load(c + (first + r) * 32 + half * kTileN);
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    const std::byte* record = records + group * layout.bytes;
    const T* a = static_cast<const T*>(g.a) + (row + first) * g.lda + group * g.b.group;
    GroupScale x[kRows] = {};
    if constexpr (kWholeNumbers<Codes>)
      for (int r = 0; r < kRows; ++r) x[r] = group_scale(g, row + first + r, group);
    // The two panels' lines lie side by side: in memory order, and two chains of sums at once with a single row.
    decltype(first_sums<Codes>(g, x[0])) sums[kRows][2];
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = first_sums<Codes>(g, x[r]);
#pragma GCC unroll 2
    for (int64_t line = 0; line < layout.lines; ++line) {
      for (int half = 0; half < 2; ++half) {
        const Line columns(_mm512_loadu_si512(record + (2 * line + half) * kLineBytes));
        for (int i = 0; i < Line::kOperands; ++i)
          for (int r = 0; r < kRows; ++r) {
            int bits;
            __builtin_memcpy(&bits, a + r * g.lda + (line * Line::kOperands + i) * kLineDepth<T>, sizeof(bits));
            sums[r][half].add(bits, columns.operand[i]);
          }
      }
    }
    for (int half = 0; half < 2; ++half) {
      const GroupColumns scales = group_columns<Codes>(g.b, layout, record, half);
      for (int r = 0; r < kRows; ++r) {
        F32x16& to = result[r][half];
        if constexpr (kWholeNumbers<Codes>)
          to = with_group(g.b.offsets, scales, x[r], {_mm512_cvtepi32_ps(sums[r][half].v)}, to);
        else
          to = with_values(g.b.offsets, scales, Codes::kZero, group_total(g, scratch, first + r, group),
                           {sums[r][half].v}, to);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half) result[r][half].store(c + (first + r) * 32 + half * kTileN);
}

// False where this is not the way to do it.
template <class Codes>
inline bool add_groups_in_registers(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel, Range groups,
                                    bool fresh, const GemmScratch& scratch, float* c) {
  // A group may be cut short by the padding of bf16 activations. Without groups there would be nothing to begin `c`
  // with.
  if (rows > kRowsInRegisters<typename Codes::Element> || groups.end * g.b.group > g.b.depth) return false;
  if (groups.begin == groups.end) return false;
  // A block of weights stays in the first level while the rows pass by it.
  const int64_t bytes = group_layout(Codes::kFormat, g.b.group, g.b.offsets).bytes;
  const int64_t block = rows > 6 ? ceil_div(g.blocking.block_tiles * 2 * kTileBytes, bytes) : groups.end;
  for (int64_t first = groups.begin; first < groups.end; first += block) {
    const Range some{first, groups.end - first < block ? groups.end : first + block};
    const auto pass = [&]<int kRows>(int64_t r) {
      group_rows<Codes, kRows>(g, row, r, panel, some, fresh && first == groups.begin, scratch, c);
      return kRows;
    };
    int64_t r = 0;
    while (rows - r >= 6) r += pass.template operator()<6>(r);
    if (rows - r >= 4) r += pass.template operator()<4>(r);
    if (rows - r >= 2) r += pass.template operator()<2>(r);
    if (rows - r >= 1) pass.template operator()<1>(r);
  }
  return true;
}

// A block of groups whose codes are in tiles by some rows: sums and results stay in registers. Through memory, as in
// other sets, groups of 32 would take a third longer. `kGroup`: 0 if the group's size is not known beforehand; it is
// for the smallest, whose loop is then unrolled.
template <class Codes, int kGroup, int kRows>
inline void scaled_tile_rows(const GroupedBlock<Codes>& b, int64_t first, float* c) {
  using T = typename Codes::Element;
  const GemmArgs& g = b.g;
  F32x16 result[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half) result[r][half] = F32x16::load(c + (first + r) * 32 + half * kTileN);
  for (int64_t i = 0; i < b.count; ++i) {
    const int64_t group = b.first + i, k = group * g.b.group;
    const int64_t left = kGroup > 0 ? kGroup : g.b.depth - k < g.b.group ? g.b.depth - k : g.b.group;
    const T* a = static_cast<const T*>(g.a) + (b.row + first) * g.lda + k;
    const T* tiles = b.tiles + 2 * i * b.panel_elements;
    Fp32Sums sums[kRows][2];
#pragma GCC unroll 4
    for (int64_t line = 0; line < left / kLineDepth<T>; ++line) {
      const __m512i columns[2] = {_mm512_loadu_si512(tiles + line * kTileN * kLineDepth<T>),
                                  _mm512_loadu_si512(tiles + b.panel_elements + line * kTileN * kLineDepth<T>)};
      for (int r = 0; r < kRows; ++r) {
        int bits;
        __builtin_memcpy(&bits, a + r * g.lda + line * kLineDepth<T>, sizeof(bits));
        for (int half = 0; half < 2; ++half) sums[r][half].add(bits, columns[half]);
      }
    }
    for (int half = 0; half < 2; ++half) {
      const GroupColumns scales = group_columns<Codes>(g.b, b.layout, b.records + group * b.layout.bytes, half);
      for (int r = 0; r < kRows; ++r) {
        F32x16& to = result[r][half];
        const float total = group_total(g, b.scratch, first + r, group);
        to = with_values(g.b.offsets, scales, Codes::kZero, total, {sums[r][half].v}, to);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half) result[r][half].store(c + (first + r) * 32 + half * kTileN);
}

template <class Codes, int kGroup>
inline void multiply_scaled(const GroupedBlock<Codes>& b, int64_t rows, float* c) {
  const auto pass = [&]<int kRows>(int64_t r) {
    scaled_tile_rows<Codes, kGroup, kRows>(b, r, c);
    return kRows;
  };
  int64_t r = 0;
  while (rows - r >= 6) r += pass.template operator()<6>(r);
  while (rows - r >= 2) r += pass.template operator()<2>(r);
  if (rows - r == 1) pass.template operator()<1>(r);
}

}  // namespace
}  // namespace numaserve
