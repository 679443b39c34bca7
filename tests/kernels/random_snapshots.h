// Snapshots of states that random traffic stores, and goes on from in place of its slots.
#pragma once

#include <random>
#include <vector>

#include "kernels/runtime/program/step.h"

namespace numaserve::testing {

class RandomSnapshots {
 public:
  explicit RandomSnapshots(int64_t count) : stored_(static_cast<size_t>(count)), used_(stored_.size()) {}

  // A batch uses each snapshot once.
  void begin_batch() { used_.assign(used_.size(), false); }

  // Lets the part of a request begin with a snapshot of its position, where there is one; returns the marks of others.
  std::vector<StateMark> use(std::mt19937_64& random, SequenceInput& part, int request) {
    std::vector<StateMark> marks;
    for (size_t i = 0; i < stored_.size(); ++i) {
      if (used_[i]) continue;
      const int32_t last = marks.empty() ? part.start : marks.back().position, end = part.start + part.count;
      if (part.start > 0 && part.begin < 0 && stored_[i] == Stored{request, part.start}) {
        part.begin = static_cast<int32_t>(i);
      } else if (random() % 3 == 0 && last < end) {
        const int32_t position = last + 1 + static_cast<int32_t>(random() % static_cast<uint64_t>(end - last));
        marks.push_back({position, static_cast<int32_t>(i)});
        stored_[i] = {request, position};
      } else {
        continue;
      }
      used_[i] = true;
    }
    return marks;
  }

 private:
  // The states of a request after a number of tokens.
  struct Stored {
    int request = -1;
    int32_t position = 0;
    bool operator==(const Stored&) const = default;
  };

  std::vector<Stored> stored_;
  std::vector<bool> used_;
};

}  // namespace numaserve::testing
