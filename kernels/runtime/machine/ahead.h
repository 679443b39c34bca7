// Prefetching of memory that a thread will read in later nodes, into its second-level cache, while the thread waits.
//
// Memory is then busy while threads wait for each other, and a node finds its first data in the cache. Fetching is a
// hint: it changes no result, however much of it arrives in time.
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
  // `most`: the maximum number of bytes to fetch in advance.
  Ahead(const Run& run, const std::vector<std::unique_ptr<Node>>& nodes, int thread, int64_t most)
      : run_(run), nodes_(nodes), thread_(thread), most_(most) {}

  // Returns the work for the barrier before node `next`. Prefetching continues where the last barrier left off, unless
  // that node has been run.
  Team::Idle until(size_t next);

 private:
  static constexpr size_t kBytesAtOnce = 256;  // between two checks whether the other threads have arrived

  bool some() noexcept;
  // Opens the next piece; returns false if there is none.
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
