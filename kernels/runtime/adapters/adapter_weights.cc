#include "kernels/runtime/adapters/adapter_weights.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/runtime/machine/memory.h"

namespace numaserve {

AdapterWeights::AdapterWeights(int64_t places, int64_t rank, int64_t parts, int64_t k,
                               const std::vector<std::vector<int32_t>>& panels)
    : places_(places), rank_(rank), parts_(parts), k_(k), depth_(round_up(k, kTileK)) {
  if (places < 1 || rank < 1 || parts < 1 || k < 1 || panels.empty() || panels.size() % 2 != 0)
    throw std::invalid_argument("adapters must have places, ranks, parts, columns, and an even number of panels");
  for (const std::vector<int32_t>& each : panels) {
    first_blocks_.push_back(static_cast<int32_t>(block_parts_.size()));
    for (const int32_t part : each) {
      if (part < 0 || part >= parts) throw std::invalid_argument("a panel has rows of a part that does not exist");
      block_parts_.push_back(part);
    }
  }
  first_blocks_.push_back(static_cast<int32_t>(block_parts_.size()));
  ranks_.resize(static_cast<size_t>(places * parts));
  scales_.resize(ranks_.size());
  memory_ = allocate_pooled(static_cast<size_t>(places * (a_values() + b_values())) * sizeof(bf16));
}

void AdapterWeights::require_place(int64_t place) const {
  if (place < 0 || place >= places_)
    throw std::invalid_argument("the place of an adapter must be from 0 to " + std::to_string(places_ - 1));
}

void AdapterWeights::set(int64_t place, const AdapterValues& values) {
  require_place(place);
  const auto parts = static_cast<size_t>(parts_);
  if (values.ranks.size() != parts || values.scales.size() != parts)
    throw std::invalid_argument("an adapter must have a rank and a scale for each part");
  for (const int32_t rank : values.ranks)
    if (rank < 0 || rank > rank_)
      throw std::invalid_argument("the rank of an adapter must be from 0 to " + std::to_string(rank_));
  std::copy_n(values.a, a_values(), a() + place * a_values());
  std::copy_n(values.b, b_values(), b() + place * b_values());
  std::ranges::copy(values.ranks, ranks_.begin() + place * parts_);
  std::ranges::copy(values.scales, scales_.begin() + place * parts_);
}

void AdapterWeights::clear(int64_t place) {
  require_place(place);
  std::fill_n(ranks_.begin() + place * parts_, parts_, 0);
}

AdapterTable AdapterWeights::table() const {
  return {.places = places_,
          .rank = rank_,
          .parts = parts_,
          .depth = depth_,
          .blocks = blocks(),
          .a = a(),
          .b = b(),
          .ranks = ranks_.data(),
          .scales = scales_.data(),
          .first_blocks = first_blocks_.data(),
          .block_parts = block_parts_.data()};
}

}  // namespace numaserve
