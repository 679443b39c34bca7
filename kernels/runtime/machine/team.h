// A team of pinned threads that runs one step at a time.
//
// The thread that calls `run` is thread 0. The other threads are pinned when they are created. Between runs they spin
// briefly and then sleep in a futex, so that an idle server costs nothing. Inside a run, threads meet at `barrier`:
// groups of eight report to their leader, leaders report to thread 0, and thread 0 releases all by one store. OpenMP is
// not used: a parallel region per operation costs more than most operations of a decode step.
//
// Writers: `Lane::arrived` is written by its own thread only, `release_` and `generation_` by thread 0 only. Each has
// cache lines of its own. Counters only grow, and never wrap in practice (64 bits).
//
// On a progress board, thread 0 records each barrier, which costs one store to a line that no thread reads. A thread
// marks itself as waiting only after some spins, so that a barrier without a delay does not write.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/runtime/machine/turns.h"
#include "shm_comm/include/numaserve_progress.h"

namespace numaserve {

class Team {
 public:
  // A task may not throw: the other threads would wait for its thread at the next barrier, and its context would be
  // destroyed while they use it. An exception therefore ends the process, on any thread.
  using Task = void (*)(void* context, int thread) noexcept;

  // Pins the calling thread to cpus[0] and one new thread to each other processor. A negative number leaves its thread
  // unpinned. Threads then share cores, and waits sleep: a spinning thread may hold the core of the very thread that it
  // waits for. Throws std::invalid_argument without processors, and std::system_error when pinning or creating
  // a thread fails.
  explicit Team(const std::vector<int>& cpus, progress::Rank progress = {});
  // Makes a team whose threads take turns on the calling thread: one runs up to a barrier, then the next one. It is for
  // Programs that count: the kernel would take most of the time to switch between the hundreds of threads of a host.
  // Throws std::invalid_argument without threads, and std::bad_alloc.
  struct InTurns {
    int threads;
  };
  explicit Team(InTurns turns);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // The threads among which work is divided.
  int size() const { return shares_; }
  // For benchmarks: a team of one thread does what the first of `threads` would do, and the rest of the work is left
  // undone. Throws std::invalid_argument for a team of several threads, and for fewer than one.
  void act_as_first_of(int threads);
  bool takes_turns() const { return turns_ != nullptr; }
  // The thread whose turn it is; of a team that takes turns.
  int turn() const { return turns_->current(); }
  const progress::Rank& progress() const { return progress_; }
  // The barriers that this thread has entered; called by the thread itself.
  uint64_t barriers(int thread) const { return lanes_[static_cast<size_t>(thread)].count; }

  // Runs task(context, thread) on every thread; returns when all have finished. Not reentrant.
  void run(Task task, void* context);

  template <class F>
  void parallel(F&& body) {
    run([](void* context, int thread) noexcept { (*static_cast<std::remove_reference_t<F>*>(context))(thread); },
        &body);
  }

  // Work for a waiting thread: each call does a little; false means that no work is left.
  struct Idle {
    bool (*some)(void* context) noexcept = nullptr;
    void* context = nullptr;
  };

  // Every thread must call this the same number of times in a run.
  void barrier(int thread, Idle idle);
  void barrier(int thread) { barrier(thread, {}); }

 private:
  struct alignas(128) Lane {
    std::atomic<uint64_t> arrived{0};
    uint64_t count = 0;  // barriers that this thread has entered; used by this thread only
  };
  struct alignas(128) Word {
    std::atomic<uint64_t> value{0};
  };

  void thread_main(int thread, int cpu);
  static void take_turns(void* team, int thread) noexcept;
  void stop();
  void begin_generation();
  void wait_for_generation(uint64_t seen);
  // No deadline is needed: the threads of a process end together. Only nodes wait for another process, with the ring's
  // deadline, and their threads reach the next barrier whatever the wait's result.
  void wait_until(int thread, const std::atomic<uint64_t>& word, uint64_t value, Idle& idle) const;
  void publish(std::atomic<uint64_t>& word, uint64_t value) const;  // for wait_until

  int size_;
  int shares_;  // `size_`, but for benchmarks of one of many threads
  bool shares_cores_;
  progress::Rank progress_;
  std::unique_ptr<Lane[]> lanes_;
  Word release_;
  Word generation_;
  alignas(128) std::atomic<uint32_t> sleepers_{0};  // threads that sleep until the next generation
  Task task_ = nullptr;                             // published by generation_
  void* context_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  std::unique_ptr<Turns> turns_;  // in place of `threads_`
};

// Pins the calling thread to one processor; throws std::system_error.
void pin_this_thread(int cpu);

}  // namespace numaserve
