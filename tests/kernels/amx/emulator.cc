// AMX in a handler of SIGILL: runs the machine code of the amx set on processors without AMX, as a library for
// LD_PRELOAD. `python -m tests.kernels.amx` does.
//
// Each instruction is decoded where it is, and so are those that follow it directly: one trap for a run of them. It is
// stricter than a processor has to be; what would raise an exception ends the process. XCR0, the permission of
// arch_prctl and what cpuid tells are not emulated.
//
// NUMASERVE_AMX_COUNTS names a file in which all processes count the instructions that they run.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/kernels/amx/instruction.h"
#include "tests/kernels/amx/tiles.h"

namespace numaserve::amx {
namespace {

struct Counts {
  std::atomic<uint64_t> of[kOps];
  char fault[256];  // pytest swallows what a process says when it aborts
};

Counts own_counts{};
Counts* counts = &own_counts;

[[gnu::tls_model("initial-exec")]] constinit thread_local Tiles tiles;
[[gnu::tls_model("initial-exec")]] constinit thread_local const uint8_t* running = nullptr;

using Sigaction = int (*)(int, const struct sigaction*, struct sigaction*);
struct sigaction others{};  // what the program wants done with the signal

int system_sigaction(int number, const struct sigaction* action, struct sigaction* before) {
  static const auto next = reinterpret_cast<Sigaction>(dlsym(RTLD_NEXT, "sigaction"));
  return next(number, action, before);
}

void on_illegal_instruction(int number, siginfo_t*, void* memory) {
  auto& context = *static_cast<ucontext_t*>(memory);
  auto& rip = context.uc_mcontext.gregs[REG_RIP];
  running = reinterpret_cast<const uint8_t*>(rip);
  std::optional<Instruction> instruction = decode(running, context);
  if (!instruction) {  // it will be met once more, under the program's own handler
    system_sigaction(number, &others, nullptr);
    return;
  }
  for (; instruction; instruction = decode(running, context)) {
    counts->of[static_cast<size_t>(instruction->op)].fetch_add(1, std::memory_order_relaxed);
    tiles.execute(*instruction);
    running += instruction->length;
  }
  rip = reinterpret_cast<greg_t>(running);
}

[[gnu::constructor]] void begin() {
  if (const char* path = std::getenv("NUMASERVE_AMX_COUNTS"); path != nullptr) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void* memory = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || memory == MAP_FAILED) {
      std::perror(path);
      std::abort();
    }
    close(file);
    counts = static_cast<Counts*>(memory);
  }
  others.sa_handler = SIG_DFL;
  struct sigaction own{};
  own.sa_sigaction = on_illegal_instruction;
  own.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  system_sigaction(SIGILL, &own, nullptr);
}

}  // namespace

void fault(const char* kind, const char* why) {
  Dl_info where{};
  dladdr(running, &where);
  char text[sizeof(Counts::fault)];
  std::snprintf(text, sizeof(text), "#%s in process %d at %s+%#tx: %s\n", kind, getpid(),
                where.dli_fname != nullptr ? where.dli_fname : "?",
                running - static_cast<const uint8_t*>(where.dli_fbase), why);
  std::memcpy(counts->fault, text, sizeof(text));
  std::fputs(text, stderr);
  std::abort();
}

}  // namespace numaserve::amx

// Keeps the handler in its place: faulthandler, which pytest enables, and others would take the signal.
extern "C" [[gnu::visibility("default")]] int sigaction(int number, const struct sigaction* action,
                                                        struct sigaction* before) noexcept {
  using namespace numaserve::amx;
  if (number != SIGILL) return system_sigaction(number, action, before);
  if (before != nullptr) *before = others;
  if (action != nullptr) others = *action;
  return 0;
}
