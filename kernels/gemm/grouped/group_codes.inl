// Weights in groups: their codes and scales, and the scaling of a group's sum. See grouped.inl.
#pragma once

#include <type_traits>

#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/simd/codes.h"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

// Forms that codes are converted to. For int8 activations: unsigned integers. For products in bf16: values, minus the
// zero for codes without offsets. `kLinesPerCode`: lines of tiles that a line of codes becomes.
struct Int4Groups {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  using Element = uint8_t;
  static constexpr int kLinesPerCode = 2, kZero = 8;
};
struct Int8Groups {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8Group;
  using Element = uint8_t;
  static constexpr int kLinesPerCode = 1, kZero = 128;
};
// Codes of 4 bits that a table converts: to integers, and to values.
template <WeightFormat kOf, const NibbleBytes& kBytes, int kMiddle>
struct TableGroups {
  static constexpr WeightFormat kFormat = kOf;
  static constexpr const NibbleBytes& kTable = kBytes;
  using Element = uint8_t;
  static constexpr int kLinesPerCode = 2, kZero = kMiddle;
};
template <WeightFormat kOf, const NibbleTable& kValues, int kMiddle = 0>
struct TableGroupValues {
  static constexpr WeightFormat kFormat = kOf;
  static constexpr const NibbleTable& kTable = kValues;
  using Element = bf16;
  static constexpr int kLinesPerCode = 4, kZero = kMiddle;
};
using Int4GroupValues = TableGroupValues<WeightFormat::kInt4, kInt4Values, 8>;
using Mxfp4Groups = TableGroups<WeightFormat::kMxfp4, kE2m1Bytes, kE2m1Zero>;  // twice the values
using Mxfp4GroupValues = TableGroupValues<WeightFormat::kMxfp4, kE2m1Values>;
using Mxfp4GroupTwice = TableGroupValues<WeightFormat::kMxfp4, kE2m1Twice>;  // integers, too
using Iq4Groups = TableGroups<WeightFormat::kIq4, kIq4Bytes, kIq4Zero>;
using Iq4GroupValues = TableGroupValues<WeightFormat::kIq4, kIq4Values>;
using Iq3Groups = TableGroups<WeightFormat::kIq3, kIq3Bytes, kIq3Zero>;
using Iq3GroupValues = TableGroupValues<WeightFormat::kIq3, kIq3Values>;
using Iq2Groups = TableGroups<WeightFormat::kIq2, kIq2Bytes, kIq2Zero>;
using Iq2GroupValues = TableGroupValues<WeightFormat::kIq2, kIq2Values>;
// Values of e2m1, multiplied by the scales of their columns.
struct Nvfp4GroupValues {
  static constexpr WeightFormat kFormat = WeightFormat::kNvfp4;
  static constexpr const NibbleTable& kTable = kE2m1Values;
  using Element = bf16;
  static constexpr int kLinesPerCode = 4, kZero = 0;
};
struct Int8GroupValues {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8Group;
  using Element = bf16;
  static constexpr int kLinesPerCode = 2, kZero = 128;
};
struct E4m3GroupValues {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  using Element = bf16;
  static constexpr int kLinesPerCode = 2, kZero = 0;
};
template <class Codes>
inline constexpr bool kWholeNumbers = sizeof(typename Codes::Element) == 1;

// Tiles take numbers below 2^-126 for zero. In the amx set, smaller scales of mxfp4 are therefore zero where
// activations are bf16: half of this one is a value.
inline constexpr float kLeastTilePower = 0x1p-125f;

// Whether scales belong to the values that codes are widened to.
template <class Codes>
inline constexpr bool kScalesValues = Codes::kFormat == WeightFormat::kNvfp4;
// Returns the scales, in such a format, of the columns of half a pair of panels at a line of codes, which has eight of
// k.
inline const uint8_t* line_scales(const GroupLayout& layout, const std::byte* record, int64_t line, int half) {
  return reinterpret_cast<const uint8_t*>(record + layout.scales) + (line / (kNvGroup / 8) * 2 + half) * kTileN;
}

// Returns the records of a pair of panels, one for each group.
inline const std::byte* pair_records(const PackedWeights& b, const GroupLayout& layout, int64_t panel) {
  return b.data + panel / 2 * ceil_div(b.depth, b.group) * layout.bytes;
}

// Scales and offsets of half a pair of panels.
struct GroupColumns {
  F32x16 scale, offset;
};

template <class Codes>
inline GroupColumns group_columns(const PackedWeights& b, const GroupLayout& layout, const std::byte* record,
                                  int half) {
  if constexpr (Codes::kFormat == WeightFormat::kFp8) {
    return {F32x16::load(reinterpret_cast<const float*>(record + layout.scales) + half * kTileN), F32x16::zero()};
  } else if constexpr (kScalesValues<Codes>) {
    return {F32x16::set1(1.0f), F32x16::zero()};
  } else if constexpr (Codes::kFormat == WeightFormat::kMxfp4) {
    const F32x16 scale = F32x16::load_powers(reinterpret_cast<const uint8_t*>(record + layout.scales) + half * kTileN);
    if constexpr (kPacksTiles && std::is_same_v<Codes, Mxfp4GroupValues>)
      return {scale.where_in(scale, kLeastTilePower, __builtin_inff(), F32x16::zero()), F32x16::zero()};
    constexpr bool kTwice = kWholeNumbers<Codes> || std::is_same_v<Codes, Mxfp4GroupTwice>;
    return {kTwice ? scale * F32x16::set1(0.5f) : scale, F32x16::zero()};
  } else {
    const auto at = [&](int64_t where) {
      return F32x16::load_half(reinterpret_cast<const uint16_t*>(record + where) + half * kTileN);
    };
    return {at(layout.scales), b.offsets == Offsets::kNone ? F32x16::zero() : at(layout.offsets)};
  }
}

// Returns the scales of the groups of a row of quantized activations, which follow its values.
inline const int8_t* group_scales(const GemmArgs& g, int64_t row) {
  return static_cast<const int8_t*>(g.a) + row * g.lda + g.b.depth;
}
inline GroupScale group_scale(const int8_t* scales, int64_t group) {
  GroupScale x;
  __builtin_memcpy(&x, scales + group * static_cast<int64_t>(sizeof(x)), sizeof(x));
  return x;
}

// Returns c plus a group's part. `sum` is of integers below 2^22; the constant zero of codes without offsets is already
// subtracted.
inline F32x16 with_group(Offsets offsets, const GroupColumns& columns, const GroupScale& x, F32x16 sum, F32x16 c) {
  if (offsets == Offsets::kZeros) sum = sum - columns.offset * F32x16::set1(x.total);
  const F32x16 result = F32x16::fma(sum * F32x16::set1(x.scale), columns.scale, c);
  return offsets == Offsets::kMinima ? F32x16::fma(F32x16::set1(x.scaled_total), columns.offset, result) : result;
}

// The same for values and activations in bf16; the activations sum up to `total` in this group. `zero` is already
// subtracted from the codes.
inline F32x16 with_values(Offsets offsets, const GroupColumns& columns, int zero, float total, F32x16 sum, F32x16 c) {
  const F32x16 constant = F32x16::set1(static_cast<float>(zero)), x = F32x16::set1(total);
  if (offsets == Offsets::kZeros) sum = F32x16::fma(constant - columns.offset, x, sum);
  const F32x16 result = F32x16::fma(sum, columns.scale, c);
  if (offsets != Offsets::kMinima) return result;
  return F32x16::fma(x, F32x16::fma(columns.scale, constant, columns.offset), result);
}

// Sums the activations of groups [begin, end) for each row, if offsets need these totals.
inline void sum_groups(const GemmArgs& g, int64_t row, int64_t rows, Range groups, GemmScratch& scratch) {
  if (g.b.offsets == Offsets::kNone) return;
  scratch.first_group = groups.begin;
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    const int64_t begin = group * g.b.group;
    const int64_t end = begin + g.b.group < g.b.depth ? begin + g.b.group : g.b.depth;
    for (int64_t r = 0; r < rows; ++r) {
      const bf16* a = static_cast<const bf16*>(g.a) + (row + r) * g.lda;
      F32x16 total = F32x16::zero();
      for (int64_t k = begin; k < end; k += 16) total = total + F32x16::load(a + k);
      scratch.totals[(group - groups.begin) * rows + r] = total.sum();
    }
  }
  scratch.total_rows = rows;
}

// `r`: the row within the block that was given to `sum_groups`.
inline float group_total(const GemmArgs& g, const GemmScratch& scratch, int64_t r, int64_t group) {
  if (g.b.offsets == Offsets::kNone) return 0.0f;
  return scratch.totals[(group - scratch.first_group) * scratch.total_rows + r];
}

}  // namespace
}  // namespace numaserve
