#include "kernels/runtime/machine/team.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>

#include "shm_comm/include/numaserve_futex.h"

namespace numaserve {
namespace {

constexpr int kGroup = 8;
// A barrier normally takes well under a microsecond. After this number of pauses, the other thread has been
// descheduled.
constexpr int kBarrierSpins = 4096;
constexpr int kIdleSpins = 20000;  // some 100 microseconds awake between steps

}  // namespace

void pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set); error != 0)
    throw std::system_error(error, std::generic_category(), "cannot pin a thread to CPU " + std::to_string(cpu));
}

Team::Team(const std::vector<int>& cpus, progress::Rank progress)
    : size_(static_cast<int>(cpus.size())),
      shares_(size_),
      shares_cores_(std::any_of(cpus.begin(), cpus.end(), [](int cpu) { return cpu < 0; })),
      progress_(progress) {
  if (cpus.empty()) throw std::invalid_argument("a thread team needs at least one CPU");
  lanes_ = std::make_unique<Lane[]>(cpus.size());
  // The caller visits every processor and ends on its own. A processor that it may not use throws here, where a caller
  // can catch the exception, and not in a new thread.
  for (auto cpu = cpus.rbegin(); cpu != cpus.rend(); ++cpu)
    if (*cpu >= 0) pin_this_thread(*cpu);
  threads_.reserve(cpus.size());
  try {
    for (int i = 1; i < size_; ++i)
      threads_.emplace_back([this, i, cpu = cpus[static_cast<size_t>(i)]] { thread_main(i, cpu); });
  } catch (...) {
    size_ = 1 + static_cast<int>(threads_.size());  // the team as it is now; its threads read this only in a run
    stop();
    throw;
  }
}

Team::Team(InTurns turns) : size_(turns.threads), shares_(turns.threads), shares_cores_(true) {
  if (size_ < 1) throw std::invalid_argument("a thread team needs at least one thread");
  lanes_ = std::make_unique<Lane[]>(static_cast<size_t>(size_));
  turns_ = std::make_unique<Turns>(size_, take_turns, this);
}

Team::~Team() {
  if (!takes_turns()) stop();
}

void Team::act_as_first_of(int threads) {
  if (size_ != 1 || threads < 1)
    throw std::invalid_argument("only a team of one thread can act as the first of several: make a team of one");
  shares_ = threads;
}

void Team::stop() {
  stopping_ = true;
  run([](void*, int) noexcept {}, nullptr);
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(Task task, void* context) {
  task_ = task;
  context_ = context;
  if (!takes_turns()) begin_generation();
  task(context, 0);
  barrier(0);
}

void Team::take_turns(void* self, int thread) noexcept {
  auto& team = *static_cast<Team*>(self);
  while (true) {  // the barrier at the end of a run returns in the next run
    team.task_(team.context_, thread);
    team.barrier(thread);
  }
}

void Team::begin_generation() {
  generation_.value.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) ring::wake_all(generation_.value);
}

void Team::thread_main(int thread, int cpu) {
  if (cpu >= 0) pin_this_thread(cpu);
  uint64_t seen = 0;
  while (true) {
    wait_for_generation(seen++);
    const bool last = stopping_;
    task_(context_, thread);
    barrier(thread);
    if (last) return;
  }
}

void Team::wait_for_generation(uint64_t seen) {
  for (int spin = shares_cores_ ? kIdleSpins : 0; spin < kIdleSpins; ++spin) {
    if (generation_.value.load(std::memory_order_acquire) > seen) return;
    _mm_pause();
  }
  while (true) {
    const uint64_t generation = generation_.value.load(std::memory_order_acquire);
    if (generation > seen) return;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    ring::sleep_while(generation_.value, generation);  // returns immediately if a run has begun meanwhile
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Team::wait_until(int thread, const std::atomic<uint64_t>& word, uint64_t value, Idle& idle) const {
  int spin = 0;
  bool marked = false;
  for (uint64_t seen; (seen = word.load(std::memory_order_acquire)) < value;) {
    if (idle.some != nullptr && !idle.some(idle.context)) idle.some = nullptr;
    if (idle.some != nullptr) continue;
    if (shares_cores_) {
      ring::sleep_while(word, seen);
    } else if (++spin < kBarrierSpins) {
      _mm_pause();
    } else {
      if (!marked) progress_.wait(thread, true);
      marked = true;
      spin = kBarrierSpins;
      sched_yield();
    }
  }
  if (marked) progress_.wait(thread, false);
}

void Team::publish(std::atomic<uint64_t>& word, uint64_t value) const {
  word.store(value, std::memory_order_release);
  if (shares_cores_) ring::wake_all(word);
}

void Team::barrier(int thread, Idle idle) {
  const uint64_t count = ++lanes_[static_cast<size_t>(thread)].count;
  if (takes_turns()) return turns_->pass();  // when this thread's turn comes again, all others have arrived
  if (thread % kGroup == 0) {
    const int end = std::min(thread + kGroup, size_);
    for (int member = thread + 1; member < end; ++member)
      wait_until(thread, lanes_[static_cast<size_t>(member)].arrived, count, idle);
  }
  if (thread == 0) {
    for (int leader = kGroup; leader < size_; leader += kGroup)
      wait_until(thread, lanes_[static_cast<size_t>(leader)].arrived, count, idle);
    publish(release_.value, count);
    progress_.pass(count);
    return;
  }
  publish(lanes_[static_cast<size_t>(thread)].arrived, count);
  wait_until(thread, release_.value, count, idle);
}

}  // namespace numaserve
