#include "kernels/bindings/adapters.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/runtime/adapters/adapter_weights.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

using Rounded = nb::ndarray<const uint16_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void set(AdapterWeights& adapters, int64_t place, std::vector<int32_t> ranks, std::vector<float> scales,
         const Rounded& a, const Rounded& b) {
  if (static_cast<int64_t>(a.size()) != adapters.a_values() || static_cast<int64_t>(b.size()) != adapters.b_values())
    throw std::invalid_argument("an adapter must have the shapes [parts, rank, depth] and [blocks, rank, 16]");
  const AdapterValues values{.ranks = std::move(ranks), .scales = std::move(scales), .a = a.data(), .b = b.data()};
  const nb::gil_scoped_release released;
  adapters.set(place, values);
}

using Bits = nb::ndarray<nb::numpy, uint16_t, nb::ndim<3>>;

Bits copied_bits(const bf16* from, int64_t values, std::initializer_list<size_t> shape) {
  auto copy = std::make_unique<uint16_t[]>(static_cast<size_t>(values));
  std::copy_n(from, values, copy.get());
  uint16_t* data = copy.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<uint16_t*>(p); });
  return {data, shape, owner};
}

// Returns ranks, scales, and copies of A and B of the adapter in a place.
nb::tuple values(const AdapterWeights& adapters, int64_t place) {
  adapters.require_place(place);
  const AdapterTable table = adapters.table();
  const int32_t* ranks = table.ranks + place * table.parts;
  const float* scales = table.scales + place * table.parts;
  const auto parts = static_cast<size_t>(table.parts), rank = static_cast<size_t>(table.rank);
  return nb::make_tuple(std::vector<int32_t>(ranks, ranks + parts), std::vector<float>(scales, scales + parts),
                        copied_bits(table.a + place * adapters.a_values(), adapters.a_values(),
                                    {parts, rank, static_cast<size_t>(table.depth)}),
                        copied_bits(table.b + place * adapters.b_values(), adapters.b_values(),
                                    {static_cast<size_t>(adapters.blocks()), rank, size_t{kTileN}}));
}

}  // namespace

void bind_adapters(nb::module_& m) {
  nb::class_<AdapterWeights>(m, "AdapterWeights", "The memory of the low-rank adapters of a matrix.")
      .def(nb::new_([](int64_t places, int64_t rank, int64_t parts, int64_t k,
                       const std::vector<std::vector<int32_t>>& panels) {
             return std::make_unique<AdapterWeights>(places, rank, parts, k, panels);
           }),
           nb::arg("places"), nb::arg("rank"), nb::arg("parts"), nb::arg("k"), nb::arg("panels"))
      .def("set", &set, nb::arg("place"), nb::arg("ranks"), nb::arg("scales"), nb::arg("a"), nb::arg("b"))
      .def("values", &values, nb::arg("place"))
      .def("clear", &AdapterWeights::clear, nb::arg("place"))
      .def_prop_ro("places", &AdapterWeights::places)
      .def_prop_ro("rank", &AdapterWeights::rank)
      .def_prop_ro("parts", &AdapterWeights::parts);
}

}  // namespace numaserve
