// Activations packed for tile products of grouped weights: copied tile by tile, with the factors of the groups' sums
// side by side.
//
// Groups of 32 in int8 fill half of a tile, whose product takes as long as that of a whole tile. They are multiplied in
// bf16 instead: bf16 holds integers of eight bits, and fp32 their sums, so the bits equal those of sums in int32. Such
// sums need fewer instructions to scale, and scaling is the bottleneck.
#pragma once

#include <immintrin.h>

#if !defined(NUMASERVE_TILE_HEADER)  // read by itself
#define NUMASERVE_TILE_HEADER "kernels/gemm/tiles/tile_amx.h"
#endif

#include "kernels/gemm/grouped/group_codes.inl"
#include "kernels/gemm/packed_tiles_amx.inl"

namespace numaserve {
namespace {

// Measured: groups of 64 and 128 take 1.2 to 1.4 times as long in bf16 as in int8, groups of 32 take 0.75 times as
// long.
inline bool multiplied_as_values(int64_t group) { return group < kTileDepth<int8_t>; }

// Values for codes that are otherwise converted to unsigned integers. With offsets, no zero is subtracted from codes
// that have a table.
template <class Codes, Offsets kOffsets>
struct ValuesOf;
template <>
struct ValuesOf<Int4Groups, Offsets::kNone> {
  using type = Int4GroupValues;
};
template <Offsets kOffsets>
struct ValuesOf<Int4Groups, kOffsets> {
  using type = TableGroupValues<WeightFormat::kInt4, kInt4Codes>;
};
template <Offsets kOffsets>
struct ValuesOf<Int8Groups, kOffsets> {
  using type = Int8GroupValues;
};
template <>
struct ValuesOf<Mxfp4Groups, Offsets::kNone> {
  using type = Mxfp4GroupTwice;
};
template <>
struct ValuesOf<Iq4Groups, Offsets::kNone> {
  using type = Iq4GroupValues;
};
template <>
struct ValuesOf<Iq3Groups, Offsets::kNone> {
  using type = Iq3GroupValues;
};
template <>
struct ValuesOf<Iq2Groups, Offsets::kNone> {
  using type = Iq2GroupValues;
};

// The activations of some groups: [row tiles][k tiles][rows of a tile][64 bytes]. For quantized activations also each
// group's scale, total and scaled total, otherwise only its total: [planes][groups][rows].
struct PackedGroups {
  const std::byte* data;
  int64_t tile, strip;  // bytes of a k tile of a row tile, and of a row tile
  int64_t first;        // the first group
  const float* factors;
  int64_t plane;  // floats of a plane
};

// `tiles`: k tiles of a group.
inline PackedGroups packed_groups(const GemmScratch& scratch, int64_t rows, int64_t tiles) {
  const int64_t tile = (rows < kTileRows ? rows : kTileRows) * kLineBytes;
  return {scratch.rows, tile, scratch.words * tile, scratch.first_group, scratch.totals, scratch.words / tiles * rows};
}

// Converts 32 values in int8 to bf16. In each four, the second and third are exchanged.
inline constexpr auto kLineOfValues = [](const std::byte* from, std::byte* to) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), order);
  const auto half = [](__m128i some) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(some)); };
  const __m512bh line =
      _mm512_cvtne2ps_pbh(half(_mm256_extracti128_si256(bytes, 1)), half(_mm256_castsi256_si128(bytes)));
  __builtin_memcpy(to, &line, sizeof(line));
};

static_assert(3 * kPackedRowBytes / kLineBytes <= kMostTotals);

// Copies the scales of one row after the other, a cache line at a time, since all rows may lie in the same sets of the
// first level.
inline void copy_scales(const GemmArgs& g, int64_t row, int64_t rows, Range groups, float* to) {
  constexpr int64_t kTogether = kLineBytes / static_cast<int64_t>(sizeof(GroupScale));
  const int64_t plane = (groups.end - groups.begin) * rows;
  for (int64_t first = groups.begin; first < groups.end; first += kTogether, to += kTogether * rows) {
    const int64_t end = first + kTogether < groups.end ? first + kTogether : groups.end;
    for (int64_t r = 0; r < rows; ++r) {
      const int8_t* scales = group_scales(g, row + r);
      for (int64_t group = first; group < end; ++group) {
        const GroupScale x = group_scale(scales, group);
        float* at = to + (group - first) * rows + r;
        at[0] = x.scale;
        at[plane] = x.total;
        at[2 * plane] = x.scaled_total;
      }
    }
  }
}

// The number of k tiles of a group of codes.
template <class Codes>
inline int64_t tiles_of_group(int64_t group) {
  if (kWholeNumbers<Codes> && !multiplied_as_values(group)) return group / kTileDepth<int8_t>;
  return group / kTileDepth<bf16>;
}

// Packs some groups of `rows` rows, for which tile registers are configured. A group that is cut short is padded with
// zeros, which change no sum.
template <class Codes>
inline void pack_groups(const GemmArgs& g, int64_t row, int64_t rows, Range groups, GemmScratch& scratch) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(typename Codes::Element));
  const int64_t begin = groups.begin * g.b.group, end = groups.end * g.b.group;
  const int64_t depth = (end < g.b.depth ? end : g.b.depth) - begin;
  const auto* from = static_cast<const std::byte*>(g.a) + (row * g.lda + begin) * kBytes;
  const auto copy = [&]<int64_t kLine>(auto&& copy_line) {
    copy_tiles<kLine>(from, g.lda * kBytes, rows, depth * kBytes / kLine, scratch.words, scratch.rows, copy_line);
  };
  tile_begin(rows);
  scratch.first_group = groups.begin;
  scratch.words = (groups.end - groups.begin) * tiles_of_group<Codes>(g.b.group);
  if constexpr (kWholeNumbers<Codes>) {
    copy_scales(g, row, rows, groups, scratch.totals);
    if (multiplied_as_values(g.b.group)) return copy.template operator()<kTileDepth<bf16>>(kLineOfValues);
  }
  copy.template operator()<kLineBytes>(kWholeLine);
}

}  // namespace
}  // namespace numaserve
