// Packed weights to and from a file: parallel reading, and the checksum that tells whether they are whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/runtime/machine/team.h"

namespace numaserve {

inline constexpr int64_t kChecksumUnit = 4 << 20;

// Tells accidental damage: a flipped bit always changes it; zeroed, exchanged or torn blocks do so but for one in 2^64.
// It is no protection against someone who wants to deceive. As fast as XXH3, whose inner loop it has; a CRC32C by the
// processor's instruction runs at half the speed, which shows in the time of a load.
uint64_t checksum(const std::byte* data, int64_t bytes);

struct FilePart {
  std::byte* data;
  int64_t bytes;
  int64_t offset;  // in the file
};

// Reads every part on all threads of the team, each of which touches first what it reads. Returns the checksums of all
// units of kChecksumUnit bytes (the last one of a part may be shorter), part after part. Each is computed while its
// unit is still in the cache. Throws std::system_error; a file that ends too early is EIO.
std::vector<uint64_t> read_parts(Team& team, int fd, const std::vector<FilePart>& parts);

}  // namespace numaserve
