// Sleeping until a word in shared memory changes. The kernel compares 32 bits: the low half of a word of 64, which has
// to change with every store.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace numaserve::ring {

namespace futex_detail {

inline void call(const std::atomic<std::uint64_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace futex_detail

// Returns when woken, now and then for no reason, and immediately if `word` is not `seen`.
inline void sleep_while(const std::atomic<std::uint64_t>& word, std::uint64_t seen) {
  futex_detail::call(word, FUTEX_WAIT, static_cast<std::uint32_t>(seen), nullptr);
}

// The same, for `ns` nanoseconds at most.
inline void sleep_while(const std::atomic<std::uint64_t>& word, std::uint64_t seen, std::uint64_t ns) {
  const timespec timeout{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                         .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  futex_detail::call(word, FUTEX_WAIT, static_cast<std::uint32_t>(seen), &timeout);
}

inline void wake_all(const std::atomic<std::uint64_t>& word) {
  futex_detail::call(word, FUTEX_WAKE, INT32_MAX, nullptr);
}

}  // namespace numaserve::ring
