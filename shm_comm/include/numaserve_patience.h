// A deadline for another process. It counts only time during which this thread runs, and it ends only after a check of
// the other process's state.
//
// A cgroup can be frozen, a process stopped, a machine paused. The clock runs on meanwhile, and the ranks of a group
// are absent together: the first rank to return must not blame the others. A waiting thread therefore checks often. A
// gap of more than kTickNs between two checks is its own absence and does not count. The gap also leaves the other
// process at least one tick to return. server/common/patience.py does the same for the front end.
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

  // Checks the clock. Returns true if no time was left at the previous check: the other's state was read since then.
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
