// A weight matrix in the order in which the GEMM reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/machine/team.h"
#include "kernels/runtime/weights/weight_rows.h"

namespace numaserve {

// bf16, int8, int4, int8_group, fp8, mxfp4, iq4, nvfp4, iq3 or iq2. Throws std::invalid_argument for another name.
WeightFormat weight_format(std::string_view name);
std::string_view weight_format_name(WeightFormat format);
// none, zeros or minima. Throws std::invalid_argument for another name.
Offsets offsets_kind(std::string_view name);
std::string_view offsets_name(Offsets offsets);

// Rows of a tensor, from one of its columns on.
struct PackRows {
  int64_t cols;         // of the whole tensor
  const int32_t* rows;  // row numbers in the tensor
  int64_t num_rows;
  int64_t first_col;
};

struct PackSource {
  const uint8_t* data;
  int64_t bytes;
  SourceType type;
  PackRows rows;
};

// A tensor that is already quantized. Codes are [tensor rows, columns], a byte each: 0..15 for int4 and iq, int8 + 128
// for int8_group, the bits of int8, of e4m3 and, for mxfp4 and nvfp4, of e2m1. Scales and offsets are [tensor rows,
// columns / group], factors [tensor rows].
struct CodedSource {
  const uint8_t* codes;
  int64_t tensor_rows;
  const float* scales;
  const float* offsets;  // or null: weight = scale * (code - 8 or 128)
  Offsets kind;          // of `offsets`
  const float* factors;  // of all weights of a row, which only nvfp4 has; or null
  int64_t group;         // columns that share a scale, a multiple of the matrix's group, or of 16 for nvfp4
  PackRows rows;
};

// The destination: row i goes to matrix row dst_row + i. Rows are dealt in panels of 16 to the panels panel_offset,
// panel_offset + panel_stride, ...
struct PackTarget {
  int64_t dst_row;
  int64_t panel_stride;
  int64_t panel_offset;
};

class PackedMatrix {
 public:
  // Makes a matrix [n, k] of zeros. `group`: 32, 64 or 128 for formats with groups, otherwise 0. Throws
  // std::invalid_argument for another group or a negative size.
  PackedMatrix(int64_t n, int64_t k, WeightFormat format = WeightFormat::kBf16, int64_t group = 0,
               Offsets offsets = Offsets::kNone);

  // Copies rows of a checkpoint's tensor here, on all threads of the team, and quantizes them if the format requires it
  // (see weight_rows.h). Blocks whose codes the format keeps are not expanded. Throws std::invalid_argument when the
  // source is smaller than it claims, a size does not fit, or a scale is not finite.
  void pack(Team& team, const PackSource& source, const PackTarget& target);
  void pack_codes(Team& team, const CodedSource& source, const PackTarget& target);

  // Writes the values, [n, k] in fp32.
  void unpack(float* out) const;

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t group() const { return group_; }
  Offsets offsets() const { return offsets_; }
  int64_t n_panels() const { return n_panels_; }  // even
  int64_t depth() const { return depth_; }        // k in whole tiles or groups
  int64_t padded_n() const { return n_panels_ * kTileN; }
  WeightFormat format() const { return format_; }
  std::byte* data() const { return memory_.get(); }
  int64_t bytes() const { return code_bytes() + padded_n() * column_bytes(); }
  PackedWeights view() const;

 private:
  struct Row;
  int64_t groups() const { return ceil_div(depth_, group_); }
  int64_t k_tiles() const { return depth_ / tile_depth(format_); }
  // Bytes of codes, and of scales and offsets that lie between them.
  int64_t code_bytes() const {
    return is_grouped(format_) ? n_panels_ / 2 * groups() * layout_.bytes : n_panels_ * k_tiles() * kTileBytes;
  }
  // Bytes for each column after the codes: a scale, and a correction for int8.
  int64_t column_bytes() const {
    if (format_ == WeightFormat::kInt8) return 8;
    return has_half_scales(format_) || format_ == WeightFormat::kNvfp4 ? 4 : 0;
  }
  float* scales() const { return reinterpret_cast<float*>(memory_.get() + code_bytes()); }
  int32_t* corrections() const { return reinterpret_cast<int32_t*>(scales() + padded_n()); }
  // Lines of 64 bytes that hold all of k for the 16 columns of a panel.
  int64_t lines() const { return is_grouped(format_) ? groups() * layout_.lines : k_tiles() * kLines; }
  std::byte* line(int64_t panel, int64_t index) const;
  std::byte* record(int64_t panel, int64_t group) const {
    return memory_.get() + (panel / 2 * groups() + group) * layout_.bytes;
  }
  template <class Encode>
  void pack_rows(Team& team, int64_t num_rows, const PackTarget& target, Encode&& encode);
  void finish(Row& row, int64_t column);
  void store_groups(const Row& row, int64_t column);
  float group_value(int64_t row, int64_t col, uint8_t code) const;

  WeightFormat format_;
  Offsets offsets_;
  int64_t n_, k_, group_, n_panels_, depth_;
  GroupLayout layout_{};
  std::shared_ptr<std::byte> memory_;
};

}  // namespace numaserve
