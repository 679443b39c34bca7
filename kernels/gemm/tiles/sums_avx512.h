// Sums of 16 columns. fp32 and int32 have register types of their own: with one type for both, gcc 12 copies registers
// at every product.
#pragma once

#include <immintrin.h>

#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int kMostTogether = 12;  // packed rows of a pass by two panels: 24 registers of sums
inline constexpr int kHeightStep = 2;     // passes of more than two rows have an even number

struct Fp32Sums {
  __m512 v = _mm512_setzero_ps();
  void load(const float* p) { v = _mm512_loadu_ps(p); }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void add(int activations, __m512i line) {
    v = _mm512_dpbf16_ps(v, reinterpret_cast<__m512bh>(_mm512_set1_epi32(activations)),
                         reinterpret_cast<__m512bh>(line));
  }
};
struct Int32Sums {
  __m512i v = _mm512_setzero_si512();
  void load(const int32_t* p) { v = _mm512_loadu_si512(p); }
  void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
  void add(int activations, __m512i line) { v = _mm512_dpbusd_epi32(v, _mm512_set1_epi32(activations), line); }
};
struct CodeSums : Int32Sums {
  // Written as assembly: gcc 12 would keep the broadcast in a register for both panels and have none left for the sums.
  [[gnu::always_inline]] void add(const ActivationWord& activations, __m512i line) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(v) : "v"(line), "m"(activations));
  }
};
template <class T>
struct SumsOf {
  using type = Fp32Sums;
};
template <>
struct SumsOf<int8_t> {
  using type = Int32Sums;
};
template <>
struct SumsOf<uint8_t> {
  using type = CodeSums;
};

}  // namespace
}  // namespace numaserve
