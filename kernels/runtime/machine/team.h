// A team of pinned threads that runs one step at a time.
//
// The thread that calls `run` is thread 0. The others are created pinned; between runs they spin briefly and then
// sleep in a futex, so that an idle server costs nothing. Inside a run, threads meet at `barrier`: groups of eight
// report to their leader, leaders to thread 0, and thread 0 lets all go by one store. No OpenMP: a parallel region per
// operation costs more than most operations of a decode step.
//
// Who writes what: `Lane::arrived` is written by its own thread only; `release_` and `generation_` by thread 0 only;
// each stands alone on its cache lines. All counters grow for ever and never wrap in practice (64 bits).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace numaserve {

class Team {
 public:
  // A task may not throw: the others would wait for its thread at the next barrier, and its context would be gone
  // under them. So an exception ends the process, on thread 0 as on the others.
  using Task = void (*)(void* context, int thread) noexcept;

  // Pins the calling thread to cpus[0] and one new thread to each of the others. A negative number leaves its thread
  // unpinned. Throws std::invalid_argument without processors, std::system_error when pinning fails or when there
  // can be no more threads.
  explicit Team(const std::vector<int>& cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Runs task(context, thread) on every thread; returns when all have finished. Not reentrant.
  void run(Task task, void* context);

  template <class F>
  void parallel(F&& body) {
    run([](void* context, int thread) noexcept { (*static_cast<std::remove_reference_t<F>*>(context))(thread); },
        &body);
  }

  // What a thread does with its time while it waits: a little at each call, until it returns false.
  struct Idle {
    bool (*some)(void* context) noexcept = nullptr;
    void* context = nullptr;
  };

  // Called by every thread of a run the same number of times.
  void barrier(int thread, Idle idle);
  void barrier(int thread) { barrier(thread, {}); }

 private:
  struct alignas(128) Lane {
    std::atomic<uint64_t> arrived{0};
    uint64_t count = 0;  // barriers this thread has entered; its own
  };
  struct alignas(128) Word {
    std::atomic<uint64_t> value{0};
  };

  void thread_main(int thread, int cpu);
  void stop();
  void wait_for_generation(uint64_t seen);
  // Without a deadline: threads of a process end together. What waits for another process is a node, by the ring's
  // deadline, and its thread comes to the barrier after it whatever that wait came to.
  static void wait_until(const std::atomic<uint64_t>& word, uint64_t value, Idle& idle);

  int size_;
  std::unique_ptr<Lane[]> lanes_;
  Word release_;
  Word generation_;
  alignas(128) std::atomic<uint32_t> wakeups_{0};  // the futex word: changes with every generation
  std::atomic<uint32_t> sleepers_{0};
  Task task_ = nullptr;  // published by generation_
  void* context_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Pins the calling thread to one processor; throws std::system_error.
void pin_this_thread(int cpu);

}  // namespace numaserve
