// Software prefetch, for pages of KV: they lie anywhere in memory, where the hardware's cannot look ahead.

inline void prefetch(const bf16* data, int64_t count) {
  for (int64_t i = 0; i < count; i += 32) _mm_prefetch(reinterpret_cast<const char*>(data + i), _MM_HINT_T0);
}
