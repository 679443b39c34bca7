// Waiting for a word of another process: pause, then umwait where the processor has it, then sched_yield. Ranks that
// share cores sleep instead.
#pragma once

#include <cpuid.h>
#include <poll.h>
#include <sched.h>
#include <x86intrin.h>

#include <atomic>
#include <cstdint>

#include "shm_comm/include/numaserve_futex.h"
#include "shm_comm/include/numaserve_patience.h"

namespace numaserve::ring {

inline std::uint64_t cycles() { return __rdtsc(); }

inline bool probe_waitpkg() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 5)) != 0;
}

// Sleeps in the light state C0.1 until `word` is written or some microseconds have passed. Inline assembly is used
// because the intrinsic requires compiling the whole file for processors that have the instruction.
inline void umwait_word(const std::atomic<std::uint64_t>& word, std::uint64_t seen) {
  constexpr std::uint64_t kMaxCycles = 20'000;  // some 8 us: the longest delay in noticing an abort
  asm volatile("umonitor %0" : : "r"(&word) : "memory");
  if (word.load(std::memory_order_relaxed) != seen) return;  // written before the monitor was armed
  const std::uint64_t until = cycles() + kMaxCycles;
  asm volatile("umwait %0"
               :
               : "r"(1U), "a"(static_cast<std::uint32_t>(until)), "d"(static_cast<std::uint32_t>(until >> 32))
               : "cc", "memory");
}

enum class Status : std::uint8_t { ok = 0, aborted = 1, deadline = 2 };

struct WaitPolicy {
  std::uint64_t deadline_ns = 60'000'000'000ULL;
  int pauses = 1000;
  int umwaits = probe_waitpkg() ? 64 : 0;
  bool sleeps = false;  // a wait sleeps instead of yielding; the thread that stores an epoch wakes the waiters
  int lifeline = -1;    // read end of a pipe: no wait ends at its deadline while another process may write to it
};

// Whether a pipe has a writer.
inline bool is_open(int pipe) {
  pollfd one{.fd = pipe, .events = 0, .revents = 0};
  return pipe >= 0 && poll(&one, 1, 0) >= 0 && (one.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0;
}

// Waits until `epoch` reaches `target`; `seen` receives the value that satisfied it. `stop` is the abort word. The
// pauses cover a peer that is a few microseconds late, the case that latency depends on. The yields cover a peer whose
// core is taken by another process for a while.
//
// Ranks with a core each do not sleep: the waker would pay a system call for every collective, and idle workers do not
// wait here. Ranks that share cores do: threads that yield stay runnable, and take turns on the core of the thread that
// they wait for.
inline Status await_epoch(const std::atomic<std::uint64_t>& epoch, std::uint64_t target,
                          const std::atomic<std::uint32_t>& stop, const WaitPolicy& policy, std::uint64_t& seen) {
  constexpr std::uint64_t kSleepNs = 10'000'000;  // the longest delay in noticing an abort
  for (int i = 0; i < policy.pauses; ++i) {
    seen = epoch.load(std::memory_order_acquire);
    if (seen >= target) return Status::ok;
    _mm_pause();
  }
  Patience patience(policy.deadline_ns);
  for (int umwaits = 0;;) {
    seen = epoch.load(std::memory_order_acquire);
    if (seen >= target) return Status::ok;
    if (stop.load(std::memory_order_acquire) != 0) return Status::aborted;
    if (umwaits < policy.umwaits) {
      ++umwaits;
      umwait_word(epoch, seen);
      continue;
    }
    if (patience.ends()) {
      if (!is_open(policy.lifeline)) return Status::deadline;
      patience = Patience(policy.deadline_ns);
    }
    if (policy.sleeps)
      sleep_while(epoch, seen, kSleepNs);
    else
      sched_yield();
  }
}

}  // namespace numaserve::ring
