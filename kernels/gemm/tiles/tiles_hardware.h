// AMX tile registers of the processor, and its uses of single lines: a prefetch, a copy, a store past the caches.
#pragma once

#include <immintrin.h>

#include "kernels/include/types.h"
#include "kernels/simd/prefetch.h"

namespace numaserve {
namespace {

inline constexpr int kTileRows = 16;  // of results and activations, at most

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

// Configurations by the number of rows of results and activations, from 1 on.
struct TileConfigs {
  TileConfig of[kTileRows + 1];
  constexpr TileConfigs() : of{} {
    for (int rows = 1; rows <= kTileRows; ++rows)
      for (int tile = 0; tile < 8; ++tile) of[rows].rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : kLines);
  }
};
constexpr TileConfigs kTileConfigs;

// Not _tile_loadconfig: gcc 12 declares its operand as 8 bytes, so that the optimiser may drop stores to the others
// before it. The operand here is the whole structure, and a constant.
inline void load_tile_config(int rows) { __asm__ volatile("ldtilecfg %0" ::"m"(kTileConfigs.of[rows])); }

#define NUMASERVE_TILE_CONFIGURE(rows) load_tile_config(rows)
#define NUMASERVE_TILE_ZERO(t) _tile_zero(t)
#define NUMASERVE_TILE_LOAD(t, base, stride) _tile_loadd(t, base, stride)
#define NUMASERVE_TILE_LOAD_PAST_FIRST(t, base, stride) _tile_stream_loadd(t, base, stride)
#define NUMASERVE_TILE_STORE(t, base, stride) _tile_stored(t, base, stride)
#define NUMASERVE_TILE_DPBF16(c, a, b) _tile_dpbf16ps(c, a, b)
#define NUMASERVE_TILE_DPBSSD(c, a, b) _tile_dpbssd(c, a, b)
#define NUMASERVE_TILE_DPBSUD(c, a, b) _tile_dpbsud(c, a, b)
#define NUMASERVE_FETCH_LINE(line) prefetch_line(line)
#define NUMASERVE_COPY_LINE(to, from) __builtin_memcpy(to, from, kLineBytes)
#define NUMASERVE_STREAM_LINE(line, value) _mm512_stream_si512(reinterpret_cast<__m512i*>(line), value)
#define NUMASERVE_STREAM_FENCE() _mm_sfence()

}  // namespace
}  // namespace numaserve
