// A memfd of shared memory, mapped whole into this process, and objects that own such a mapping.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "shm_comm/include/numaserve_ring_layout.h"

namespace numaserve::ring {

class Mapping {
 public:
  // `what` begins error messages. Throws Error unless the descriptor is a sealed memfd of at least one page.
  Mapping(const std::string& what, int fd, int protection) {
    const auto fail = [&](const std::string& why) { throw Error(what + ": " + why + ": " + std::strerror(errno)); };
    struct stat status{};
    if (fstat(fd, &status) != 0) fail("cannot inspect descriptor " + std::to_string(fd));
    // Without the seal a process could shrink the file, and an access beyond its end would kill this process.
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
      throw Error(what + ": descriptor " + std::to_string(fd) + " is not a sealed memfd");
    bytes_ = static_cast<std::size_t>(status.st_size);
    if (bytes_ < kPage) throw Error(what + ": the shared memory is shorter than a page");
    base_ = mmap(nullptr, bytes_, protection, MAP_SHARED, fd, 0);
    if (base_ == MAP_FAILED) fail("cannot map the shared memory");
    // Other ranks read large messages all at once. This is a hint, which a kernel without huge pages refuses.
    if (bytes_ >= kHugePage) madvise(base_, bytes_, MADV_HUGEPAGE);
  }
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, MAP_FAILED)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (base_ != MAP_FAILED) munmap(base_, bytes_);
  }
  void* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kHugePage = 2 << 20;
  void* base_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

// Maps a fresh memfd to be formatted. Throws Error unless it has `bytes` bytes.
inline Mapping map_fresh(const std::string& what, int fd, std::size_t bytes) {
  Mapping mapping(what, fd, PROT_READ | PROT_WRITE);
  if (mapping.bytes() != bytes)
    throw Error(what + ": the size of the descriptor does not match: it has " + std::to_string(mapping.bytes()) +
                " bytes; " + std::to_string(bytes) + " are needed");
  return mapping;
}

// A ring or a board that owns its mapping. Python sees this type; the other extension module receives a View*.
template <class View>
class Mapped : public View {
 public:
  // `arguments` are those of the View after the base and the size.
  template <class... Arguments>
  Mapped(const std::string& what, int fd, Arguments... arguments)
      : Mapped(Mapping(what, fd, PROT_READ | PROT_WRITE), arguments...) {}

 private:
  template <class... Arguments>
  explicit Mapped(Mapping&& mapping, Arguments... arguments)
      : View(mapping.base(), mapping.bytes(), arguments...), mapping_(std::move(mapping)) {}

  Mapping mapping_;
};

}  // namespace numaserve::ring
