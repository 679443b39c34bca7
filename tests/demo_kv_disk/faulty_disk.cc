// A disk with faults, for processes that are started with this library preloaded.
//
// It stands before the files of the disk tier in the folder $FAULTY_DISK: records, the probe and the index. The file
// $FAULTY_DISK_ORDER names the fault; empty: there is none.
//   slow BYTES_PER_S   for all processes together
//   hang               no call returns
//   full               writes fail with ENOSPC
//   unreadable         reads fail with EIO
//   unwritable         writes fail with EIO
//   short              reads return half of what they are asked for

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr useconds_t kLookMicroseconds = 20'000;

template <typename Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool IsOfTier(int fd) {
  const char* folder = std::getenv("FAULTY_DISK");
  if (folder == nullptr) return false;
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof path);
  if (length < 0) return false;
  const std::string file(path, static_cast<size_t>(length)), before = std::string(folder) + "/";
  return file.rfind(before + "rank-", 0) == 0 || file.rfind(before + "index", 0) == 0;
}

enum class Call { kRead, kWrite, kSync };

// What becomes of a call: its error, or 0, and the bytes that it may move.
struct Fate {
  int error;
  size_t nbytes;
};

// Obeys the order for a call that moves `nbytes`.
Fate Obey(int fd, size_t nbytes, Call call) {
  if (!IsOfTier(fd)) return {0, nbytes};
  for (;;) {
    const int order = open(std::getenv("FAULTY_DISK_ORDER"), O_RDONLY | O_CLOEXEC);
    if (order < 0) return {0, nbytes};
    char text[64] = {};
    double bytes_per_s = 0;
    const ssize_t length = read(order, text, sizeof text - 1);
    if (length > 0 && std::sscanf(text, "slow %lf", &bytes_per_s) == 1) {
      flock(order, LOCK_EX);  // of all threads and processes, one at a time
      usleep(static_cast<useconds_t>(1e6 * static_cast<double>(nbytes) / bytes_per_s));
    }
    close(order);
    const std::string fault(text);
    if (fault == "full" && call == Call::kWrite) return {ENOSPC, 0};
    if (fault == "unwritable" && call == Call::kWrite) return {EIO, 0};
    if (fault == "unreadable" && call == Call::kRead) return {EIO, 0};
    if (fault == "short" && call == Call::kRead) return {0, nbytes / 2};
    if (fault != "hang") return {0, nbytes};
    usleep(kLookMicroseconds);
  }
}

size_t BytesOf(const iovec* parts, int count) {
  size_t nbytes = 0;
  for (int part = 0; part < count; ++part) nbytes += parts[part].iov_len;
  return nbytes;
}

ssize_t Failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

// The functions that the interpreter calls.
extern "C" {

ssize_t pread64(int fd, void* into, size_t nbytes, off64_t offset) {
  const Fate fate = Obey(fd, nbytes, Call::kRead);
  if (fate.error != 0) return Failed(fate.error);
  static auto* const next = Next(&pread64, "pread64");
  return next(fd, into, fate.nbytes, offset);
}

ssize_t preadv64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  const Fate fate = Obey(fd, BytesOf(parts, count), Call::kRead);
  if (fate.error != 0) return Failed(fate.error);
  static auto* const next = Next(&preadv64v2, "preadv64v2");
  const ssize_t read = next(fd, parts, count, offset, flags);
  return read < 0 ? read : std::min(read, static_cast<ssize_t>(fate.nbytes));
}

ssize_t pwrite64(int fd, const void* data, size_t nbytes, off64_t offset) {
  const Fate fate = Obey(fd, nbytes, Call::kWrite);
  if (fate.error != 0) return Failed(fate.error);
  static auto* const next = Next(&pwrite64, "pwrite64");
  return next(fd, data, nbytes, offset);
}

int fdatasync(int fd) {
  Obey(fd, 0, Call::kSync);
  static auto* const next = Next(&fdatasync, "fdatasync");
  return next(fd);
}
}
