// The tiles of a thread under AMX instructions, which refuse some uses.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/kernels/amx/instruction.h"

namespace numaserve::amx {

inline constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

inline void require(bool holds, const char* kind, const char* why) {
  if (!holds) fault(kind, why);
}

struct Configuration {  // the operand of LDTILECFG
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];

  void check() const {
    const char* kind = "GP";
    require(palette <= 1, kind, "there is no such palette");
    for (const uint8_t byte : reserved) require(byte == 0, kind, "bytes 2 to 15 of a configuration are zero");
    for (int t = 0; t < 16; ++t) {
      require(t < kTiles || (row_bytes[t] == 0 && rows[t] == 0), kind, "the palette has eight tiles");
      require(row_bytes[t] <= kRowBytes && rows[t] <= kRows, kind, "a tile has up to 16 rows of 64 bytes");
      require((row_bytes[t] == 0) == (rows[t] == 0), kind, "a tile has rows and columns, or neither");
    }
    // The processor takes another one, and goes on from there after a page fault.
    require(start_row == 0, kind, "the first row is 0");
  }
};
static_assert(sizeof(Configuration) == 64);

// Bytes beyond a tile's shape are zero.
struct alignas(64) Tile {
  std::byte row[kRows][kRowBytes];
};

// The tiles of one thread, which begin without a configuration.
class Tiles {
 public:
  void execute(const Instruction& i) {
    switch (i.op) {
      case Op::kLoadConfig:
        return configure(i.memory);
      case Op::kStoreConfig:
        std::memcpy(i.memory, &configuration_, sizeof(configuration_));
        return;
      case Op::kRelease:
        *this = {};
        return;
      case Op::kZero:
        tile(i.reg) = {};
        return;
      case Op::kLoad:
      case Op::kLoadStreamed:
        return load(i);
      case Op::kStore:
        return store(i);
      default:
        return multiply(i);
    }
  }

 private:
  void configure(const std::byte* from) {
    Configuration next;
    std::memcpy(&next, from, sizeof(next));
    next.check();
    *this = {};
    if (next.palette != 0) configuration_ = next;
  }

  Tile& tile(int number) {
    require(configuration_.palette != 0, "UD", "this thread has not configured its tiles");
    require(number < kTiles && configuration_.rows[number] != 0, "UD", "the configuration has no such tile");
    require(configuration_.row_bytes[number] % 4 == 0, "UD", "a row is not a multiple of four bytes");
    return tiles_[number];
  }

  void load(const Instruction& i) {
    Tile& to = tile(i.reg);
    require(i.has_index, "UD", "the address of a tile has no SIB byte");
    Tile loaded{};
    for (int r = 0; r < configuration_.rows[i.reg]; ++r)
      std::memcpy(loaded.row[r], i.memory + r * i.stride, configuration_.row_bytes[i.reg]);
    to = loaded;
  }

  void store(const Instruction& i) {
    const Tile& from = tile(i.reg);
    require(i.has_index, "UD", "the address of a tile has no SIB byte");
    for (int r = 0; r < configuration_.rows[i.reg]; ++r)
      std::memcpy(i.memory + r * i.stride, from.row[r], configuration_.row_bytes[i.reg]);
  }

  void multiply(const Instruction& i) {
    Tile &c = tile(i.reg), &a = tile(i.rm), &b = tile(i.vvvv);
    const Configuration& shape = configuration_;
    require(&c != &a && &c != &b && &a != &b, "UD", "a product has one tile twice");
    require(shape.rows[i.reg] == shape.rows[i.rm], "UD", "results and first operand differ in rows");
    require(shape.row_bytes[i.reg] == shape.row_bytes[i.vvvv], "UD", "results and second operand differ in columns");
    require(shape.row_bytes[i.rm] / 4 == shape.rows[i.vvvv], "UD", "the operands differ in depth");
    // What lies beyond the shapes is zero, so that whole tiles can be multiplied; but a sum of -0 would lose its sign.
    if (i.op == Op::kBf16)
      multiply_bf16(c, a, b, shape.rows[i.vvvv]);
    else
      multiply_bytes(c, a, b, i.op == Op::kSignedSigned || i.op == Op::kSignedUnsigned,
                     i.op == Op::kSignedSigned || i.op == Op::kUnsignedSigned);
  }

  // TDPBF16PS by the manual's pseudo-code: even and odd products are summed apart, each from zero by fused
  // multiply-adds, then together, and then added. To nearest even, subnormals are zero on both sides, whatever MXCSR
  // is.
  static void multiply_bf16(Tile& c, const Tile& a, const Tile& b, int depth) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x9fc0);  // all exceptions masked, DAZ, FTZ
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const auto halves = [odd](__m512i pairs, __m512(&values)[2]) {
      values[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      values[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, odd));
    };
    for (int m = 0; m < kRows; ++m) {
      __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, x[2], y[2];
      for (int k = 0; k < depth; ++k) {
        int pair;
        std::memcpy(&pair, a.row[m] + 4 * k, sizeof(pair));
        halves(_mm512_set1_epi32(pair), x);
        halves(_mm512_load_si512(b.row[k]), y);
        for (int half = 0; half < 2; ++half) sums[half] = _mm512_fmadd_ps(x[half], y[half], sums[half]);
      }
      const __m512 sum = _mm512_add_ps(sums[0], sums[1]);
      _mm512_store_ps(c.row[m], _mm512_add_ps(_mm512_load_ps(c.row[m]), sum));
    }
    _mm_setcsr(before);
  }

  static void multiply_bytes(Tile& c, const Tile& a, const Tile& b, bool a_signed, bool b_signed) {
    typedef int32_t Lanes __attribute__((vector_size(kRowBytes)));
    const auto wide = [](std::byte byte, bool is_signed) {
      const auto bits = std::to_integer<uint8_t>(byte);
      return is_signed ? static_cast<int8_t>(bits) : static_cast<int>(bits);
    };
    Lanes lines[kRowBytes];  // of b, by k
    for (int k = 0; k < kRowBytes; ++k)
      for (int n = 0; n < kRows; ++n) lines[k][n] = wide(b.row[k / 4][4 * n + k % 4], b_signed);
    for (int m = 0; m < kRows; ++m) {
      Lanes sum;
      std::memcpy(&sum, c.row[m], sizeof(sum));
      for (int k = 0; k < kRowBytes; ++k) sum += lines[k] * wide(a.row[m][k], a_signed);
      std::memcpy(c.row[m], &sum, sizeof(sum));
    }
  }

  Configuration configuration_{};
  Tile tiles_[kTiles]{};
};

}  // namespace numaserve::amx
