// A loop over a constant range whose counter is a constant in its body. Arrays of registers indexed by the counter are
// registers from the start. With ordinary loops, gcc 12 keeps some arrays in memory or copies them.
#pragma once

#include <utility>

// Bodies are NUMASERVE_INLINE: if gcc inlines a lambda only after its caller's arrays became registers, the arrays stay
// in memory, and are stored and loaded at every step. Measured for products of few rows with groups in 4 bits: a
// quarter of the time.
//
// NUMASERVE_FLAT is for functions whose arrays have to stay in registers. Sanitizers keep the arrays in memory anyway,
// and would take an hour to compile functions with all callees inlined.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NUMASERVE_FLAT
#define NUMASERVE_INLINE
#else
#define NUMASERVE_FLAT [[gnu::flatten]]
#define NUMASERVE_INLINE __attribute__((always_inline))
#endif

namespace numaserve {
namespace {

template <int kCount, class Body>
NUMASERVE_INLINE inline void unrolled(Body&& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>)
      NUMASERVE_INLINE { (body.template operator()<kIndex>(), ...); }(std::make_integer_sequence<int, kCount>());
}

}  // namespace
}  // namespace numaserve
