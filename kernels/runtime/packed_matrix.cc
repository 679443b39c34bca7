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

// Eight rows of eight pairs become eight lines of eight columns: a transposition of 32-bit elements.
NUMASERVE_AVX2 void transpose_pairs(const bf16* from, int64_t stride, bf16* to) {
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
    _mm256_storeu_ps(reinterpret_cast<float*>(to + i * 32), _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + (i + 4) * 32), _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

// Rows [first, first + count) of a tile; `from` is the first of them.
NUMASERVE_AVX2 void write_tile(const bf16* from, int64_t stride, int first, int count, bf16* tile) {
  if (count == kTileN) {
    for (int row = 0; row < kTileN; row += 8)
      for (int pair = 0; pair < kTileK / 2; pair += 8)
        transpose_pairs(from + row * stride + pair * 2, stride, tile + pair * 32 + row * 2);
    return;
  }
  for (int row = 0; row < count; ++row)
    for (int pair = 0; pair < kTileK / 2; ++pair)
      std::memcpy(tile + pair * 32 + (first + row) * 2, from + row * stride + pair * 2, 2 * sizeof(bf16));
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

PackedMatrix::PackedMatrix(int64_t n, int64_t k)
    : n_(n), k_(k), n_panels_(round_up(n, kPad) / kTileN), k_tiles_(ceil_div(k, kTileK)) {
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
  const int64_t row_room = k_tiles_ * kTileK + kBlock;
  // Two consecutive panels at a time, so that a thread's writes are long runs.
  const int64_t units = ceil_div(last_panel - first_panel + 1, 2);

  team.parallel([&](int thread) {
    const Range mine = split(units, team.size(), thread);
    std::vector<bf16> values(static_cast<size_t>(kTileN * row_room));
    for (int64_t panel = first_panel + mine.begin * 2; panel < first_panel + mine.end * 2 && panel <= last_panel;
         ++panel) {
      const int64_t low = std::max(panel * kTileN, target.dst_row), high = std::min((panel + 1) * kTileN, end_row);
      for (int64_t row = low; row < high; ++row) {
        bf16* out = values.data() + (row - low) * row_room;
        decode_row(source.type, source.data + source.rows[row - target.dst_row] * row_bytes, source.first_col, k_, out);
        std::fill(out + k_, out + k_tiles_ * kTileK, bf16{0});
      }
      bf16* tiles = reinterpret_cast<bf16*>(memory_.get());
      const int64_t to = panel * target.panel_stride + target.panel_offset;
      const int first = static_cast<int>(low % kTileN), count = static_cast<int>(high - low);
      for (int64_t kt = 0; kt < k_tiles_; ++kt)
        write_tile(values.data() + kt * kTileK, row_room, first, count,
                   tiles + tile_index(to, kt, k_tiles_) * kTileElements);
    }
  });
}

void PackedMatrix::unpack(float* out) const {
  for (int64_t row = 0; row < n_; ++row)
    for (int64_t col = 0; col < k_; ++col) {
      const int64_t tile = tile_index(row / kTileN, col / kTileK, k_tiles_);
      const bf16 value = data()[tile * kTileElements + col % kTileK / 2 * 32 + row % kTileN * 2 + col % 2];
      out[row * k_ + col] = std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
    }
}

}  // namespace numaserve
