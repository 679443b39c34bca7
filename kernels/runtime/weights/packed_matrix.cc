#include "kernels/runtime/weights/packed_matrix.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/runtime/machine/memory.h"

// Set on single functions only. If the whole file were compiled so, inline functions of the standard library in it
// could become the copies that baseline code calls. The reference backend also packs on processors without AVX2.
#define NUMASERVE_AVX2 __attribute__((target("avx2")))

namespace numaserve {
namespace {

constexpr std::string_view kFormatNames[] = {"bf16",  "int8", "int4",  "int8_group", "fp8",
                                             "mxfp4", "iq4",  "nvfp4", "iq3",        "iq2"};
constexpr std::string_view kOffsetNames[] = {"none", "zeros", "minima"};

template <class T, size_t kCount>
T named(const std::string_view (&names)[kCount], std::string_view name, const char* what) {
  for (size_t i = 0; i < kCount; ++i)
    if (names[i] == name) return static_cast<T>(i);
  throw std::invalid_argument(std::string("unknown ") + what + " '" + std::string(name) + "'");
}

// One column's part of a tile line: four bytes of consecutive k.
using Word = uint32_t;
constexpr int kLineWords = kTileN;

// Transposes eight rows of eight words into eight lines of eight columns.
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

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

void check_rows(const PackRows& s, int64_t k, int64_t unit, int64_t tensor_rows) {
  require(s.cols >= 0 && s.cols % unit == 0, "pack: the row length must be a multiple of the block size");
  require(s.first_col >= 0 && s.first_col % unit == 0 && s.first_col + k <= s.cols,
          "pack: the columns must lie in the tensor and begin at a block boundary");
  for (int64_t i = 0; i < s.num_rows; ++i)
    require(s.rows[i] >= 0 && s.rows[i] < tensor_rows, "pack: a row is outside the tensor");
}

int64_t row_bytes(const PackSource& source) {
  const SourceBlock block = source_block(source.type);
  return source.rows.cols / block.values * block.bytes;
}

// The exponent of a power of two plus 127, which a float keeps above its mantissa; 2^-127 is a subnormal.
constexpr uint32_t kSmallestPower = 1u << 22;
bool is_power_of_two(float scale) {
  const auto bits = std::bit_cast<uint32_t>(scale);
  return bits == kSmallestPower || (bits % (1u << 23) == 0 && bits > 0 && std::isfinite(scale) && scale > 0.0f);
}
// Larger scales would take values of e2m1 beyond bf16.
constexpr float kLargestPower = 0x1p125f;
uint8_t exponent_byte(float scale) { return static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23); }

// Returns the code of a number of e4m3, and -1 for any other. The exponent biases differ by 120; a subnormal number of
// e4m3 becomes one of fp32.
int e4m3_code(float scale) {
  const float moved = scale * 0x1p-120f;
  const auto bits = std::bit_cast<uint32_t>(moved), magnitude = bits & 0x7fffffff;
  if (moved * 0x1p120f != scale || bits % (1u << 20) != 0 || magnitude >= 0x7fu << 20) return -1;
  return static_cast<int>(magnitude >> 20 | bits >> 31 << 7);
}

// Returns a power of two that moves a row's scales to where fp16 is most precise. Scales of bf16 checkpoints may be too
// small for fp16; they then keep all of their bits. Scales of fp16 checkpoints keep theirs anyway.
float row_exponent(const std::vector<float>& scales, const std::vector<float>& minima) {
  float largest = 0.0f;
  for (const float scale : scales) largest = std::max(largest, std::fabs(scale));
  for (const float minimum : minima) largest = std::max(largest, std::fabs(minimum) / 16.0f);
  return largest > 0.0f && std::isfinite(largest) ? std::exp2(static_cast<float>(std::ilogb(largest))) : 1.0f;
}

}  // namespace

WeightFormat weight_format(std::string_view name) { return named<WeightFormat>(kFormatNames, name, "weight format"); }
std::string_view weight_format_name(WeightFormat format) { return kFormatNames[static_cast<int>(format)]; }
Offsets offsets_kind(std::string_view name) { return named<Offsets>(kOffsetNames, name, "kind of offsets"); }
std::string_view offsets_name(Offsets offsets) { return kOffsetNames[static_cast<int>(offsets)]; }

// One row while a thread packs it, before it goes to the tiles.
struct PackedMatrix::Row {
  uint8_t* out;                // the row's bytes in the order of the lines, with space for one source block more
  std::vector<bf16> values;    // with the same space
  std::vector<uint8_t> codes;  // in k order
  std::vector<float> scales, offsets;
  float factor = 1.0f;  // of nvfp4
  int32_t sum = 0;      // of int8 codes

  void resize_codes(int64_t count, int64_t groups) {
    codes.assign(static_cast<size_t>(count), 0);
    scales.assign(static_cast<size_t>(groups), 0.0f);
    offsets.assign(static_cast<size_t>(groups), 0.0f);
  }
};

PackedMatrix::PackedMatrix(int64_t n, int64_t k, WeightFormat format, int64_t group, Offsets offsets)
    : format_(format),
      offsets_(offsets),
      n_(n),
      k_(k),
      group_(group),
      n_panels_(round_up(n, kPad) / kTileN),
      depth_(round_up(k, tile_depth(format))) {
  require(n >= 0 && k >= 0, "the size of a packed matrix must not be negative");
  if (is_grouped(format)) {
    require(group == 32 || group == 64 || group == 128, "the group size of quantized weights must be 32, 64 or 128");
    require(format != WeightFormat::kMxfp4 || group == kMxGroup, "the group size of mxfp4 must be 32");
    layout_ = group_layout(format, group, offsets);
    // Activations in int8 are laid out in whole groups; activations in bf16 are padded to tiles only.
    if (takes_int8(format)) depth_ = round_up(k, group);
  } else {
    require(group == 0, "this weight format has no groups; the group size must be 0");
  }
  require(offsets == Offsets::kNone || may_have_offsets(format),
          "this weight format does not support offsets (zero points)");
  memory_ = allocate_pooled(static_cast<size_t>(bytes()));
}

PackedWeights PackedMatrix::view() const {
  return {.format = format_,
          .offsets = offsets_,
          .group = group_,
          .data = data(),
          .n_panels = n_panels_,
          .depth = depth_,
          .k_parts = parts_of_k(n_panels_, depth_),
          .scales = column_bytes() > 0 ? scales() : nullptr,
          .corrections = corrections()};
}

std::byte* PackedMatrix::line(int64_t panel, int64_t index) const {
  if (is_grouped(format_))
    return record(panel, index / layout_.lines) + (index % layout_.lines * 2 + panel % 2) * kLineBytes;
  return memory_.get() + tile_index(panel, index / kLines, k_tiles()) * kTileBytes + index % kLines * kLineBytes;
}

// Encodes every row by encode(i, row), and puts the resulting bytes into the row's column of the lines.
template <class Encode>
void PackedMatrix::pack_rows(Team& team, int64_t num_rows, const PackTarget& target, Encode&& encode) {
  require(target.dst_row >= 0 && target.panel_stride > 0 && target.panel_offset >= 0 &&
              target.panel_offset < target.panel_stride,
          "pack: the target row or panel is out of range");
  if (num_rows == 0 || k_ == 0) return;
  const int64_t end_row = target.dst_row + num_rows;
  const int64_t first_panel = target.dst_row / kTileN, last_panel = (end_row - 1) / kTileN;
  require(target.panel_stride > 1 || end_row <= n_, "pack: the rows do not fit in the matrix");
  require(last_panel * target.panel_stride + target.panel_offset < n_panels_,
          "pack: the rows do not fit in the matrix");
  // Two consecutive panels at a time, so that a thread's writes are long runs.
  const int64_t units = ceil_div(last_panel - first_panel + 1, 2), words = round_up(lines(), 8);
  const bool has_avx2 = __builtin_cpu_supports("avx2");

  team.parallel([&](int thread) {
    const Range mine = split(units, team.size(), thread);
    Row row;
    std::vector<Word> panel_words(static_cast<size_t>(kTileN * words + kSourceBlock));
    alignas(64) Word block[8 * kLineWords];
    for (int64_t panel = first_panel + mine.begin * 2; panel < first_panel + mine.end * 2 && panel <= last_panel;
         ++panel) {
      const int64_t low = std::max(panel * kTileN, target.dst_row), high = std::min((panel + 1) * kTileN, end_row);
      const int64_t to = panel * target.panel_stride + target.panel_offset;
      for (int64_t at = low; at < high; ++at) {
        row.out = reinterpret_cast<uint8_t*>(panel_words.data() + (at - low) * words);
        encode(at - target.dst_row, row);
        finish(row, to * kTileN + at % kTileN);
      }
      const auto first = static_cast<int>(low % kTileN), count = static_cast<int>(high - low);
      for (int64_t begin = 0; begin < lines(); begin += 8) {
        const auto here = static_cast<int>(std::min<int64_t>(8, lines() - begin));
        if (count == kTileN && has_avx2)
          for (int half = 0; half < kTileN; half += 8)
            transpose_words(panel_words.data() + half * words + begin, words, block + half);
        else
          for (int i = 0; i < count; ++i)
            for (int j = 0; j < here; ++j)
              block[j * kLineWords + i] = panel_words[static_cast<size_t>(i * words + begin + j)];
        for (int j = 0; j < here; ++j)
          std::memcpy(line(to, begin + j) + first * 4, block + j * kLineWords, static_cast<size_t>(count) * 4);
      }
    }
  });
}

void PackedMatrix::pack(Team& team, const PackSource& source, const PackTarget& target) {
  const int64_t bytes_of_row = row_bytes(source);
  check_rows(source.rows, k_, source_block(source.type).values, bytes_of_row > 0 ? source.bytes / bytes_of_row : 0);
  if (format_ >= WeightFormat::kMxfp4)
    throw std::invalid_argument("pack: weights cannot be quantized to " + std::string(weight_format_name(format_)));
  const bool coded = group_ == kSourceBlock && keeps_codes(source.type, format_, offsets_);
  require(coded || offsets_ == Offsets::kNone, "pack: quantizing weights with offsets (zero points) is not supported");
  const int64_t room = is_grouped(format_) ? round_up(k_, group_) : depth_;
  std::atomic<bool> finite{true};
  pack_rows(team, source.rows.num_rows, target, [&](int64_t index, Row& row) {
    if (coded) {
      row.resize_codes(room, groups());
      if (!decode_codes(source.type, source.data + source.rows.rows[index] * bytes_of_row, source.rows.first_col, k_,
                        row.codes.data(), row.scales.data(), row.offsets.data()))
        finite.store(false, std::memory_order_relaxed);
      return;
    }
    row.values.resize(static_cast<size_t>(room + kSourceBlock));
    row.codes.resize(static_cast<size_t>(room));
    // bf16 needs no further step and goes straight to its place.
    bf16* values = format_ == WeightFormat::kBf16 ? reinterpret_cast<bf16*>(row.out) : row.values.data();
    decode_row(source.type, source.data + source.rows.rows[index] * bytes_of_row, source.rows.first_col, k_, values);
    std::fill(values + k_, values + room, bf16{0});
    if (format_ == WeightFormat::kInt8) {
      const QuantizedRow result = quantize_row(values, room, reinterpret_cast<int8_t*>(row.codes.data()));
      row.scales.assign(1, result.scale);
      row.sum = result.sum;
    } else if (is_grouped(format_)) {
      row.scales.resize(static_cast<size_t>(groups()));
      quantize_groups(format_, values, room, group_, row.codes.data(), row.scales.data());
    }
  });
  require(finite, "pack: a scale of the quantized weights is not finite");
}

void PackedMatrix::pack_codes(Team& team, const CodedSource& source, const PackTarget& target) {
  const int64_t unit = is_grouped(format_) ? scale_depth(format_, group_) : source.group;
  require(format_ != WeightFormat::kBf16, "pack: quantized weights cannot be packed as bf16");
  require(source.group > 0 && source.group % unit == 0,
          "pack: the group size of the tensor must be a multiple of the group size of the matrix");
  check_rows({source.rows.cols, source.rows.rows, source.rows.num_rows, 0}, k_, 1, source.tensor_rows);
  require(source.rows.first_col >= 0 && source.rows.first_col + k_ <= source.rows.cols &&
              (format_ == WeightFormat::kInt8 || source.rows.first_col % unit == 0),
          "pack: the columns must lie in the tensor and begin at a group boundary");
  require(format_ != WeightFormat::kInt8 || source.group >= source.rows.cols,
          "pack: int8 weights must have one scale per row");
  require(source.offsets == nullptr || source.kind == offsets_ ||
              (source.kind == Offsets::kZeros && offsets_ == Offsets::kMinima),
          "pack: the tensor has offsets (zero points) of a kind that the matrix was not created for");
  require(source.factors == nullptr || format_ == WeightFormat::kNvfp4, "pack: only nvfp4 weights have factors");
  const int64_t source_groups = ceil_div(source.rows.cols, source.group);
  const int64_t room = format_ == WeightFormat::kInt8 ? depth_ : round_up(k_, group_);
  const auto zero = static_cast<float>(format_ == WeightFormat::kInt4 ? 8 : 128);
  std::atomic<bool> powers{true}, values{true}, numbers{true};
  pack_rows(team, source.rows.num_rows, target, [&](int64_t index, Row& row) {
    const int64_t from = source.rows.rows[index];
    const uint8_t* codes = source.codes + from * source.rows.cols + source.rows.first_col;
    row.codes.assign(codes, codes + k_);
    row.codes.resize(static_cast<size_t>(room), 0);
    if (format_ == WeightFormat::kInt8) {
      row.scales.assign(1, source.scales[from * source_groups]);
      row.sum = 0;
      for (const uint8_t code : row.codes) row.sum += static_cast<int8_t>(code);
      return;
    }
    row.scales.assign(static_cast<size_t>(room / unit), 0.0f);
    row.offsets.resize(offsets_ == Offsets::kNone ? 0 : row.scales.size());
    row.factor = source.factors == nullptr ? 1.0f : source.factors[from];
    for (int64_t group = 0; group < ceil_div(k_, unit); ++group) {
      const int64_t at = from * source_groups + (source.rows.first_col + group * unit) / source.group;
      const auto to = static_cast<size_t>(group);
      row.scales[to] = source.scales[at];
      if (format_ == WeightFormat::kMxfp4 && !is_power_of_two(row.scales[to]))
        powers.store(false, std::memory_order_relaxed);
      if (format_ == WeightFormat::kMxfp4 && row.scales[to] > kLargestPower)
        values.store(false, std::memory_order_relaxed);
      if (format_ == WeightFormat::kNvfp4 && e4m3_code(row.scales[to]) < 0)
        numbers.store(false, std::memory_order_relaxed);
      if (offsets_ == Offsets::kNone) continue;
      const float offset = source.offsets == nullptr ? zero : source.offsets[at];
      const bool as_zero = source.offsets == nullptr || source.kind == Offsets::kZeros;
      row.offsets[to] = as_zero && offsets_ == Offsets::kMinima ? -row.scales[to] * offset : offset;
    }
  });
  require(powers, "pack: a scale of mxfp4 weights is not a power of two");
  require(values, "pack: a scale of mxfp4 weights is larger than 2^125");
  require(numbers, "pack: a scale of nvfp4 weights is not a number of e4m3");
}

// Writes codes to the bytes of the lines, and scales to their places.
void PackedMatrix::finish(Row& row, int64_t column) {
  if (format_ == WeightFormat::kBf16) return;
  if (format_ == WeightFormat::kInt8) {
    std::memcpy(row.out, row.codes.data(), row.codes.size());
    scales()[column] = row.scales[0];
    corrections()[column] = 128 * row.sum;
    return;
  }
  arrange_codes(format_, row.codes.data(), lines() * kLineBytes / kTileN * 8 / code_bits(format_), row.out);
  store_groups(row, column);
}

void PackedMatrix::store_groups(const Row& row, int64_t column) {
  const bool halves = has_half_scales(format_), minima = offsets_ == Offsets::kMinima;
  const float unit = halves ? row_exponent(row.scales, minima ? row.offsets : std::vector<float>()) : row.factor;
  if (column_bytes() > 0) scales()[column] = unit;
  const int64_t each = group_ / scale_depth(format_, group_);
  for (int64_t group = 0; group < groups() * each; ++group) {
    std::byte* here = record(column / kTileN, group / each);
    const int64_t lane = group % each * 32 + column % 32;
    const float scale = row.scales[static_cast<size_t>(group)];
    if (!halves) {
      if (format_ == WeightFormat::kFp8)
        reinterpret_cast<float*>(here + layout_.scales)[lane] = scale;
      else
        reinterpret_cast<uint8_t*>(here + layout_.scales)[lane] =
            format_ == WeightFormat::kMxfp4 ? exponent_byte(scale) : static_cast<uint8_t>(e4m3_code(scale));
      continue;
    }
    reinterpret_cast<uint16_t*>(here + layout_.scales)[lane] = to_half(scale / unit);
    if (offsets_ != Offsets::kNone)
      reinterpret_cast<uint16_t*>(here + layout_.offsets)[column % 32] =
          to_half(row.offsets[static_cast<size_t>(group)] / (minima ? unit : 1.0f));
  }
}

void PackedMatrix::unpack(float* out) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(lines()) * 4);
  for (int64_t row = 0; row < n_; ++row) {
    for (int64_t i = 0; i < lines(); ++i)
      std::memcpy(bytes.data() + 4 * i, line(row / kTileN, i) + row % kTileN * 4, 4);
    for (int64_t col = 0; col < k_; ++col) {
      float& value = out[row * k_ + col];
      if (format_ == WeightFormat::kBf16) {
        value = std::bit_cast<float>(uint32_t{bytes[static_cast<size_t>(2 * col)]} << 16 |
                                     uint32_t{bytes[static_cast<size_t>(2 * col + 1)]} << 24);
      } else if (format_ == WeightFormat::kInt8) {
        value = scales()[row] * static_cast<float>(static_cast<int8_t>(bytes[static_cast<size_t>(col)]));
      } else {
        value = group_value(row, col, arranged_code(format_, bytes.data(), col));
      }
    }
  }
}

float PackedMatrix::group_value(int64_t row, int64_t col, uint8_t code) const {
  const std::byte* here = record(row / kTileN, col / group_);
  if (format_ == WeightFormat::kFp8)
    return reinterpret_cast<const float*>(here + layout_.scales)[row % 32] * e4m3_value(code);
  if (format_ == WeightFormat::kMxfp4) {
    const int exponent = reinterpret_cast<const uint8_t*>(here + layout_.scales)[row % 32];
    return std::ldexp(e2m1_value(code), exponent - 127);
  }
  if (format_ == WeightFormat::kNvfp4) {
    const int64_t lane = col % group_ / kNvGroup * 32 + row % 32;
    return e4m3_value(reinterpret_cast<const uint8_t*>(here + layout_.scales)[lane]) * e2m1_value(code) * scales()[row];
  }
  const auto half = [&](int64_t at) { return from_half(reinterpret_cast<const uint16_t*>(here + at)[row % 32]); };
  const float scale = half(layout_.scales) * scales()[row], value = static_cast<float>(code);
  if (format_ == WeightFormat::kIq4) return scale * static_cast<float>(kIq4[code]);
  if (format_ == WeightFormat::kIq3) return scale * static_cast<float>(kIq3[code]);
  if (format_ == WeightFormat::kIq2) return scale * static_cast<float>(kIq2[code]);
  if (offsets_ == Offsets::kMinima) return scale * value + half(layout_.offsets) * scales()[row];
  const float zero = format_ == WeightFormat::kInt4 ? 8.0f : 128.0f;
  return scale * (value - (offsets_ == Offsets::kZeros ? half(layout_.offsets) : zero));
}

}  // namespace numaserve
