// Single AMX instructions. The file is compiled for processors that have them: nothing here is inline.
#pragma once

#include <cstddef>
#include <cstdint>

namespace numaserve {

// A product of tiles: c [rows][columns] += a [rows][depth] · b [depth][columns], in words of four bytes.
struct TileProduct {
  int rows, columns, depth;
  const std::byte *a, *b;
  std::byte* c;
};

enum class TileKind { kBf16, kSignedSigned, kSignedUnsigned, kUnsignedSigned, kUnsignedUnsigned };

void multiply_tiles(TileKind kind, const TileProduct& product);

// Whether the configuration that is stored is the one that was loaded.
bool keeps_its_configuration();

// A fault with which the processor ends a process.
struct TileFault {
  const char* name;
  void (*run)();
};
extern const TileFault kTileFaults[];
extern const size_t kNumTileFaults;

}  // namespace numaserve
