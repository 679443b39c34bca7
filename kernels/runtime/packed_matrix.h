// A weight matrix in the order in which the GEMM reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/include/types.h"
#include "kernels/runtime/team.h"

namespace numaserve {

// What a checkpoint stores. The block formats are those of GGUF (ggml-common.h of llama.cpp): blocks of 32 values.
enum class SourceType { kBf16, kF16, kF32, kQ8_0, kQ4_0, kQ4_1 };

// Throws std::invalid_argument for a name that is not one of bf16, f16, f32, q8_0, q4_0, q4_1.
SourceType source_type(std::string_view name);

// bf16 or int8. Throws std::invalid_argument for another name.
WeightFormat weight_format(std::string_view name);
std::string_view weight_format_name(WeightFormat format);

struct PackSource {
  const uint8_t* data;
  int64_t bytes;
  SourceType type;
  int64_t cols;         // of the whole tensor
  const int32_t* rows;  // which of its rows
  int64_t num_rows;
  int64_t first_col;
};

// Where the rows go: row i to matrix row dst_row + i, where the rows are dealt in panels of 16 to the panels
// panel_offset, panel_offset + panel_stride, ...
struct PackTarget {
  int64_t dst_row;
  int64_t panel_stride;
  int64_t panel_offset;
};

class PackedMatrix {
 public:
  // [n, k], zero. Throws std::invalid_argument for a negative size.
  PackedMatrix(int64_t n, int64_t k, WeightFormat format = WeightFormat::kBf16);

  // Copies rows of a checkpoint's tensor here, on all threads of the team; in int8, each row is quantised with a scale
  // of its own, its largest magnitude / 127. Throws std::invalid_argument when the source is smaller than it claims or
  // something does not fit.
  void pack(Team& team, const PackSource& source, const PackTarget& target);

  // [n, k] in fp32.
  void unpack(float* out) const;

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t n_panels() const { return n_panels_; }  // even
  int64_t k_tiles() const { return k_tiles_; }
  int64_t padded_n() const { return n_panels_ * kTileN; }
  WeightFormat format() const { return format_; }
  const std::byte* data() const { return memory_.get(); }
  std::byte* data() { return memory_.get(); }
  // int8 only: [padded_n], see GemmArgs.
  const float* scales() const { return reinterpret_cast<const float*>(memory_.get() + tile_bytes()); }
  const int32_t* corrections() const { return reinterpret_cast<const int32_t*>(scales() + padded_n()); }
  int64_t bytes() const { return tile_bytes() + (format_ == WeightFormat::kInt8 ? padded_n() * 8 : 0); }

 private:
  int64_t tile_bytes() const { return n_panels_ * k_tiles_ * kTileBytes; }
  void quantise(bf16* row, int64_t count, int64_t column);

  WeightFormat format_;
  int64_t n_, k_, n_panels_, k_tiles_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace numaserve
