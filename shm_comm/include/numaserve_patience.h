// Patience with another process: spent only while this thread runs, and ended only after a look at what the other said.
//
// A cgroup can be frozen, a process stopped, a machine paused. The clock goes on meanwhile, and the ranks of a group
// are absent together: the first to come back must not blame the others for it. Whoever waits therefore looks often: a
// gap of more than kTickNs between two looks is its own absence, does not count, and leaves the other at least a tick
// to come back too. server/common/patience.py is the same for the front end.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>

namespace numaserve::ring {

inline std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(now.tv_nsec);
}

class Patience {
 public:
  static constexpr std::uint64_t kTickNs = 500'000'000;

  explicit Patience(std::uint64_t ns) : left_(ns), looked_(monotonic_ns()) {}

  // Looks at the clock. True when nothing was left at the look before: what was said has been read since.
  bool ends() {
    const std::uint64_t now = monotonic_ns();
    const std::uint64_t gap = now - looked_;
    looked_ = now;
    if (gap > kTickNs) {
      left_ = std::max(left_, kTickNs);
      return false;
    }
    const bool was_spent = left_ == 0;
    left_ -= std::min(gap, left_);
    return was_spent;
  }

 private:
  std::uint64_t left_;
  std::uint64_t looked_;
};

}  // namespace numaserve::ring
