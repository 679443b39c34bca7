// AMX instructions in machine code. All of them have a VEX prefix of three bytes and lie in opcode map 0F38; see the
// instruction reference in volume 2 of Intel's Software Developer's Manual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace numaserve::amx {

enum class Op : uint8_t {
  kLoadConfig,
  kStoreConfig,
  kRelease,
  kZero,
  kLoad,
  kLoadStreamed,
  kStore,
  kBf16,
  kSignedSigned,
  kSignedUnsigned,
  kUnsignedSigned,
  kUnsignedUnsigned,
};
inline constexpr size_t kOps = 12;
inline constexpr size_t kLongest = 10;  // bytes of an instruction, with a SIB byte and a displacement

// Ends the process: `kind` is the exception that the processor would raise.
[[noreturn]] void fault(const char* kind, const char* why);

struct Instruction {
  Op op;
  int length;
  int reg, rm, vvvv;  // tiles, where the operation has as many
  std::byte* memory;  // its first row, or the configuration
  int64_t stride;     // bytes from row to row
  bool has_index;     // a tile's address has a SIB byte
};

// The general registers in the order of their numbers: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
struct Registers {
  uint64_t of[16];
};

// What an instruction is decoded from.
struct Place {
  const uint8_t* code;     // its bytes
  const uint8_t* address;  // where the program has them
  const Registers& registers;
};

namespace decoding {

// The operation of an opcode with a prefix, 0 to 3 for none, 66, F3 and F2.
inline std::optional<Op> operation(int opcode, int prefix, int mod, int reg, int rm) {
  const auto among = [prefix](std::optional<Op> none, std::optional<Op> h66, std::optional<Op> f3,
                              std::optional<Op> f2) {
    return prefix == 0 ? none : prefix == 1 ? h66 : prefix == 2 ? f3 : f2;
  };
  const bool registers = mod == 3;
  if (opcode == 0x49 && !registers && reg == 0) return among(Op::kLoadConfig, Op::kStoreConfig, {}, {});
  if (opcode == 0x49 && registers && rm == 0)
    return among(reg == 0 ? std::optional(Op::kRelease) : std::nullopt, {}, {}, Op::kZero);
  if (opcode == 0x4b && !registers) return among({}, Op::kLoadStreamed, Op::kStore, Op::kLoad);
  if (opcode == 0x5c && registers) return among({}, {}, Op::kBf16, {});
  if (opcode == 0x5e && registers)
    return among(Op::kUnsignedUnsigned, Op::kUnsignedSigned, Op::kSignedUnsigned, Op::kSignedSigned);
  return std::nullopt;
}

// Reads the memory operand of `i`, and how long it makes the instruction.
inline void read_memory_operand(const Place& place, Instruction& i) {
  const uint8_t* p = place.code;
  const uint64_t* registers = place.registers.of;
  const int mod = p[4] >> 6, rm = p[4] & 7, x = p[1] & 0x40 ? 0 : 8, b = p[1] & 0x20 ? 0 : 8;
  int displacement_bytes = mod == 2 ? 4 : mod;
  uint64_t at = 0;
  i.length = 5;
  if (rm == 4) {
    const int index = (p[5] >> 3 & 7) + x, base = p[5] & 7;
    i.has_index = true;
    i.length = 6;
    if (index != 4) i.stride = static_cast<int64_t>(registers[index] << (p[5] >> 6));
    if (base == 5 && mod == 0)
      displacement_bytes = 4;
    else
      at = registers[base + b];
  } else if (rm == 5 && mod == 0) {
    displacement_bytes = 4;
    at = reinterpret_cast<uint64_t>(place.address + 9);  // the end of the instruction
  } else {
    at = registers[rm + b];
  }
  int32_t displacement = 0;
  if (displacement_bytes == 1) displacement = static_cast<int8_t>(p[i.length]);
  if (displacement_bytes == 4) std::memcpy(&displacement, p + i.length, sizeof(displacement));
  i.length += displacement_bytes;
  // The index of a tile's address is its stride; that of a configuration's is a part of the address.
  if (i.op == Op::kLoadConfig || i.op == Op::kStoreConfig) at += static_cast<uint64_t>(i.stride);
  i.memory = reinterpret_cast<std::byte*>(at + static_cast<uint64_t>(int64_t{displacement}));
}

}  // namespace decoding

// The AMX instruction at a place, if there is one.
inline std::optional<Instruction> decode(const Place& place) {
  const uint8_t* p = place.code;
  if (p[0] != 0xc4 || (p[1] & 0x1f) != 2) return std::nullopt;
  if (p[3] != 0x49 && p[3] != 0x4b && p[3] != 0x5c && p[3] != 0x5e) return std::nullopt;
  const int mod = p[4] >> 6, reg = p[4] >> 3 & 7, rm = p[4] & 7;
  const std::optional<Op> op = decoding::operation(p[3], p[2] & 3, mod, reg, rm);
  if (!op) return std::nullopt;
  if (p[2] & 0x84) fault("UD", "VEX.W and VEX.L are zero in AMX");
  Instruction i{.op = *op,
                .length = 5,
                .reg = reg + (p[1] & 0x80 ? 0 : 8),
                .rm = rm + (p[1] & 0x20 ? 0 : 8),
                .vvvv = ~(p[2] >> 3) & 15,
                .memory = nullptr,
                .stride = 0,
                .has_index = false};
  if (i.op < Op::kBf16 && i.vvvv != 0) fault("UD", "VEX.vvvv is not 1111b");
  if (mod != 3) decoding::read_memory_operand(place, i);
  return i;
}

}  // namespace numaserve::amx
