#include "kernels/runtime/machine/turns.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace numaserve {
namespace {

// Address space alone: a page is allocated on first touch. Below each stack lies a page that may not be touched.
constexpr size_t kStack = 512 << 10, kGuard = 4096;

}  // namespace

Turns::Turns(int threads, Body body, void* context)
    : body_(body), context_(context), contexts_(static_cast<size_t>(threads)) {
  bytes_ = (kGuard + kStack) * contexts_.size();
  void* const mapped = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  stacks_ = static_cast<std::byte*>(mapped);
  for (size_t thread = 1; thread < contexts_.size(); ++thread) {
    std::byte* const stack = stacks_ + thread * (kGuard + kStack) + kGuard;
    if (mprotect(stack, kStack, PROT_READ | PROT_WRITE) != 0) {
      munmap(stacks_, bytes_);
      throw std::bad_alloc();
    }
    prepare(contexts_[thread], stack);
  }
}

// Apart from the loop of the constructor: getcontext may return twice, and gcc cannot keep the loop's variable then.
void Turns::prepare(ucontext_t& made, std::byte* stack) {
  getcontext(&made);
  made.uc_stack.ss_sp = stack;
  made.uc_stack.ss_size = kStack;
  made.uc_link = nullptr;
  // The arguments are of type int, so that a pointer takes two.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&made, reinterpret_cast<void (*)()>(begin), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
}

Turns::~Turns() { munmap(stacks_, bytes_); }

void Turns::begin(unsigned low, unsigned high) {
  auto& self = *reinterpret_cast<Turns*>(uintptr_t{high} << 32 | low);
  self.body_(self.context_, self.current_);
}

void Turns::pass() {
  const auto from = static_cast<size_t>(current_), to = (from + 1) % contexts_.size();
  current_ = static_cast<int>(to);
  if (from != to) swapcontext(&contexts_[from], &contexts_[to]);
}

}  // namespace numaserve
