// Jumps in place of AMX instructions that were trapped: a signal takes microseconds, a jump to the emulator a fraction.
//
// The first instruction of a run becomes a jump of as many bytes, to code that calls the emulator with the program's
// registers and continues after the run. Other threads may run the instruction meanwhile. A byte that is no instruction
// is therefore written over its first byte before the others change; who meets it is trapped and looks the place up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/kernels/amx/instruction.h"

namespace numaserve::amx {

// A run of instructions that follow each other directly. It does not change once it is found.
struct Run {
  const uint8_t* begin;  // where the program has it
  size_t bytes;
  const uint8_t* code;  // a copy, since a jump may have taken the place of the first five bytes
};

// Returns the run that begins at `address` where a jump was or is being written, or null.
const Run* patched(const uint8_t* address);

// Puts a jump in place of the first instruction of `run`, if it has any, unless another thread is writing one. Where
// the system does not allow it, the instruction is trapped whenever it is met.
void patch(const Run& run);

// Executes a run. `registers` are the program's.
void execute(const Run& run, const Registers& registers);

}  // namespace numaserve::amx
