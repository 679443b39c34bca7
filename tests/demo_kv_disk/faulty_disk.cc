// A disk that is slow, hangs or is full, for processes that are started with this library preloaded.
//
// It stands before the files of the disk tier in the folder $FAULTY_DISK: records, the probe and the index. The file
// $FAULTY_DISK_ORDER names the fault: `slow BYTES_PER_S`, for all processes together, `hang` or `full`; empty: there is
// none.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

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

// Obeys the order for a call that moves `nbytes`. Returns 0, or the error of the call.
int Obey(int fd, size_t nbytes, bool writes) {
  if (!IsOfTier(fd)) return 0;
  for (;;) {
    const int order = open(std::getenv("FAULTY_DISK_ORDER"), O_RDONLY | O_CLOEXEC);
    if (order < 0) return 0;
    char text[64] = {};
    double bytes_per_s = 0;
    const ssize_t length = read(order, text, sizeof text - 1);
    if (length > 0 && std::sscanf(text, "slow %lf", &bytes_per_s) == 1) {
      flock(order, LOCK_EX);  // of all threads and processes, one at a time
      usleep(static_cast<useconds_t>(1e6 * static_cast<double>(nbytes) / bytes_per_s));
    }
    close(order);
    if (std::strncmp(text, "full", 4) == 0 && writes) return ENOSPC;
    if (std::strncmp(text, "hang", 4) != 0) return 0;
    usleep(kLookMicroseconds);
  }
}

size_t BytesOf(const iovec* parts, int count) {
  size_t nbytes = 0;
  for (int part = 0; part < count; ++part) nbytes += parts[part].iov_len;
  return nbytes;
}

}  // namespace

// The functions that the interpreter calls.
extern "C" {

ssize_t pread64(int fd, void* into, size_t nbytes, off64_t offset) {
  Obey(fd, nbytes, false);
  static auto* const next = Next(&pread64, "pread64");
  return next(fd, into, nbytes, offset);
}

ssize_t preadv64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  Obey(fd, BytesOf(parts, count), false);
  static auto* const next = Next(&preadv64v2, "preadv64v2");
  return next(fd, parts, count, offset, flags);
}

ssize_t pwrite64(int fd, const void* data, size_t nbytes, off64_t offset) {
  if (const int error = Obey(fd, nbytes, true)) {
    errno = error;
    return -1;
  }
  static auto* const next = Next(&pwrite64, "pwrite64");
  return next(fd, data, nbytes, offset);
}

int fdatasync(int fd) {
  Obey(fd, 0, false);
  static auto* const next = Next(&fdatasync, "fdatasync");
  return next(fd);
}
}
