// Sizes of the blocks of a product, by instruction set and caches.
#pragma once

#include <string_view>

#include "kernels/cpu_features.h"
#include "kernels/include/kernel_table.h"

namespace numaserve {

// Returns the blocking that a sweep found for this processor family, or else one computed from the caches. Results are
// streamed once per slab and may take the whole second level. Activations get half of the second level. The products of
// the instruction set state their share of the first level.
Blocking blocking_for(const KernelTable& table, const CacheSizes& caches, const Processor& processor);

// Throws std::invalid_argument for a blocking that the loop nest has no space for.
const Blocking& checked(const Blocking& blocking);

}  // namespace numaserve
