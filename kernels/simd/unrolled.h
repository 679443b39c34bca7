// A loop over a constant range whose counter is a constant in its body. Arrays of registers that are indexed by it are
// registers from the start: gcc 12 keeps some of those that a loop counts through in memory, or copies them.
#pragma once

#include <utility>

// Bodies are NUMASERVE_INLINE: a lambda that gcc inlines later than its caller's arrays become registers leaves them in
// memory, stored and loaded at every step. Measured, of products of few rows with groups in 4 bits: a quarter of the
// time.
//
// NUMASERVE_FLAT: of functions whose arrays have to stay in registers. Sanitizers keep them in memory anyway, and would
// take an hour to compile functions that are all of their callees.
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
