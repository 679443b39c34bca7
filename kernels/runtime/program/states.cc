#include "kernels/runtime/program/states.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace numaserve {

States::States(std::vector<StateKind> kinds, int64_t slots, int64_t snapshots, int64_t pages)
    : kinds_(std::move(kinds)), slots_(slots), snapshots_(snapshots), pages_(pages) {
  int64_t offset = 0;
  for (const StateKind& kind : kinds_) {
    const auto& [slot_bytes, page_bytes, layers] = kind;
    if (slot_bytes < 0 || page_bytes < 0 || layers < 0 || slot_bytes % kLineBytes != 0 || page_bytes % kLineBytes != 0)
      throw std::invalid_argument("the bytes of a state must be a multiple of " + std::to_string(kLineBytes));
    offsets_.push_back(offset);
    offset += layers * (sequence_bytes(kind) + pages * page_bytes);
  }
  buffer_ = LargeBuffer(static_cast<size_t>(offset));
}

const StateKind& States::kind(const CacheIndex& index) const {
  if (index.kind < 0 || static_cast<size_t>(index.kind) >= kinds_.size() || index.layer < 0 ||
      index.layer >= kinds_[static_cast<size_t>(index.kind)].layers)
    throw std::invalid_argument("there is no layer " + std::to_string(index.layer) + " with a state of kind " +
                                std::to_string(index.kind));
  return kinds_[static_cast<size_t>(index.kind)];
}

int64_t States::sequence_bytes(const StateKind& kind) const {
  return (kind.page_bytes > 0 ? slots_ : slots_ + snapshots_) * kind.slot_bytes;
}

std::span<std::byte> States::of_sequences(const CacheIndex& index) const {
  return part(index, 0, sequence_bytes(kind(index)));
}

std::span<std::byte> States::of_pages(const CacheIndex& index) const {
  const StateKind& of = kind(index);
  return part(index, sequence_bytes(of), pages_ * of.page_bytes);
}

std::span<std::byte> States::part(const CacheIndex& index, int64_t before, int64_t bytes) const {
  const StateKind& of = kinds_[static_cast<size_t>(index.kind)];
  const int64_t layer_bytes = sequence_bytes(of) + pages_ * of.page_bytes;
  const int64_t begin = offsets_[static_cast<size_t>(index.kind)] + index.layer * layer_bytes + before;
  return {buffer_.data() + begin, static_cast<size_t>(bytes)};
}

}  // namespace numaserve
