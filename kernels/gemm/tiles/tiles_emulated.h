// AMX tile registers in software, so that every line of the amx set is tested on machines without AMX. The arithmetic
// is that of TDPBF16PS in Intel's manual: even and odd products are summed separately by fused multiply-adds, both sums
// are added, and the total is added to the result. The functions are not inlined: inlining would lengthen compilation
// of this set by half.
//
// A line that is written past the caches reaches memory at the thread's next fence, and never without one: a result
// whose fence is missing is not there, whatever the processor's own order of stores.
#pragma once

#include <immintrin.h>

#include <cstdlib>

#include "kernels/gemm/tiles/line_uses.h"
#include "kernels/include/types.h"

namespace numaserve {
namespace {

inline constexpr int kTileRows = 16;  // of results and activations, at most

// Rows beyond the configured ones are zero.
struct EmulatedTile {
  alignas(64) unsigned char row[kTileRows][64];
};
thread_local EmulatedTile emulated_tiles[8];
thread_local int emulated_rows = 0;  // of results and activations; 0: not configured

inline void emulated_require() {
  if (emulated_rows == 0) __builtin_trap();  // like the processor: #UD
}

[[gnu::noinline]] void emulated_configure(int rows) {
  emulated_rows = rows;
  __builtin_memset(emulated_tiles, 0, sizeof(emulated_tiles));
}

thread_local LineTrace* emulated_trace = nullptr;

inline void emulated_use(LineUse use, const void* line) {
  if (emulated_trace == nullptr) return;
  const int64_t at = emulated_trace->count++;
  if (at >= emulated_trace->room) return;
  emulated_trace->lines[at] = line;
  emulated_trace->uses[at] = use;
}

inline int emulated_rows_of(int t) { return t < 6 ? emulated_rows : kLines; }

[[gnu::noinline]] void emulated_load(int t, const void* base, int64_t stride) {
  emulated_require();
  for (int r = 0; r < emulated_rows_of(t); ++r) {
    const char* row = static_cast<const char*>(base) + r * stride;
    if (t >= 4) emulated_use(t < 6 ? LineUse::kLoadedActivations : LineUse::kLoadedWeights, row);
    __builtin_memcpy(emulated_tiles[t].row[r], row, 64);
  }
}

[[gnu::noinline]] void emulated_store(int t, void* base, int64_t stride) {
  emulated_require();
  for (int r = 0; r < emulated_rows_of(t); ++r)
    __builtin_memcpy(static_cast<char*>(base) + r * stride, emulated_tiles[t].row[r], 64);
}

[[gnu::noinline]] void emulated_zero(int t) {
  emulated_require();
  __builtin_memset(&emulated_tiles[t], 0, sizeof(EmulatedTile));
}

[[gnu::noinline]] void emulated_dpbf16(int c, int a, int b) {
  emulated_require();
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // nearest even, all exceptions masked, subnormals are zero on both sides
  const __m512i odd_mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int m = 0; m < emulated_rows; ++m) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int pair = 0; pair < kLines; ++pair) {
      int bits;
      __builtin_memcpy(&bits, emulated_tiles[a].row[m] + 4 * pair, sizeof(bits));
      const __m512i both = _mm512_set1_epi32(bits), columns = _mm512_load_si512(emulated_tiles[b].row[pair]);
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
                             _mm512_castsi512_ps(_mm512_slli_epi32(columns, 16)), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(both, odd_mask)),
                            _mm512_castsi512_ps(_mm512_and_si512(columns, odd_mask)), odd);
    }
    const __m512 before = _mm512_load_ps(emulated_tiles[c].row[m]);
    _mm512_store_ps(emulated_tiles[c].row[m], _mm512_add_ps(before, _mm512_add_ps(even, odd)));
  }
  _mm_setcsr(mode);
}

[[gnu::noinline]] void emulated_dpbssd(int c, int a, int b) {
  emulated_require();
  // The instruction used takes an unsigned first operand: 128 is added to it, and 128 times the other operand is
  // subtracted.
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int m = 0; m < emulated_rows; ++m) {
    __m512i acc = _mm512_load_si512(emulated_tiles[c].row[m]);
    for (int line = 0; line < kLines; ++line) {
      int bits;
      __builtin_memcpy(&bits, emulated_tiles[a].row[m] + 4 * line, sizeof(bits));
      const __m512i shifted = _mm512_xor_si512(_mm512_set1_epi32(bits), offset);
      const __m512i columns = _mm512_load_si512(emulated_tiles[b].row[line]);
      const __m512i surplus = _mm512_dpbusd_epi32(_mm512_setzero_si512(), offset, columns);
      acc = _mm512_sub_epi32(_mm512_dpbusd_epi32(acc, shifted, columns), surplus);
    }
    _mm512_store_si512(emulated_tiles[c].row[m], acc);
  }
}

[[gnu::noinline]] void emulated_dpbsud(int c, int a, int b) {
  emulated_require();
  for (int m = 0; m < emulated_rows; ++m) {
    __m512i acc = _mm512_load_si512(emulated_tiles[c].row[m]);
    for (int line = 0; line < kLines; ++line) {
      int bits;
      __builtin_memcpy(&bits, emulated_tiles[a].row[m] + 4 * line, sizeof(bits));
      acc = _mm512_dpbusd_epi32(acc, _mm512_load_si512(emulated_tiles[b].row[line]), _mm512_set1_epi32(bits));
    }
    _mm512_store_si512(emulated_tiles[c].row[m], acc);
  }
}

struct EmulatedLine {
  void* line;
  unsigned char bytes[kLineBytes];
};

// The lines written since the last fence. Members of a std::vector would be code that instruction sets share where
// nothing is inlined, as in a build with the address sanitizer (isa/check_symbols.cmake).
struct EmulatedStream {
  EmulatedLine* lines = nullptr;
  size_t count = 0, space = 0;

  ~EmulatedStream() { free(lines); }
  EmulatedLine& add(void* line) {
    if (count == space) {
      space = space == 0 ? 64 : 2 * space;
      lines = static_cast<EmulatedLine*>(realloc(lines, space * sizeof(EmulatedLine)));
      if (lines == nullptr) abort();
    }
    EmulatedLine& added = lines[count++];
    added.line = line;
    return added;
  }
};
thread_local EmulatedStream emulated_stream;

[[gnu::noinline]] inline void emulated_copy_line(void* to, const void* from) {
  emulated_use(LineUse::kCopied, from);
  __builtin_memcpy(to, from, kLineBytes);
}

[[gnu::noinline]] inline void emulated_stream_line(void* line, __m512i value) {
  emulated_use(LineUse::kStreamed, line);
  _mm512_storeu_si512(emulated_stream.add(line).bytes, value);
}

[[gnu::noinline]] inline void emulated_stream_fence() {
  for (size_t i = 0; i < emulated_stream.count; ++i)
    __builtin_memcpy(emulated_stream.lines[i].line, emulated_stream.lines[i].bytes, kLineBytes);
  emulated_stream.count = 0;
}

#define NUMASERVE_TILE_CONFIGURE(rows) emulated_configure(rows)
#define NUMASERVE_TILE_ZERO(t) emulated_zero(t)
#define NUMASERVE_TILE_LOAD(t, base, stride) emulated_load(t, base, stride)
#define NUMASERVE_TILE_LOAD_PAST_FIRST(t, base, stride) emulated_load(t, base, stride)
#define NUMASERVE_TILE_STORE(t, base, stride) emulated_store(t, base, stride)
#define NUMASERVE_TILE_DPBF16(c, a, b) emulated_dpbf16(c, a, b)
#define NUMASERVE_TILE_DPBSSD(c, a, b) emulated_dpbssd(c, a, b)
#define NUMASERVE_TILE_DPBSUD(c, a, b) emulated_dpbsud(c, a, b)
#define NUMASERVE_FETCH_LINE(line) emulated_use(LineUse::kFetched, line)
#define NUMASERVE_COPY_LINE(to, from) emulated_copy_line(to, from)
#define NUMASERVE_STREAM_LINE(line, value) emulated_stream_line(line, value)
#define NUMASERVE_STREAM_FENCE() emulated_stream_fence()
#define NUMASERVE_TRACES_LINES

}  // namespace
}  // namespace numaserve
