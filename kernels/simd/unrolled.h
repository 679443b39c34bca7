// A loop over a constant range whose counter is a constant in its body. Arrays of registers that are indexed by it are
// registers from the start: gcc 12 keeps some of those that a loop counts through in memory, or copies them.
#pragma once

#include <utility>

namespace numaserve {
namespace {

template <int kCount, class Body>
[[gnu::always_inline]] inline void unrolled(Body&& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body.template operator()<kIndex>(), ...);
  }(std::make_integer_sequence<int, kCount>());
}

}  // namespace
}  // namespace numaserve
