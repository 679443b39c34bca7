// The state that layers keep for each slot, snapshot and page, besides keys and values.
#pragma once

#include <span>
#include <vector>

#include "kernels/runtime/attention/kv_cache.h"

namespace numaserve {

// Layers that keep the same number of bytes, each a multiple of a cache line. Where pages have states too, a sequence
// goes on from these, and there are no snapshots.
struct StateKind {
  int64_t slot_bytes = 0, page_bytes = 0, layers = 0;
};

// The states of a rank, zero at first. A slot's state is never cleared: a layer takes zeros at position 0 instead, so
// that what a sequence before has left has no effect.
class States {
 public:
  // Throws std::invalid_argument for sizes that are negative or no multiples of a cache line.
  States(std::vector<StateKind> kinds, int64_t slots, int64_t snapshots, int64_t pages);
  // Return a layer's states, one after another: of all slots and then of all snapshots, or of all pages. Throw
  // std::invalid_argument for an index out of range.
  std::span<std::byte> of_sequences(const CacheIndex& index) const;
  std::span<std::byte> of_pages(const CacheIndex& index) const;
  const StateKind& kind(const CacheIndex& index) const;
  const LargeBuffer& buffer() const { return buffer_; }

 private:
  // Returns bytes of the states of a kind that belong to slots and snapshots.
  int64_t sequence_bytes(const StateKind& kind) const;
  std::span<std::byte> part(const CacheIndex& index, int64_t before, int64_t bytes) const;

  std::vector<StateKind> kinds_;
  std::vector<int64_t> offsets_;  // of each kind
  int64_t slots_, snapshots_, pages_;
  LargeBuffer buffer_;
};

}  // namespace numaserve
