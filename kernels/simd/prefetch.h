// Software prefetch of one cache line, for pages of KV, which lie anywhere in memory, where the hardware prefetcher
// cannot predict them, and for distant memory.
//
// To the second-level cache: a line in flight to the first level occupies one of the core's few miss buffers for the
// whole memory latency, and a prefetch that finds no buffer is dropped (measured: half the bandwidth of prefetching to
// the second level). Written as assembly, because gcc removes a loop that contains only prefetches.
#pragma once

namespace numaserve {
namespace {

inline void prefetch_line(const void* data) {
  __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(data)));
}

// To the first level: for a stream that is read at the pace at which it is prefetched, a line or two at each step. Also
// assembly: gcc drops a function object that contains only a prefetch.
inline void prefetch_first(const void* data) {
  __asm__ volatile("prefetcht0 %0" ::"m"(*static_cast<const char*>(data)));
}

// To the first level, to be written: the line need not be asked for again when a store finds it shared.
inline void prefetch_written(const void* data) {
  __asm__ volatile("prefetchw %0" ::"m"(*static_cast<const char*>(data)));
}

}  // namespace
}  // namespace numaserve
