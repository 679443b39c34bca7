// What a thread will read in the nodes to come, fetched into its second-level cache while it has nothing else to do.
//
// Memory then works while threads wait for each other, and a node begins with what it needs at hand. Fetching is a
// hint: it changes nothing that is computed, whatever of it comes in time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/runtime/machine/team.h"
#include "kernels/runtime/program/nodes.h"

namespace numaserve {

class Ahead {
 public:
  // `most`: bytes to be ahead at once.
  Ahead(const Run& run, const std::vector<std::unique_ptr<Node>>& nodes, int thread, int64_t most)
      : run_(run), nodes_(nodes), thread_(thread), most_(most) {}

  // For a barrier before node `next`: goes on where the last one ended, unless that is past.
  Team::Idle until(size_t next);

 private:
  static constexpr size_t kBytesAtOnce = 256;  // between two looks at whether the others have come

  bool some() noexcept;
  // Goes to the next piece; false: there is none near.
  bool open();

  const Run& run_;
  const std::vector<std::unique_ptr<Node>>& nodes_;
  int thread_;
  int64_t most_, fetched_ = 0;
  size_t node_ = 0;
  int64_t index_ = 0;  // of the next piece of `node_`
  std::span<const std::byte> piece_;
};

}  // namespace numaserve
