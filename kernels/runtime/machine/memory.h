// Large memory for weights, KV cache and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace numaserve {

enum class Pages { kHuge, kSmall };

// Anonymous memory, initially zero, in transparent huge pages where the kernel has them. Each page is allocated on
// first touch, on the node that the touching thread's memory policy names. Throws std::bad_alloc. Small pages are for
// memory of which only a few bytes here and there are touched.
class LargeBuffer {
 public:
  LargeBuffer() = default;
  explicit LargeBuffer(size_t bytes, Pages pages = Pages::kHuge);
  ~LargeBuffer();
  LargeBuffer(LargeBuffer&& other) noexcept { *this = std::move(other); }
  LargeBuffer& operator=(LargeBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapped_ = nullptr;  // `data_` is the first huge page boundary in it
};

// Allocates zeroed memory on cache line boundaries, cut from large buffers. A buffer lives as long as any piece of it.
// Most matrices of a small model are smaller than a huge page, so with a mapping each they would lie in small pages.
// Small pages take five times as long to touch first and miss the TLB in every step. Safe to call from any thread.
std::shared_ptr<std::byte> allocate_pooled(size_t bytes);

}  // namespace numaserve
