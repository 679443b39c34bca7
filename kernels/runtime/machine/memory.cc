#include "kernels/runtime/machine/memory.h"

#include <sys/mman.h>

#include <mutex>
#include <new>

namespace numaserve {

namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kSmallPage = 4096;
constexpr size_t kPoolBytes = 64 << 20;

size_t aligned(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

LargeBuffer::LargeBuffer(size_t bytes, Pages pages) {
  if (bytes == 0) return;
  // Slack to begin on a huge page: before Linux 6.7 the kernel does not align anonymous mappings itself.
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  bytes_ = aligned(bytes, slack > 0 ? kHugePage : kSmallPage);
  mapped_ = mmap(nullptr, bytes_ + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw std::bad_alloc();
  }
  const auto address = reinterpret_cast<uintptr_t>(mapped_);
  data_ = static_cast<std::byte*>(mapped_) + (slack > 0 ? aligned(address, kHugePage) - address : 0);
  if (slack > 0 && pages == Pages::kHuge) madvise(data_, bytes_, MADV_HUGEPAGE);
}

LargeBuffer::~LargeBuffer() {
  if (mapped_ != nullptr) munmap(mapped_, bytes_ + (bytes_ >= kHugePage ? kHugePage : 0));
}

std::shared_ptr<std::byte> allocate_pooled(size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<LargeBuffer> current;
  static size_t used = 0;

  const std::lock_guard lock(mutex);
  std::shared_ptr<LargeBuffer> buffer = current.lock();
  if (bytes > kPoolBytes / 2) {
    buffer = std::make_shared<LargeBuffer>(bytes);
    return {buffer, buffer->data()};
  }
  if (buffer == nullptr || used + bytes > buffer->bytes()) {
    buffer = std::make_shared<LargeBuffer>(kPoolBytes);
    current = buffer;
    used = 0;
  }
  std::byte* piece = buffer->data() + used;
  used += aligned(bytes, 64);
  return {buffer, piece};
}

}  // namespace numaserve
