// Large memory for weights, KV cache and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace numaserve {

// Anonymous memory, zero at first, in transparent huge pages where the kernel has them. Its pages come to be on first
// touch, on the node that the memory policy of the touching thread says. Throws std::bad_alloc.
class LargeBuffer {
 public:
  LargeBuffer() = default;
  explicit LargeBuffer(size_t bytes);
  ~LargeBuffer();
  LargeBuffer(LargeBuffer&& other) noexcept { *this = std::move(other); }
  LargeBuffer& operator=(LargeBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
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
};

}  // namespace numaserve
