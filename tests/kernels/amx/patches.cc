#include "tests/kernels/amx/patches.h"

#include <immintrin.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <new>

// Called by the code of a run with its `Run` in RAX. The stack has the return address, the program's RAX, and its red
// zone of 128 bytes. Saves what a C++ function may change: the kernel's vectors too (components 1, 2 and 5 to 7 of
// XSAVE; in the standard format they end at byte 2688, and all of the header but its first word is zero).
asm(R"(
  .text
  .hidden numaserve_amx_enter
  .globl numaserve_amx_enter
  .type numaserve_amx_enter, @function
numaserve_amx_enter:
  pushfq
  push %r15
  push %r14
  push %r13
  push %r12
  push %r11
  push %r10
  push %r9
  push %r8
  push %rdi
  push %rsi
  push %rbp
  push %rsp
  push %rbx
  push %rdx
  push %rcx
  push 136(%rsp)
  mov %rax, %rdi
  mov %rsp, %rsi
  mov %rsp, %rbp
  sub $2688, %rsp
  and $-64, %rsp
  xor %eax, %eax
  mov %rax, 512(%rsp)
  mov %rax, 520(%rsp)
  mov %rax, 528(%rsp)
  mov %rax, 536(%rsp)
  mov %rax, 544(%rsp)
  mov %rax, 552(%rsp)
  mov %rax, 560(%rsp)
  mov %rax, 568(%rsp)
  xor %edx, %edx
  mov $0xe6, %eax
  xsave64 (%rsp)
  cld
  call numaserve_amx_execute
  xor %edx, %edx
  mov $0xe6, %eax
  xrstor64 (%rsp)
  lea 8(%rbp), %rsp
  pop %rcx
  pop %rdx
  pop %rbx
  lea 8(%rsp), %rsp
  pop %rbp
  pop %rsi
  pop %rdi
  pop %r8
  pop %r9
  pop %r10
  pop %r11
  pop %r12
  pop %r13
  pop %r14
  pop %r15
  popfq
  ret
  .size numaserve_amx_enter, .-numaserve_amx_enter
)");

extern "C" void numaserve_amx_enter();

extern "C" [[gnu::visibility("hidden"), gnu::used]] void numaserve_amx_execute(const numaserve::amx::Run* run,
                                                                               numaserve::amx::Registers* registers) {
  _mm_setcsr(0x1f80);  // AMX reads no MXCSR: the emulator needs the state of a new process, as a signal's handler has
  // From the first of the saved registers: these, the flags, the return address, RAX and the red zone.
  registers->of[4] = reinterpret_cast<uint64_t>(registers) + sizeof(*registers) + 3 * 8 + 128;
  execute(*run, *registers);
}

namespace numaserve::amx {
namespace {

constexpr size_t kJumpBytes = 5, kArenaBytes = 1 << 18, kArenas = 64, kPlaces = 1 << 15;
constexpr uint8_t kJump = 0xe9;           // JMP rel32
constexpr uint8_t kNoInstruction = 0x06;  // PUSH ES, which 64-bit mode does not have

// Memory for runs and their code, within a jump of the program's code.
struct Arena {
  std::byte* memory = nullptr;
  size_t used = 0;
};

std::atomic_flag writing = ATOMIC_FLAG_INIT;
std::array<Arena, kArenas> arenas;
std::array<std::atomic<const Run*>, kPlaces> runs;  // by a hash of their place; none is removed

size_t place_of(const uint8_t* address) {
  return static_cast<size_t>(reinterpret_cast<uint64_t>(address) * 0x9e3779b97f4a7c15 >> 49);
}

bool insert(const Run* run) {
  for (size_t i = 0, at = place_of(run->begin); i < kPlaces / 2; ++i, at = (at + 1) % kPlaces) {
    if (runs[at].load(std::memory_order_relaxed) != nullptr) continue;
    runs[at].store(run, std::memory_order_release);
    return true;
  }
  return false;
}

bool reaches(const void* from, const void* to) {
  const auto distance = reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from);
  return distance > -(intptr_t{1} << 30) && distance < intptr_t{1} << 30;
}

void* map_near(const uint8_t* address) {
  const auto around = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{(1 << 20) - 1};
  for (uintptr_t distance = 1 << 24; distance < uintptr_t{1} << 29; distance += 1 << 24) {
    for (const uintptr_t hint : {around - distance, around + distance}) {
      void* memory = mmap(reinterpret_cast<void*>(hint), kArenaBytes, PROT_READ | PROT_WRITE | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (memory != MAP_FAILED) return memory;
    }
  }
  return nullptr;
}

std::byte* take(const uint8_t* address, size_t bytes) {
  for (Arena& arena : arenas) {
    if (arena.memory == nullptr) arena.memory = static_cast<std::byte*>(map_near(address));
    if (arena.memory == nullptr) return nullptr;
    if (!reaches(address, arena.memory) || arena.used + bytes > kArenaBytes) continue;
    arena.used += bytes;
    return arena.memory + arena.used - bytes;
  }
  return nullptr;
}

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  void put(T value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }
  void bytes(std::initializer_list<uint8_t> values) {
    for (const uint8_t value : values) put(value);
  }
  void jump(const uint8_t* to) {
    put(kJump);
    put(static_cast<int32_t>(to - reinterpret_cast<uint8_t*>(at_) - 4));
  }

 private:
  std::byte* at_;
};

void write_code(std::byte* code, const Run* run) {
  Writer writer(code);
  writer.bytes({0x48, 0x8d, 0x64, 0x24, 0x80});     // lea -128(%rsp), %rsp
  writer.bytes({0x50, 0x48, 0xb8});                 // push %rax; movabs
  writer.put(run);                                  // $run, %rax
  writer.bytes({0xff, 0x15, 2, 0, 0, 0, 0xeb, 8});  // call *2(%rip); jmp over the address
  writer.put(&numaserve_amx_enter);                 //
  writer.bytes({0x58, 0x48, 0x8d, 0xa4, 0x24});     // pop %rax; lea
  writer.put(int32_t{128});                         // 128(%rsp), %rsp
  writer.jump(run->begin + run->bytes);
}
constexpr size_t kCodeBytes = 48;

bool synchronize_cores() { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) == 0; }

bool make_writable(const uint8_t* begin) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) & ~(page - 1);
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + kJumpBytes - 1) & ~(page - 1);
  return mprotect(reinterpret_cast<void*>(first), last - first + page, PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
}

void write_jump(const uint8_t* begin, const uint8_t* to) {
  const auto distance = static_cast<int32_t>(to - begin - static_cast<ptrdiff_t>(kJumpBytes));
  auto* place = const_cast<uint8_t*>(begin);
  std::atomic_ref(*place).store(kNoInstruction);
  if (!synchronize_cores()) return;  // trapped as before, and looked up
  std::memcpy(place + 1, &distance, sizeof(distance));
  if (synchronize_cores()) std::atomic_ref(*place).store(kJump);
}

void patch_alone(const Run& found) {
  if (found.bytes == 0 || patched(found.begin) != nullptr || !make_writable(found.begin)) return;
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) != 0) return;
  std::byte* memory = take(found.begin, (sizeof(Run) + kCodeBytes + found.bytes + 63) / 64 * 64);
  if (memory == nullptr) return;
  std::byte* code = memory + sizeof(Run);
  std::memcpy(code + kCodeBytes, found.code, found.bytes);
  const auto* copy = reinterpret_cast<const uint8_t*>(code + kCodeBytes);
  const Run* run = new (memory) Run{found.begin, found.bytes, copy};
  write_code(code, run);
  if (insert(run)) write_jump(run->begin, reinterpret_cast<const uint8_t*>(code));
}

}  // namespace

const Run* patched(const uint8_t* address) {
  for (size_t i = 0, at = place_of(address); i < kPlaces; ++i, at = (at + 1) % kPlaces) {
    const Run* run = runs[at].load(std::memory_order_acquire);
    if (run == nullptr || run->begin == address) return run;
  }
  return nullptr;
}

void patch(const Run& run) {
  // In a process that was forked while another thread wrote, it stays set: other instructions are trapped each time.
  if (writing.test_and_set(std::memory_order_acquire)) return;
  patch_alone(run);
  writing.clear(std::memory_order_release);
}

}  // namespace numaserve::amx
