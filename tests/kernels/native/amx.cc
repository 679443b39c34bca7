// AMX instructions one by one, for tests of what runs them; see module.cc.
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/native/amx_instructions.h"
#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

TileKind kind_of(const std::string& name) {
  const char* names[] = {"bf16", "ssd", "sud", "usd", "uud"};
  for (int i = 0; i < 5; ++i)
    if (name == names[i]) return static_cast<TileKind>(i);
  throw std::invalid_argument("there is no product of tiles " + name);
}

void multiply(const std::string& kind, Array<const uint8_t, 2> a, Array<const uint8_t, 2> b, Array<uint8_t, 2> c) {
  table_by_name("amx");  // throws where there is no AMX
  require(size(a, 0) == size(c, 0) && size(b, 1) == size(c, 1) && size(a, 1) == 4 * size(b, 0), "shapes differ");
  multiply_tiles(kind_of(kind), {.rows = static_cast<int>(size(a, 0)),
                                 .columns = static_cast<int>(size(b, 1) / 4),
                                 .depth = static_cast<int>(size(b, 0)),
                                 .a = reinterpret_cast<const std::byte*>(a.data()),
                                 .b = reinterpret_cast<const std::byte*>(b.data()),
                                 .c = reinterpret_cast<std::byte*>(c.data())});
}

// A subnormal is zero where TDPBF16PS reads it, and where it makes one.
float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

float widened(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return flushed(value);
}

// c [m, n] += a [m, 2 k] · b [k, 2 n], by the manual's pseudo-code for TDPBF16PS, one element after the other.
void multiply_bf16_by_manual(Array<const uint16_t, 2> a, Array<const uint16_t, 2> b, Array<float, 2> c) {
  require(size(a, 0) == size(c, 0) && size(b, 1) == 2 * size(c, 1) && size(a, 1) == 2 * size(b, 0), "shapes differ");
  for (int64_t m = 0; m < size(c, 0); ++m)
    for (int64_t n = 0; n < size(c, 1); ++n) {
      float sums[2] = {0.0f, 0.0f};
      for (int64_t k = 0; k < size(b, 0); ++k)
        for (int64_t half = 0; half < 2; ++half)
          sums[half] = flushed(std::fma(widened(a(m, 2 * k + half)), widened(b(k, 2 * n + half)), sums[half]));
      c(m, n) = flushed(flushed(c(m, n)) + flushed(sums[0] + sums[1]));
    }
}

std::vector<std::string> faults() {
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumTileFaults; ++i) names.emplace_back(kTileFaults[i].name);
  return names;
}

void run_into_fault(const std::string& name) {
  table_by_name("amx");
  for (size_t i = 0; i < kNumTileFaults; ++i)
    if (name == kTileFaults[i].name) kTileFaults[i].run();
}

}  // namespace

void bind_amx(nb::module_& ops) {
  ops.def("amx_multiply", &multiply, "kind"_a, "a"_a, "b"_a, "c"_a);
  ops.def("amx_bf16_by_manual", &multiply_bf16_by_manual, "a"_a, "b"_a, "c"_a);
  ops.def("amx_keeps_its_configuration", &keeps_its_configuration);
  ops.def("amx_faults", &faults);
  ops.def("amx_run_into_fault", &run_into_fault, "name"_a);
}

}  // namespace numaserve
