// AMX in a handler of SIGILL: runs the machine code of the amx set on processors without AMX, as a library for
// LD_PRELOAD. `python -m tests.kernels.amx` does.
//
// Each instruction is decoded where it is, and so are those that follow it directly: one trap for a run of them, after
// which a jump takes the place of the first (patches.h). The emulator is stricter than a processor has to be; what
// would raise an exception ends the process. XCR0, the permission of arch_prctl and what cpuid returns are not
// emulated.
//
// NUMASERVE_AMX_COUNTS names a file in which all processes count the instructions that they run.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/kernels/amx/instruction.h"
#include "tests/kernels/amx/patches.h"
#include "tests/kernels/amx/tiles.h"

namespace numaserve::amx {
namespace {

struct Counts {
  std::atomic<uint64_t> of[kOps];
  char fault[256];  // pytest swallows what a process says when it aborts
};

// A run that is longer has several traps, each of which becomes a jump.
constexpr size_t kRunBytes = 256;

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

Registers registers_of(const ucontext_t& context) {
  constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  Registers registers;
  for (int i = 0; i < 16; ++i) registers.of[i] = static_cast<uint64_t>(context.uc_mcontext.gregs[kOrder[i]]);
  return registers;
}

// The run of instructions at `begin`, copied to `code`. Another thread may be writing a jump there or further on.
Run run_at(const uint8_t* begin, const Registers& registers, std::array<uint8_t, kRunBytes>& code) {
  size_t bytes = 0;
  while (bytes + kLongest <= code.size()) {
    std::memcpy(code.data() + bytes, begin + bytes, kLongest);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // a place is known before its bytes change
    if (patched(begin + bytes) != nullptr) break;
    const std::optional<Instruction> instruction = decode({code.data() + bytes, begin + bytes, registers});
    if (!instruction) break;
    bytes += static_cast<size_t>(instruction->length);
  }
  return {begin, bytes, code.data()};
}

void on_illegal_instruction(int number, siginfo_t*, void* memory) {
  auto& context = *static_cast<ucontext_t*>(memory);
  auto& rip = context.uc_mcontext.gregs[REG_RIP];
  const auto* begin = reinterpret_cast<const uint8_t*>(rip);
  const Registers registers = registers_of(context);
  std::array<uint8_t, kRunBytes> code;
  Run run = run_at(begin, registers, code);
  if (const Run* found = patched(begin); found != nullptr)
    run = *found;
  else
    patch(run);
  if (run.bytes == 0) {  // it will be met once more, under the program's own handler
    system_sigaction(number, &others, nullptr);
    return;
  }
  execute(run, registers);
  rip += static_cast<greg_t>(run.bytes);
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

void execute(const Run& run, const Registers& registers) {
  for (size_t done = 0; done < run.bytes;) {
    running = run.begin + done;
    const Instruction instruction = *decode({run.code + done, running, registers});
    counts->of[static_cast<size_t>(instruction.op)].fetch_add(1, std::memory_order_relaxed);
    tiles.execute(instruction);
    done += static_cast<size_t>(instruction.length);
  }
}

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
