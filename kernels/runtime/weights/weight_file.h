// Packed weights in files: parallel reading, and the checksum that detects damaged weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/runtime/machine/team.h"

namespace numaserve {

inline constexpr int64_t kChecksumUnit = 4 << 20;

// Returns a checksum that detects accidental damage. It always detects a flipped bit. It misses zeroed, exchanged or
// torn blocks with a probability of 2^-64. It does not protect against deliberate changes. It is as fast as XXH3, whose
// inner loop it has. CRC32C by the processor's instruction runs at half the speed, which would lengthen loading.
uint64_t checksum(const std::byte* data, int64_t bytes);

struct FilePart {
  std::byte* data;
  int64_t bytes;
  int64_t offset;  // in the file
};

// Reads every part on all threads of the team; each thread first touches the memory that it reads. Returns the
// checksums of all units of kChecksumUnit bytes, part after part; the last unit of a part may be shorter. Each checksum
// is computed while its unit is still in the cache. Throws std::system_error; a file that ends too early is EIO.
std::vector<uint64_t> read_parts(Team& team, int fd, const std::vector<FilePart>& parts);

}  // namespace numaserve
