// Rows of a checkpoint's tensor, prepared for a packed matrix: decoded, quantized, and in the order of the tiles.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/include/types.h"

namespace numaserve {

// Formats of a checkpoint's rows. The block formats are GGUF's (ggml-common.h of llama.cpp): blocks of 32 values.
enum class SourceType { kBf16, kF16, kF32, kQ8_0, kQ4_0, kQ4_1 };

// Returns the type of a name. Throws std::invalid_argument for a name other than bf16, f16, f32, q8_0, q4_0, q4_1.
SourceType source_type(std::string_view name);

// Values and bytes of a block; plain types have blocks of one value.
struct SourceBlock {
  int64_t values, bytes;
};
SourceBlock source_block(SourceType type);
inline constexpr int64_t kSourceBlock = 32;  // the maximum number of values of a block

// Decodes values [first, first + count) of a row to bf16; `out` has space for one block more.
void decode_row(SourceType type, const uint8_t* row, int64_t first, int64_t count, bf16* out);

// Whether a packed matrix with groups of 32 keeps the blocks' codes, scales and minima.
bool keeps_codes(SourceType type, WeightFormat format, Offsets offsets);

// Decodes the codes, scales and minima of values [first, first + count) of a row, in whole blocks. `minima` is for
// q4_1. Returns false when a scale or a minimum is not finite.
bool decode_codes(SourceType type, const uint8_t* row, int64_t first, int64_t count, uint8_t* codes, float* scales,
                  float* minima);

struct QuantizedRow {
  float scale;
  int32_t sum;
};

// Quantizes a row to int8 with one scale, its largest magnitude / 127; `count` is a multiple of 32.
QuantizedRow quantize_row(const bf16* row, int64_t count, int8_t* out);

// Quantizes a row to the codes of a grouped format, with a scale for each group. int4: the value of the largest
// magnitude becomes code 0, as in GGUF's Q4_0. int8_group: the largest magnitude / 127; fp8: / 448. `count` is a
// multiple of `group`.
void quantize_groups(WeightFormat format, const bf16* row, int64_t count, int64_t group, uint8_t* codes, float* scales);

// The value of a code of e4m3, or of e2m1.
float e4m3_value(uint8_t code);
float e2m1_value(uint8_t code);

uint16_t to_half(float value);
float from_half(uint16_t value);

// Arranges codes in k order as the bytes of a packed matrix's lines. In each four codes, the second and third are
// exchanged. Codes of 4 bits put two fours into the nibbles of their bytes. `count` is a multiple of 8.
void arrange_codes(WeightFormat format, const uint8_t* codes, int64_t count, uint8_t* out);

// Returns a code from the arranged bytes of a row.
uint8_t arranged_code(WeightFormat format, const uint8_t* bytes, int64_t index);

}  // namespace numaserve
