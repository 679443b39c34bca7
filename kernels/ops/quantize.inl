// Activations to int8, a scale for each row ("dynamic per-token", as in LLM.int8() and compressed-tensors W8A8).

inline constexpr float kInt8Max = 127.0f;

inline float largest_magnitude(const bf16* x, int64_t count) {
  F32x16 peak = F32x16::zero();
  for (int64_t i = 0; i < count; i += 16) {
    const F32x16 v = F32x16::load(x + i);
    peak = F32x16::max(peak, F32x16::max(v, F32x16::zero() - v));
  }
  return peak.max_lane();
}

// With few rows each thread takes a range of the columns of every row: finding the largest value again is cheaper than
// a barrier.
inline void quantize(const QuantizeArgs& q, int thread, int threads) {
  const int64_t columns = round_up(q.cols, kTileDepth<int8_t>);
  const RowShare share = row_share(q.rows, columns, thread, threads);
  for (int64_t r = share.rows.begin; r < share.rows.end; ++r) {
    const bf16* x = q.x + r * q.ldx;
    int8_t* out = q.out + r * q.ldo;
    const float peak = largest_magnitude(x, round_up(q.cols, 16));
    const F32x16 factor = F32x16::set1(peak > 0.0f ? kInt8Max / peak : 0.0f);
    for (int64_t i = share.columns.begin; i < share.columns.end; i += 16) {
      // The input is padded to 32 columns, the output to 64.
      const F32x16 v = i < round_up(q.cols, kPad) ? F32x16::load(x + i) * factor : F32x16::zero();
      v.store_int8(out + i, kActivationOffset);
    }
    const float scale = peak / kInt8Max;
    if (share.columns.end == columns) __builtin_memcpy(out + columns, &scale, sizeof(scale));
  }
}
