#include "kernels/runtime/packed_matrix.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/runtime/memory.h"

// The least that any instruction set needs, on these functions only: were the whole file compiled so, the standard
// library's inline functions in it could become the copies that code for the baseline calls.
#define NUMASERVE_AVX2 __attribute__((target("avx2,f16c")))

namespace numaserve {
namespace {

constexpr int64_t kBlock = 32;  // values in a block of the GGUF formats

struct Format {
  std::string_view name;
  int64_t block;  // values
  int64_t bytes;  // of a block
};

constexpr Format kFormats[] = {{"bf16", 1, 2},       {"f16", 1, 2},        {"f32", 1, 4},
                               {"q8_0", kBlock, 34}, {"q4_0", kBlock, 18}, {"q4_1", kBlock, 20}};

const Format& format_of(SourceType type) { return kFormats[static_cast<int>(type)]; }

bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
T read(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

NUMASERVE_AVX2 float half_to_float(const uint8_t* p) { return _cvtsh_ss(read<uint16_t>(p)); }

NUMASERVE_AVX2 void decode_block(SourceType type, const uint8_t* p, bf16* out) {
  const float scale = half_to_float(p);
  if (type == SourceType::kQ8_0) {
    for (int i = 0; i < kBlock; ++i) out[i] = to_bf16(scale * static_cast<float>(static_cast<int8_t>(p[2 + i])));
    return;
  }
  const bool has_minimum = type == SourceType::kQ4_1;
  const float minimum = has_minimum ? half_to_float(p + 2) : 0.0f;
  const uint8_t* nibbles = p + (has_minimum ? 4 : 2);
  const int zero = has_minimum ? 0 : 8;
  bf16 values[16];
  for (int q = 0; q < 16; ++q) values[q] = to_bf16(scale * static_cast<float>(q - zero) + minimum);
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = values[nibbles[i] & 15];
    out[i + kBlock / 2] = values[nibbles[i] >> 4];
  }
}

// Values [first, first + count) of a row as bf16; `out` has room for a block more on either side.
NUMASERVE_AVX2 void decode_row(SourceType type, const uint8_t* row, int64_t first, int64_t count, bf16* out) {
  switch (type) {
    case SourceType::kBf16:
      std::memcpy(out, row + 2 * first, static_cast<size_t>(count) * 2);
      return;
    case SourceType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(half_to_float(row + 2 * (first + i)));
      return;
    case SourceType::kF32:
      for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(read<float>(row + 4 * (first + i)));
      return;
    default:
      for (int64_t i = 0; i < count; i += kBlock)
        decode_block(type, row + (first + i) / kBlock * format_of(type).bytes, out + i);
  }
}

// What a line of a tile has of one column: four bytes of consecutive k.
using Word = uint32_t;
constexpr int kLineWords = kTileN;

// Eight rows of eight words become eight lines of eight columns.
NUMASERVE_AVX2 void transpose_words(const Word* from, int64_t stride, Word* to) {
  __m256 row[8], pair[8], quad[8];
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + i * stride));
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    float *upper = reinterpret_cast<float*>(to + i * kLineWords), *lower = upper + 4 * kLineWords;
    _mm256_storeu_ps(upper, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(lower, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

// Columns [first, first + count) of a tile; `from` is the row that becomes the first of them.
NUMASERVE_AVX2 void write_tile(const Word* from, int64_t stride, int first, int count, Word* tile) {
  if (count == kTileN) {
    for (int row = 0; row < kTileN; row += 8)
      for (int line = 0; line < kLines; line += 8)
        transpose_words(from + row * stride + line, stride, tile + line * kLineWords + row);
    return;
  }
  for (int row = 0; row < count; ++row)
    for (int line = 0; line < kLines; ++line) tile[line * kLineWords + first + row] = from[row * stride + line];
}

struct Quantised {
  float scale;
  int32_t sum;
};

// A row to int8, in place: the bytes take the first half of the row. `count` is a multiple of 32.
NUMASERVE_AVX2 Quantised quantise_row(bf16* row, int64_t count) {
  const auto load = [row](int64_t i) NUMASERVE_AVX2 {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  };
  __m256 peaks = _mm256_setzero_ps();
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int64_t i = 0; i < count; i += 8) peaks = _mm256_max_ps(peaks, _mm256_andnot_ps(sign, load(i)));
  float lanes[8], peak = 0.0f;
  _mm256_storeu_ps(lanes, peaks);
  for (const float lane : lanes) peak = std::max(peak, lane);
  const __m256 factor = _mm256_set1_ps(peak > 0.0f ? 127.0f / peak : 0.0f);
  auto* out = reinterpret_cast<int8_t*>(row);
  __m256i sums = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(load(i), factor));
    sums = _mm256_add_epi32(sums, whole);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), _mm_packs_epi16(words, words));
  }
  int32_t parts[8], sum = 0;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), sums);
  for (const int32_t part : parts) sum += part;
  return {peak / 127.0f, sum};
}

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

void check_source(const PackSource& s, int64_t k) {
  const Format& format = format_of(s.type);
  require(s.cols >= 0 && s.cols % format.block == 0, "pack: the row length is not a whole number of blocks");
  require(s.first_col >= 0 && s.first_col % format.block == 0 && s.first_col + k <= s.cols,
          "pack: the columns do not lie in the tensor, on block boundaries");
  const int64_t row_bytes = s.cols / format.block * format.bytes;
  const int64_t rows_there = row_bytes > 0 ? s.bytes / row_bytes : 0;
  for (int64_t i = 0; i < s.num_rows; ++i)
    require(s.rows[i] >= 0 && s.rows[i] < rows_there, "pack: a row lies outside the tensor");
}

}  // namespace

SourceType source_type(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormats); ++i)
    if (kFormats[i].name == name) return static_cast<SourceType>(i);
  throw std::invalid_argument("pack: unknown source format '" + std::string(name) + "'");
}

namespace {
constexpr std::string_view kWeightFormats[] = {"bf16", "int8"};
}

WeightFormat weight_format(std::string_view name) {
  for (size_t i = 0; i < std::size(kWeightFormats); ++i)
    if (kWeightFormats[i] == name) return static_cast<WeightFormat>(i);
  throw std::invalid_argument("unknown weight format '" + std::string(name) + "'");
}

std::string_view weight_format_name(WeightFormat format) { return kWeightFormats[static_cast<int>(format)]; }

PackedMatrix::PackedMatrix(int64_t n, int64_t k, WeightFormat format)
    : format_(format), n_(n), k_(k), n_panels_(round_up(n, kPad) / kTileN), k_tiles_(ceil_div(k, tile_depth(format))) {
  require(n >= 0 && k >= 0, "a packed matrix has no negative size");
  memory_ = allocate_pooled(static_cast<size_t>(bytes()));
}

void PackedMatrix::pack(Team& team, const PackSource& source, const PackTarget& target) {
  check_source(source, k_);
  require(target.dst_row >= 0 && target.panel_stride > 0 && target.panel_offset >= 0 &&
              target.panel_offset < target.panel_stride,
          "pack: impossible target");
  if (source.num_rows == 0 || k_ == 0) return;
  const int64_t end_row = target.dst_row + source.num_rows;
  const int64_t first_panel = target.dst_row / kTileN, last_panel = (end_row - 1) / kTileN;
  require(target.panel_stride > 1 || end_row <= n_, "pack: the rows do not fit the matrix");
  require(last_panel * target.panel_stride + target.panel_offset < n_panels_, "pack: the rows do not fit the matrix");
  const int64_t row_bytes = source.cols / format_of(source.type).block * format_of(source.type).bytes;
  const int64_t depth = k_tiles_ * tile_depth(format_), row_room = depth + kBlock;
  // Two consecutive panels at a time, so that a thread's writes are long runs.
  const int64_t units = ceil_div(last_panel - first_panel + 1, 2);

  team.parallel([&](int thread) {
    const Range mine = split(units, team.size(), thread);
    std::vector<bf16> values(static_cast<size_t>(kTileN * row_room));
    for (int64_t panel = first_panel + mine.begin * 2; panel < first_panel + mine.end * 2 && panel <= last_panel;
         ++panel) {
      const int64_t low = std::max(panel * kTileN, target.dst_row), high = std::min((panel + 1) * kTileN, end_row);
      const int64_t to = panel * target.panel_stride + target.panel_offset;
      for (int64_t row = low; row < high; ++row) {
        bf16* out = values.data() + (row - low) * row_room;
        decode_row(source.type, source.data + source.rows[row - target.dst_row] * row_bytes, source.first_col, k_, out);
        std::fill(out + k_, out + depth, bf16{0});
        if (format_ == WeightFormat::kInt8) quantise(out, depth, to * kTileN + row % kTileN);
      }
      const int first = static_cast<int>(low % kTileN), count = static_cast<int>(high - low);
      for (int64_t kt = 0; kt < k_tiles_; ++kt)
        write_tile(reinterpret_cast<const Word*>(values.data()) + kt * kLines, row_room / 2, first, count,
                   reinterpret_cast<Word*>(memory_.get() + tile_index(to, kt, k_tiles_) * kTileBytes));
    }
  });
}

void PackedMatrix::quantise(bf16* row, int64_t count, int64_t column) {
  const Quantised result = quantise_row(row, count);
  std::byte* scales = memory_.get() + tile_bytes();
  reinterpret_cast<float*>(scales)[column] = result.scale;
  reinterpret_cast<int32_t*>(scales)[padded_n() + column] = 128 * result.sum;
}

void PackedMatrix::unpack(float* out) const {
  for (int64_t row = 0; row < n_; ++row)
    for (int64_t col = 0; col < k_; ++col) {
      const int64_t depth = tile_depth(format_), line_depth = depth / kLines;
      const std::byte* tile = data() + tile_index(row / kTileN, col / depth, k_tiles_) * kTileBytes;
      const std::byte* word = tile + col % depth / line_depth * kLineBytes + row % kTileN * 4;
      if (format_ == WeightFormat::kInt8) {
        out[row * k_ + col] = scales()[row] * static_cast<float>(static_cast<int8_t>(word[col % line_depth]));
        continue;
      }
      bf16 value;
      std::memcpy(&value, word + col % line_depth * 2, sizeof(value));
      out[row * k_ + col] = std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
    }
}

}  // namespace numaserve
