// The GEMM micro-tile of the amx set: up to 2 x 2 tiles of 16 x 16 results. The contract of `tile_gemm` is that of
// tile_portable.h. Tile registers: 0-3 results (row tile * 2 + panel), 4-5 activations, 6-7 weights.
//
// A row tile is always 16 rows: a tile of one row costs nothing next to streaming the weights, and one tile
// configuration serves the whole life of a thread (changing it costs more than the rows it would save).

template <bool kStreamed, int kRowTiles, int kPanels, class TileAt>
inline void amx_block(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles, float* c,
                      int64_t ldc, bool accumulate) {
  const int64_t a_bytes = lda * static_cast<int64_t>(sizeof(bf16));
  const int64_t c_bytes = ldc * static_cast<int64_t>(sizeof(float));
  const bf16* a1 = a + 16 * lda;
  float* c1 = c + 16 * ldc;
  // gcc's tile loads do not say that they read memory: without this, stores to `a` or `c` could sink below them.
  __asm__ volatile("" ::: "memory");
  if (accumulate) {
    NUMASERVE_TILE_LOAD(0, c, c_bytes);
    if constexpr (kPanels == 2) NUMASERVE_TILE_LOAD(1, c + kTileN, c_bytes);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(2, c1, c_bytes);
    if constexpr (kRowTiles == 2 && kPanels == 2) NUMASERVE_TILE_LOAD(3, c1 + kTileN, c_bytes);
  } else {
    NUMASERVE_TILE_ZERO(0);
    NUMASERVE_TILE_ZERO(1);
    NUMASERVE_TILE_ZERO(2);
    NUMASERVE_TILE_ZERO(3);
  }
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    const bf16* tile = b(kt);
    NUMASERVE_TILE_LOAD(6, tile, 64);
    if constexpr (kPanels == 2) NUMASERVE_TILE_LOAD(7, tile + panel_stride, 64);
    NUMASERVE_TILE_LOAD(4, a + kt * kTileK, a_bytes);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_LOAD(5, a1 + kt * kTileK, a_bytes);
    if constexpr (kStreamed) prefetch_tiles<kPanels>(tile, panel_stride);
    NUMASERVE_TILE_DPBF16(0, 4, 6);
    if constexpr (kPanels == 2) NUMASERVE_TILE_DPBF16(1, 4, 7);
    if constexpr (kRowTiles == 2) NUMASERVE_TILE_DPBF16(2, 5, 6);
    if constexpr (kRowTiles == 2 && kPanels == 2) NUMASERVE_TILE_DPBF16(3, 5, 7);
  }
  NUMASERVE_TILE_STORE(0, c, c_bytes);
  if constexpr (kPanels == 2) NUMASERVE_TILE_STORE(1, c + kTileN, c_bytes);
  if constexpr (kRowTiles == 2) NUMASERVE_TILE_STORE(2, c1, c_bytes);
  if constexpr (kRowTiles == 2 && kPanels == 2) NUMASERVE_TILE_STORE(3, c1 + kTileN, c_bytes);
}

template <bool kStreamed, int kPanels, class TileAt>
inline void amx_panels(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles, float* c,
                       int64_t ldc, int rows, bool accumulate) {
  int r = 0;
  for (; r + 16 < rows; r += 32)
    amx_block<kStreamed, 2, kPanels>(a + r * lda, lda, b, panel_stride, k_tiles, c + r * ldc, ldc, accumulate);
  if (r < rows)
    amx_block<kStreamed, 1, kPanels>(a + r * lda, lda, b, panel_stride, k_tiles, c + r * ldc, ldc, accumulate);
}

template <bool kStreamed, class TileAt>
inline void tile_gemm(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, float* c,
                      int64_t ldc, int rows, bool accumulate) {
  int p = 0;
  for (; p + 2 <= panels; p += 2) {
    const auto tile = [&](int64_t kt) { return b(kt) + p * panel_stride; };
    amx_panels<kStreamed, 2>(a, lda, tile, panel_stride, k_tiles, c + p * kTileN, ldc, rows, accumulate);
  }
  if (p < panels) {
    const auto tile = [&](int64_t kt) { return b(kt) + p * panel_stride; };
    amx_panels<kStreamed, 1>(a, lda, tile, panel_stride, k_tiles, c + p * kTileN, ldc, rows, accumulate);
  }
}

inline void tile_begin() { NUMASERVE_TILE_CONFIGURE(); }

// As many multiply-adds as the processor can do, for measuring what that is; returns how many operations it did.
inline int64_t tile_peak(int64_t rounds) {
  alignas(64) static const bf16 kZeros[kTileElements] = {};
  NUMASERVE_TILE_ZERO(0);
  NUMASERVE_TILE_ZERO(1);
  NUMASERVE_TILE_ZERO(2);
  NUMASERVE_TILE_ZERO(3);
  NUMASERVE_TILE_LOAD(4, kZeros, 64);
  NUMASERVE_TILE_LOAD(5, kZeros, 64);
  NUMASERVE_TILE_LOAD(6, kZeros, 64);
  NUMASERVE_TILE_LOAD(7, kZeros, 64);
  for (int64_t i = 0; i < rounds; ++i) {
    NUMASERVE_TILE_DPBF16(0, 4, 6);
    NUMASERVE_TILE_DPBF16(1, 4, 7);
    NUMASERVE_TILE_DPBF16(2, 5, 6);
    NUMASERVE_TILE_DPBF16(3, 5, 7);
  }
  return rounds * 4 * 2 * 16 * 16 * 32;
}
