// The GEMM micro-tile of the avx512 set: VDPBF16PS or VPDPBUSD with four bytes of activations broadcast from memory.
// The contract of `tile_gemm` is that of tile_portable.h.

// VPDPBUSD wants its first operand unsigned: activations are stored with this added, and the results corrected.
inline constexpr int kActivationOffset = 128;

inline __m512i dot(__m512i sum, int activations, __m512i line, const bf16*) {
  return _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(sum),
                                              reinterpret_cast<__m512bh>(_mm512_set1_epi32(activations)),
                                              reinterpret_cast<__m512bh>(line)));
}
inline __m512i dot(__m512i sum, int activations, __m512i line, const int8_t*) {
  return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(activations), line);
}

template <bool kStreamed, int kRows, class T, class TileAt, class Sum>
inline void avx512_rows(const T* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles, Sum* c, int64_t ldc,
                        bool accumulate) {
  __m512i acc[kRows][2];  // of fp32 or int32
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < 2; ++p)
      acc[r][p] = accumulate ? _mm512_loadu_si512(c + r * ldc + p * kTileN) : _mm512_setzero_si512();
  // Streamed weights are read strictly in order, tile by tile: the hardware prefetcher then reaches the bandwidth of a
  // plain read loop, where two panels side by side reach a third of it, and with software prefetch three quarters.
  // Weights in the cache go side by side, one broadcast activation for both. An element's sum is the same chain.
  constexpr int kTogether = kStreamed ? 1 : 2;
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    for (int first = 0; first < 2; first += kTogether) {
      const T* tile = b(kt) + first * panel_stride;
#pragma GCC unroll 4
      for (int line = 0; line < kLines; ++line) {
        __m512i columns[kTogether];
        for (int p = 0; p < kTogether; ++p)
          columns[p] = _mm512_loadu_si512(tile + p * panel_stride + line * kTileN * kLineDepth<T>);
        for (int r = 0; r < kRows; ++r) {
          int bits;
          __builtin_memcpy(&bits, a + r * lda + kt * kTileDepth<T> + line * kLineDepth<T>, sizeof(bits));
          for (int p = 0; p < kTogether; ++p) acc[r][first + p] = dot(acc[r][first + p], bits, columns[p], a);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < 2; ++p) _mm512_storeu_si512(c + r * ldc + p * kTileN, acc[r][p]);
}

template <bool kStreamed, class T, class TileAt, class Sum>
inline void tile_gemm(const T* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, Sum* c,
                      int64_t ldc, int rows, bool accumulate) {
  for (int panel = 0; panel < panels; panel += 2) {
    const auto tile = [&](int64_t kt) { return b(kt) + panel * panel_stride; };
    Sum* out = c + panel * kTileN;
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
template <class T>
inline int64_t tile_peak(int64_t rounds) {
  __m512i acc[16];
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  int x = 0x3f803f80;
  for (int64_t i = 0; i < rounds; ++i) {
    const __m512i line = _mm512_set1_epi32(x);
    for (__m512i& a : acc) a = dot(a, x, line, static_cast<const T*>(nullptr));
    __asm__ volatile("" : "+r"(x));
  }
  for (const __m512i& a : acc) __asm__ volatile("" ::"v"(a));
  return rounds * 16 * 2 * kTileN * kLineDepth<T>;
}
