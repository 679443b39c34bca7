// Random operands for the measured peak of an instruction set. The clock falls while a processor multiplies random
// numbers, and less while it multiplies equal ones or zeros.
#pragma once

#include "kernels/include/types.h"

namespace numaserve {
namespace {

// Memory full of int8 of any value, or of bf16 of both signs in eight binades, like weights. It fits the first level.
template <class T, int64_t kBytes>
struct RandomOperands {
  static constexpr int kWords = kBytes / static_cast<int64_t>(sizeof(ActivationWord));
  alignas(64) ActivationWord words[kWords];

  RandomOperands() {
    // A bf16 between 2^-7 and 2: any sign, any of eight exponents, any mantissa.
    constexpr uint32_t kAny = sizeof(T) == 1 ? ~0u : 0x83ff83ffu, kSet = sizeof(T) == 1 ? 0u : 0x3c003c00u;
    uint32_t state = 2463534242;  // xorshift32 (Marsaglia, 2003)
    for (ActivationWord& word : words) {
      state ^= state << 13;
      state ^= state >> 17;
      state ^= state << 5;
      word = static_cast<ActivationWord>((state & kAny) | kSet);
    }
    // gcc does not know that tile loads read memory.
    __asm__ volatile("" ::"r"(words) : "memory");
  }
};

}  // namespace
}  // namespace numaserve
