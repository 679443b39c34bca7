// The state that layers keep for each slot, snapshot and page, besides keys and values.
#pragma once

#include <span>
#include <vector>

#include "kernels/runtime/attention/kv_cache.h"

namespace numaserve {

// Layers that keep the same number of bytes, each a multiple of a cache line. Where pages have states too, a sequence
// goes on from these, and there are no snapshots, nor what a draft token needs: `draft_bytes` for each of a slot.
struct StateKind {
  int64_t slot_bytes = 0, page_bytes = 0, draft_bytes = 0, layers = 0;
  bool of_sequences() const { return page_bytes == 0; }
};

// The states of a rank, zero at first. A slot's state is never cleared: a layer takes zeros at position 0 instead, so
// that what a sequence before has left has no effect.
class States {
 public:
  // Throws std::invalid_argument for sizes that are negative or no multiples of a cache line.
  States(std::vector<StateKind> kinds, const Capacity& capacity);
  // Return a layer's states, one after another: of all slots and then of all snapshots, of the draft tokens of all
  // slots, or of all pages. Throw std::invalid_argument for an index out of range.
  std::span<std::byte> of_sequences(const CacheIndex& index) const;
  std::span<std::byte> of_drafts(const CacheIndex& index) const;
  std::span<std::byte> of_pages(const CacheIndex& index) const;
  const StateKind& kind(const CacheIndex& index) const;
  int64_t max_drafts() const { return drafts_; }
  // Whether a sequence cannot go on without its states.
  bool keep_sequences() const;
  const LargeBuffer& buffer() const { return buffer_; }

 private:
  // Return bytes of the states of a kind: of slots and snapshots, and of draft tokens.
  int64_t sequence_bytes(const StateKind& kind) const;
  int64_t draft_bytes(const StateKind& kind) const;
  std::span<std::byte> part(const CacheIndex& index, int64_t before, int64_t bytes) const;

  std::vector<StateKind> kinds_;
  std::vector<int64_t> offsets_;  // of each kind
  int64_t slots_, snapshots_, drafts_, pages_;
  LargeBuffer buffer_;
};

}  // namespace numaserve
