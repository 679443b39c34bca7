#include "kernels/runtime/weights/weight_file.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

// As in packed_matrix.cc: on these functions only.
#define NUMASERVE_AVX2 __attribute__((target("avx2")))

namespace numaserve {
namespace {

constexpr int64_t kPiece = 256 << 10;  // read at once and then summed: it must still be in the second level cache
constexpr int kVectors = 4;
constexpr int64_t kStripe = kVectors * 32;

// The state between pieces of one unit.
class Checksum {
 public:
  NUMASERVE_AVX2 Checksum() {
    uint64_t start[4 * kVectors];
    for (uint64_t i = 0; i < 4 * kVectors; ++i) start[i] = kPrime * (2 * i + 1);
    for (int i = 0; i < kVectors; ++i) {
      sums_[i] = _mm256_setzero_si256();
      keys_[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(start + 4 * i));
    }
  }

  // `bytes` is a multiple of the stripe in all calls but the last.
  NUMASERVE_AVX2 void add(const std::byte* data, int64_t bytes) {
    const int64_t whole = bytes / kStripe * kStripe;
    add_stripes(data, whole);
    if (whole < bytes) {
      alignas(32) std::byte last[kStripe] = {};
      std::memcpy(last, data + whole, static_cast<size_t>(bytes - whole));
      add_stripes(last, kStripe);
    }
    bytes_ += bytes;
  }

  NUMASERVE_AVX2 uint64_t value() const {
    uint64_t lanes[4 * kVectors], result = static_cast<uint64_t>(bytes_);
    for (int i = 0; i < kVectors; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 4 * i), sums_[i]);
    for (const uint64_t lane : lanes) {
      // The step is invertible in `lane` and in `result`, so no difference is lost here.
      result = (result ^ lane) * kPrime;
      result ^= result >> 32;
    }
    return result;
  }

 private:
  static constexpr uint64_t kPrime = 0x9E3779B185EBCA87;

  NUMASERVE_AVX2 void add_stripes(const std::byte* data, int64_t bytes) {
    // Keys continue from stripe to stripe: otherwise exchanged stripes would have the same sum.
    const __m256i step = _mm256_set1_epi64x(static_cast<int64_t>(0xC2B2AE3D27D4EB4F));
    __m256i sums[kVectors], keys[kVectors];
    std::copy(sums_, sums_ + kVectors, sums);
    std::copy(keys_, keys_ + kVectors, keys);
    for (int64_t at = 0; at < bytes; at += kStripe) {
      for (int i = 0; i < kVectors; ++i) {
        const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i));
        const __m256i mixed = _mm256_xor_si256(values, keys[i]);
        const __m256i products = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
        // The values themselves are added to the neighbouring sum: a product loses them if its other factor is 0.
        sums[i] = _mm256_add_epi64(sums[i], _mm256_add_epi64(products, _mm256_shuffle_epi32(values, 0x4e)));
        keys[i] = _mm256_add_epi64(keys[i], step);
      }
    }
    std::copy(sums, sums + kVectors, sums_);
    std::copy(keys, keys + kVectors, keys_);
  }

  __m256i sums_[kVectors], keys_[kVectors];
  int64_t bytes_ = 0;
};

// Returns 0, or an errno value.
int read_all(int fd, std::byte* to, int64_t bytes, int64_t offset) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, to, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    to += got, offset += got, bytes -= got;
  }
  return 0;
}

int read_unit(int fd, const FilePart& unit, uint64_t* sum) {
  Checksum checksum;
  for (int64_t at = 0; at < unit.bytes; at += kPiece) {
    const int64_t bytes = std::min(kPiece, unit.bytes - at);
    if (const int error = read_all(fd, unit.data + at, bytes, unit.offset + at); error != 0) return error;
    checksum.add(unit.data + at, bytes);
  }
  *sum = checksum.value();
  return 0;
}

}  // namespace

uint64_t checksum(const std::byte* data, int64_t bytes) {
  Checksum sum;
  sum.add(data, bytes);
  return sum.value();
}

std::vector<uint64_t> read_parts(Team& team, int fd, const std::vector<FilePart>& parts) {
  std::vector<FilePart> units;
  for (const FilePart& part : parts)
    for (int64_t at = 0; at < part.bytes; at += kChecksumUnit)
      units.push_back({part.data + at, std::min(kChecksumUnit, part.bytes - at), part.offset + at});
  std::vector<uint64_t> sums(units.size());
  std::atomic<size_t> next{0};
  std::atomic<int> error{0};
  team.parallel([&](int) {
    // Units are taken in order of demand: the time of a read depends on the page cache.
    for (size_t i = next++; i < units.size() && error == 0; i = next++)
      if (const int failed = read_unit(fd, units[i], &sums[i]); failed != 0) error = failed;
  });
  if (error != 0) throw std::system_error(error, std::generic_category());
  return sums;
}

}  // namespace numaserve
