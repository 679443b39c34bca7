#include "kernels/runtime/memory.h"

#include <sys/mman.h>

#include <new>

#include "kernels/include/types.h"

namespace numaserve {

LargeBuffer::LargeBuffer(size_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  if (bytes == 0) return;
  const bool large = bytes >= static_cast<size_t>(kHugePage);
  const size_t mapped = static_cast<size_t>(round_up(static_cast<int64_t>(bytes), large ? kHugePage : 4096));
  // The kernel aligns an anonymous mapping of whole huge pages to them since Linux 6.7; before that the head and the
  // tail of a mapping are in small pages, which costs less than mapping too much and trimming.
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  if (large) madvise(address, mapped, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(address);
  bytes_ = mapped;
}

LargeBuffer::~LargeBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace numaserve
