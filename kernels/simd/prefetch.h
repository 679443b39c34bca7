// Software prefetch of one cache line: for pages of KV, which lie anywhere in memory, where the hardware's cannot look
// ahead, and for what is far ahead.
//
// To the second-level cache: a line under way to the first level holds one of the core's few miss buffers for as long
// as memory takes, and a prefetch that finds none is dropped (measured: half the bandwidth that the second level
// reaches). As assembly, because gcc removes a loop that has nothing but prefetches in it.
#pragma once

namespace numaserve {
namespace {

inline void prefetch_line(const void* data) {
  __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(data)));
}

// To the first level: for a stream that is read at the pace at which it is fetched, a line or two each step. Assembly
// here too: gcc drops a function object that has nothing but a prefetch in it.
inline void prefetch_first(const void* data) {
  __asm__ volatile("prefetcht0 %0" ::"m"(*static_cast<const char*>(data)));
}

}  // namespace
}  // namespace numaserve
