// Random low-rank adapters of the products of a random program.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "kernels/runtime/adapters/adapter_weights.h"
#include "kernels/runtime/weights/packed_matrix.h"
#include "tests/kernels/random_models.h"

namespace numaserve::testing {

class RandomAdapters {
 public:
  // The adapters that requests name, from 1 on. A place after them is loaded and cleared while steps run.
  static constexpr int32_t kNamed = 2;

  // Makes the adapters of a matrix. The second one has nothing for the second part of the rows.
  const AdapterWeights& make(const PackedMatrix& weight, uint64_t key) {
    AdapterWeights& made = all_.emplace_back(kNamed + 1, kRank, 2, weight.k(), panels(weight.n_panels()));
    for (int32_t place = 0; place < kNamed; ++place)
      set(made, place, {kRank - place, place == 0 ? 3 : 0}, key * kNamed + static_cast<uint64_t>(place));
    return made;
  }

  void reload() {
    for (AdapterWeights& each : all_) {
      const std::vector<bf16> zeros(static_cast<size_t>(std::max(each.a_values(), each.b_values())));
      each.set(kNamed, {.ranks = {kRank, kRank}, .scales = {1, 1}, .a = zeros.data(), .b = zeros.data()});
      each.clear(kNamed);
    }
  }

 private:
  static constexpr int32_t kRank = 5;

  // Some panels have rows of both parts, as where keys follow queries.
  static std::vector<std::vector<int32_t>> panels(int64_t count) {
    std::vector<std::vector<int32_t>> parts;
    for (int32_t i = 0; i < count; ++i) parts.push_back(i % 3 == 0 ? std::vector{0, 1} : std::vector{i % 2});
    return parts;
  }
  static void set(AdapterWeights& adapters, int32_t place, std::vector<int32_t> ranks, uint64_t key) {
    const float of_a = 1.7f / std::sqrt(static_cast<float>(adapters.k()));
    const std::vector<bf16> a = random_bf16(adapters.a_values(), key, of_a),
                            b = random_bf16(adapters.b_values(), ~key, 0.5f);
    adapters.set(place, {.ranks = std::move(ranks), .scales = {0.5f, 0.7f}, .a = a.data(), .b = b.data()});
  }

  std::deque<AdapterWeights> all_;
};

}  // namespace numaserve::testing
