// The GEMM micro-tile of the portable set: bf16 widened to fp32, two AVX2 registers a column block.

// c[rows, panels * 16] (+)= a[rows, k_tiles * 32] · B, where b(kt) is the tile of the first panel for k-tile kt and
// each further panel's lies `panel_stride` elements on; `panels` is even. Each element is one chain of fused
// multiply-adds in k order, whatever `rows` is: that is what makes a row's bits independent of its batch.
// Rows of `a` and `c` beyond `rows`, up to a multiple of 32, may be read and written. `kStreamed` says that the tiles
// come from memory, one after the other, and not from the cache.
template <int kRows, int kPanels, class TileAt>
inline void portable_rows(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int64_t k_tiles, float* c,
                          int64_t ldc, bool accumulate) {
  constexpr int kHalves = 2 * kPanels;  // registers of 8 columns
  __m256 acc[kRows][kHalves];
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < kHalves; ++h)
      acc[r][h] = accumulate ? _mm256_loadu_ps(c + r * ldc + 8 * h) : _mm256_setzero_ps();
  const __m256i odd_mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  for (int64_t kt = 0; kt < k_tiles; ++kt) {
    for (int p = 0; p < kPanels; ++p) {
      const bf16* tile = b(kt) + p * panel_stride;
      for (int pair = 0; pair < kTileK / 2; ++pair) {
        __m256 even[2], odd[2];
        for (int h = 0; h < 2; ++h) {
          const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + pair * 32 + h * 16));
          even[h] = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
          odd[h] = _mm256_castsi256_ps(_mm256_and_si256(raw, odd_mask));
        }
        for (int r = 0; r < kRows; ++r) {
          int bits;
          __builtin_memcpy(&bits, a + r * lda + kt * kTileK + pair * 2, sizeof(bits));
          const __m256i both = _mm256_set1_epi32(bits);
          const __m256 a_even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
          const __m256 a_odd = _mm256_castsi256_ps(_mm256_and_si256(both, odd_mask));
          for (int h = 0; h < 2; ++h) {
            __m256& sum = acc[r][2 * p + h];
            sum = _mm256_fmadd_ps(a_odd, odd[h], _mm256_fmadd_ps(a_even, even[h], sum));
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < kHalves; ++h) _mm256_storeu_ps(c + r * ldc + 8 * h, acc[r][h]);
}

// Four rows by one panel fill the registers. One row takes two panels, whose tiles lie side by side in memory.
template <bool, class TileAt>
inline void tile_gemm(const bf16* a, int64_t lda, TileAt b, int64_t panel_stride, int panels, int64_t k_tiles, float* c,
                      int64_t ldc, int rows, bool accumulate) {
  for (int p = 0; p < panels; p += 2) {
    const auto tile = [&](int64_t kt) { return b(kt) + p * panel_stride; };
    const auto second = [&](int64_t kt) { return b(kt) + (p + 1) * panel_stride; };
    float* out = c + p * kTileN;
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
      portable_rows<4, 1>(a + r * lda, lda, tile, 0, k_tiles, out + r * ldc, ldc, accumulate);
      portable_rows<4, 1>(a + r * lda, lda, second, 0, k_tiles, out + r * ldc + kTileN, ldc, accumulate);
    }
    for (; r < rows; ++r)
      portable_rows<1, 2>(a + r * lda, lda, tile, panel_stride, k_tiles, out + r * ldc, ldc, accumulate);
  }
}

inline void tile_begin() {}

// As many multiply-adds as the processor can do, for measuring what that is; returns how many operations it did.
inline int64_t tile_peak(int64_t rounds) {
  __m256 acc[12];
  for (__m256& a : acc) a = _mm256_setzero_ps();
  __m256 x = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m256& a : acc) a = _mm256_fmadd_ps(x, x, a);
    __asm__ volatile("" : "+x"(x));
  }
  for (const __m256& a : acc) __asm__ volatile("" ::"x"(a));
  return rounds * 12 * 16;
}
