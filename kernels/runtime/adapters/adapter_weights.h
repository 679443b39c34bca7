// The memory of the low-rank adapters of a matrix.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/include/adapter_args.h"

namespace numaserve {

// An adapter of a matrix. Values are in the order of the table: see AdapterTable.
struct AdapterValues {
  std::vector<int32_t> ranks;  // of each part
  std::vector<float> scales;
  const bf16* a;  // [parts, rank, depth]
  const bf16* b;  // [blocks, rank, 16]
};

// All memory is allocated when a rank starts, and each place is touched when an adapter is put in it: by the thread
// that loads it, on the node of the rank. A place is written while steps run that name other places.
class AdapterWeights {
 public:
  // `panels` has the parts that have rows in each panel, of an even number of panels. Throws std::invalid_argument for
  // sizes that are not positive, and for parts that do not exist.
  AdapterWeights(int64_t places, int64_t rank, int64_t parts, int64_t k,
                 const std::vector<std::vector<int32_t>>& panels);

  // Puts an adapter in a place, from 0 on. Throws std::invalid_argument for a place or a rank out of range.
  void set(int64_t place, const AdapterValues& values);
  // Leaves a place without an adapter: its rows get nothing.
  void clear(int64_t place);

  // Throws std::invalid_argument for a place that does not exist.
  void require_place(int64_t place) const;

  AdapterTable table() const;
  int64_t places() const { return places_; }
  int64_t rank() const { return rank_; }
  int64_t parts() const { return parts_; }
  int64_t k() const { return k_; }
  int64_t blocks() const { return static_cast<int64_t>(block_parts_.size()); }
  int64_t n_panels() const { return static_cast<int64_t>(first_blocks_.size()) - 1; }
  int64_t shrunk_columns() const { return parts_ * numaserve::shrunk_columns(rank_); }
  int64_t a_values() const { return parts_ * rank_ * depth_; }  // of a place
  int64_t b_values() const { return blocks() * rank_ * kTileN; }

 private:
  bf16* a() const { return reinterpret_cast<bf16*>(memory_.get()); }
  bf16* b() const { return a() + places_ * a_values(); }

  int64_t places_, rank_, parts_, k_, depth_;
  std::vector<int32_t> first_blocks_, block_parts_;
  std::vector<int32_t> ranks_;  // [places, parts]
  std::vector<float> scales_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace numaserve
