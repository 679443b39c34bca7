// Counts the work of each thread in a step, for estimates of hosts that are not at hand: a Program that counts runs its
// nodes, planners and barriers as they are, over kernels that compute nothing (counting_table.h). The threads of its
// team take turns.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/include/types.h"
#include "kernels/runtime/machine/team.h"
#include "shm_comm/include/numaserve_ring.h"

namespace numaserve {

// Bytes of weights, KV cache and states, which lie in the node's memory; of activations that are read or written; of
// other ranks' parts; and operations.
struct Work {
  int64_t memory = 0, moved = 0, remote = 0, flops = 0;
  void add(const Work& more) {
    memory += more.memory;
    moved += more.moved;
    remote += more.remote;
    flops += more.flops;
  }
};

// What threads do for a node between two barriers. `items` are handed out while threads run: the first ones to a thread
// each, and then the next one to whichever thread is free.
struct CountedPhase {
  size_t node = 0;
  bool joins_next = false;  // whether threads alternate between this phase and the next one, without a barrier
  std::vector<Work> threads, items;
};

// The experts that tokens are routed to, which no kernel computes: an expert's share of the tokens is proportional to
// (its number + 1)^-skew, with the numbers in another order. All layers route alike: layers of one kind then take the
// same time, and programs with a layer more or less differ by that time.
struct Routing {
  double skew = 0.0;
  uint64_t seed = 0;
};

class Counter {
 public:
  explicit Counter(const Routing& routing) : routing_(routing) {}

  // Forgets what was counted, and counts what the calling thread does. Called before each step.
  void begin(const Team& team, const ring::Ring* ring);
  // Counts what `thread` does from now on for this node. Called by that thread.
  void enter(size_t node, int thread);
  // Returns what the last step's threads did, in order.
  std::vector<CountedPhase> phases() const;

  const Routing& routing() const { return routing_; }
  // Whether other ranks have written the memory.
  bool is_remote(const void* from) const;

 private:
  friend class Lane;
  Routing routing_;
  const Team* team_ = nullptr;
  std::vector<class Lane> lanes_;
  const std::byte *ring_begin_ = nullptr, *ring_end_ = nullptr, *own_begin_ = nullptr, *own_end_ = nullptr;
};

// What one thread has counted.
class alignas(128) Lane {
 public:
  Lane(const Counter& counter, int thread) : counter_(counter), thread_(thread) {}

  // Returns the lane of the thread whose turn it is, in a step that is counted.
  static Lane& current();

  // Adds work of the thread; or, unless `item` is negative, of an item. Phases have items in the order of the numbers.
  void add(const Work& work, int64_t item = -1);
  const Counter& counter() const { return counter_; }

 private:
  friend class Counter;
  struct Entry {
    uint64_t barriers;  // before it
    size_t node;
    int64_t item;
    Work work;
  };

  const Counter& counter_;
  int thread_;
  size_t node_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace numaserve
