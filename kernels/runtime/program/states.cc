#include "kernels/runtime/program/states.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace numaserve {

States::States(std::vector<StateKind> kinds, const Capacity& capacity)
    : kinds_(std::move(kinds)),
      slots_(capacity.max_slots),
      snapshots_(capacity.num_snapshots),
      drafts_(capacity.max_drafts),
      pages_(capacity.num_pages) {
  int64_t offset = 0;
  for (const StateKind& kind : kinds_) {
    for (const int64_t bytes : {kind.slot_bytes, kind.page_bytes, kind.draft_bytes, kind.layers * kLineBytes})
      if (bytes < 0 || bytes % kLineBytes != 0)
        throw std::invalid_argument("the bytes of a state must be a multiple of " + std::to_string(kLineBytes));
    offsets_.push_back(offset);
    offset += kind.layers * (sequence_bytes(kind) + draft_bytes(kind) + pages_ * kind.page_bytes);
  }
  buffer_ = LargeBuffer(static_cast<size_t>(offset));
}

bool States::keep_sequences() const {
  return std::any_of(kinds_.begin(), kinds_.end(), [](const StateKind& kind) { return kind.of_sequences(); });
}

const StateKind& States::kind(const CacheIndex& index) const {
  if (index.kind < 0 || static_cast<size_t>(index.kind) >= kinds_.size() || index.layer < 0 ||
      index.layer >= kinds_[static_cast<size_t>(index.kind)].layers)
    throw std::invalid_argument("there is no layer " + std::to_string(index.layer) + " with a state of kind " +
                                std::to_string(index.kind));
  return kinds_[static_cast<size_t>(index.kind)];
}

int64_t States::sequence_bytes(const StateKind& kind) const {
  return (slots_ + (kind.of_sequences() ? snapshots_ : 0)) * kind.slot_bytes;
}

int64_t States::draft_bytes(const StateKind& kind) const {
  return kind.of_sequences() ? slots_ * drafts_ * kind.draft_bytes : 0;
}

std::span<std::byte> States::of_sequences(const CacheIndex& index) const {
  return part(index, 0, sequence_bytes(kind(index)));
}

std::span<std::byte> States::of_drafts(const CacheIndex& index) const {
  const StateKind& of = kind(index);
  return part(index, sequence_bytes(of), draft_bytes(of));
}

std::span<std::byte> States::of_pages(const CacheIndex& index) const {
  const StateKind& of = kind(index);
  return part(index, sequence_bytes(of) + draft_bytes(of), pages_ * of.page_bytes);
}

std::span<std::byte> States::part(const CacheIndex& index, int64_t before, int64_t bytes) const {
  const StateKind& of = kinds_[static_cast<size_t>(index.kind)];
  const int64_t layer_bytes = sequence_bytes(of) + draft_bytes(of) + pages_ * of.page_bytes;
  const int64_t begin = offsets_[static_cast<size_t>(index.kind)] + index.layer * layer_bytes + before;
  return {buffer_.data() + begin, static_cast<size_t>(bytes)};
}

}  // namespace numaserve
