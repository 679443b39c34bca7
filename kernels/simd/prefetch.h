// Software prefetch. The hardware's stops at 4 KiB page boundaries: every fourth weight tile, every page of KV.

inline void prefetch(const bf16* data, int64_t count) {
  for (int64_t i = 0; i < count; i += 32) _mm_prefetch(reinterpret_cast<const char*>(data + i), _MM_HINT_T0);
}

// The tiles that come `kTilesAhead` tiles after `tile` in each of the panels.
template <int kPanels>
inline void prefetch_tiles(const bf16* tile, int64_t panel_stride) {
  constexpr int kTilesAhead = 8;
  for (int p = 0; p < kPanels; ++p) prefetch(tile + p * panel_stride + kTilesAhead * kTileElements, kTileElements);
}
