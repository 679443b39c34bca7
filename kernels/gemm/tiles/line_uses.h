// The uses of lines of memory by a product, which the amx_emulated set records where a test asks for them.
#pragma once

#include <cstdint>

namespace numaserve {

// The first use of a line matters: a line that is loaded or copied before it is fetched is waited for.
enum class LineUse : int8_t { kFetched, kLoadedActivations, kLoadedWeights, kCopied, kStreamed };

struct LineTrace {
  const void** lines;
  LineUse* uses;
  int64_t room, count;  // uses beyond the room are counted only
};

namespace amx_emulated {

// Lets products of this thread record their uses of lines, until it is called with null.
void trace_lines(LineTrace* trace);

}  // namespace amx_emulated
}  // namespace numaserve
