// Threads that take turns on the thread that calls: each has a stack of its own, and goes on until it passes.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <vector>

namespace numaserve {

class Turns {
 public:
  // Never returns.
  using Body = void (*)(void* context, int thread) noexcept;

  // Thread 0 is the caller, whose turn it is. The others begin `body` with their first turns. Throws std::bad_alloc.
  Turns(int threads, Body body, void* context);
  // What lies on the threads' stacks is not destroyed.
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  int current() const { return current_; }
  // Lets the next thread go on, after the last one thread 0; returns in the next turn of the thread that calls.
  void pass();

 private:
  static void begin(unsigned low, unsigned high);
  void prepare(ucontext_t& made, std::byte* stack);

  Body body_;
  void* context_;
  int current_ = 0;
  std::vector<ucontext_t> contexts_;
  std::byte* stacks_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace numaserve
