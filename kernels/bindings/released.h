// The release of the interpreter's lock for work on memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

namespace numaserve {

// Releases the interpreter's lock for work on many bytes. For few, the work takes less time than getting the lock back
// from another thread.
class Released {
 public:
  explicit Released(int64_t bytes) {
    if (bytes >= kMany) released_.emplace();
  }

 private:
  static constexpr int64_t kMany = 128 << 10;  // some microseconds

  std::optional<nanobind::gil_scoped_release> released_;
};

}  // namespace numaserve
