#include "kernels/runtime/machine/ahead.h"

#include <algorithm>

#include "kernels/simd/prefetch.h"

namespace numaserve {

Team::Idle Ahead::until(size_t next) {
  if (node_ < next) {
    node_ = next;
    index_ = fetched_ = 0;
    piece_ = {};
  }
  return {.some = [](void* self) noexcept { return static_cast<Ahead*>(self)->some(); }, .context = this};
}

bool Ahead::some() noexcept {
  if (fetched_ >= most_ || (piece_.empty() && !open())) return false;
  const size_t bytes = std::min(piece_.size(), kBytesAtOnce);
  for (size_t i = 0; i < bytes; i += kLineBytes) prefetch_line(piece_.data() + i);
  piece_ = piece_.subspan(bytes);
  fetched_ += static_cast<int64_t>(bytes);
  return true;
}

bool Ahead::open() {
  while (node_ < nodes_.size()) {
    if (nodes_[node_]->runs(run_.step)) piece_ = nodes_[node_]->reads_first(run_, thread_, index_++);
    if (!piece_.empty()) return true;
    ++node_;
    index_ = 0;
  }
  return false;
}

}  // namespace numaserve
