#include "kernels/bindings/copies.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/bindings/released.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

using Ranges = std::vector<std::pair<std::uintptr_t, int64_t>>;  // addresses and bytes
using Buffer = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadOnlyBuffer = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check(const Ranges& ranges, size_t bytes) {
  if (std::any_of(ranges.begin(), ranges.end(), [](const auto& range) { return range.second < 0; }))
    throw std::invalid_argument("a range must not have a negative number of bytes");
  const int64_t all = std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                                      [](int64_t sum, const auto& range) { return sum + range.second; });
  if (all != static_cast<int64_t>(bytes)) throw std::invalid_argument("the ranges must have the bytes of the buffer");
}

void gather(const Ranges& ranges, const Buffer& to) {
  check(ranges, to.size());
  uint8_t* at = to.data();
  const Released released(static_cast<int64_t>(to.size()));
  for (const auto& [address, bytes] : ranges) {
    std::memcpy(at, reinterpret_cast<const void*>(address), static_cast<size_t>(bytes));
    at += bytes;
  }
}

void scatter(const ReadOnlyBuffer& from, const Ranges& ranges) {
  check(ranges, from.size());
  const uint8_t* at = from.data();
  const Released released(static_cast<int64_t>(from.size()));
  for (const auto& [address, bytes] : ranges) {
    std::memcpy(reinterpret_cast<void*>(address), at, static_cast<size_t>(bytes));
    at += bytes;
  }
}

}  // namespace

void bind_copies(nb::module_& m) {
  m.def("gather", &gather, nb::arg("ranges"), nb::arg("to"));
  m.def("scatter", &scatter, nb::arg("data"), nb::arg("ranges"));
}

}  // namespace numaserve
