// The GEMM micro-tile of the avx512 set: VDPBF16PS with the activation pair broadcast from memory. The contract of
// `tile_gemm` is that of tile_portable.h.

template <bool kStreamed, int kRows, class TileAt>
inline void avx512_rows(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles, float* c,
                        int64_t ldc, bool accumulate) {
  __m512 acc[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < 2; ++p)
      acc[r][p] = accumulate ? _mm512_loadu_ps(c + r * ldc + p * kTileN) : _mm512_setzero_ps();
  // Streamed weights are read strictly in order, tile by tile: the hardware prefetcher then reaches the bandwidth of a
  // plain read loop, where two panels side by side reach a third of it, and with software prefetch three quarters.
  // Weights in the cache go side by side, one broadcast activation for both. An element's sum is the same chain.
  constexpr int kTogether = kStreamed ? 1 : 2;
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    for (int first = 0; first < 2; first += kTogether) {
      const bf16* tile = b(kt) + first * panel_stride;
#pragma GCC unroll 4
      for (int pair = 0; pair < kTileK / 2; ++pair) {
        __m512bh columns[kTogether];
        for (int p = 0; p < kTogether; ++p)
          columns[p] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(tile + p * panel_stride + pair * 32));
        for (int r = 0; r < kRows; ++r) {
          int bits;
          __builtin_memcpy(&bits, a + r * lda + kt * kTileK + pair * 2, sizeof(bits));
          const __m512bh row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
          for (int p = 0; p < kTogether; ++p) acc[r][first + p] = _mm512_dpbf16_ps(acc[r][first + p], row, columns[p]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < 2; ++p) _mm512_storeu_ps(c + r * ldc + p * kTileN, acc[r][p]);
}

template <bool kStreamed, class TileAt>
inline void tile_gemm(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, float* c,
                      int64_t ldc, int rows, bool accumulate) {
  for (int panel = 0; panel < panels; panel += 2) {
    const auto tile = [&](int64_t kt) { return b(kt) + panel * panel_stride; };
    float* out = c + panel * kTileN;
    // Twelve rows by two panels fill the registers; fewer rows go in one pass too, so that weights are read once.
    const auto pass = [&]<int kRows>(int r) {
      avx512_rows<kStreamed, kRows>(a + r * lda, lda, tile, panel_stride, k_tiles, out + r * ldc, ldc, accumulate);
      return kRows;
    };
    int r = 0;
    while (rows - r >= 12) r += pass.template operator()<12>(r);
    while (rows - r >= 8) r += pass.template operator()<8>(r);
    while (rows - r >= 4) r += pass.template operator()<4>(r);
    if (rows - r == 3) pass.template operator()<3>(r);
    if (rows - r == 2) pass.template operator()<2>(r);
    if (rows - r == 1) pass.template operator()<1>(r);
  }
}

inline void tile_begin() {}

// As many multiply-adds as the processor can do, for measuring what that is; returns how many operations it did.
inline int64_t tile_peak(int64_t rounds) {
  __m512 acc[16];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  __m512i x = _mm512_set1_epi32(0x3f803f80);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m512& a : acc) a = _mm512_dpbf16_ps(a, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(x));
    __asm__ volatile("" : "+v"(x));
  }
  for (const __m512& a : acc) __asm__ volatile("" ::"v"(a));
  return rounds * 16 * 64;
}
