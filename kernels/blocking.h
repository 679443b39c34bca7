// How much of a product is done at a time, by instruction set and caches.
#pragma once

#include <string_view>

#include "kernels/cpu_features.h"
#include "kernels/include/kernel_table.h"

namespace numaserve {

// What a sweep has found for a family of processors, or what follows from the caches: results may take a whole second
// level, as they are streamed, once a slab; half of the second level is for activations, and of the first what the
// set's products ask for.
Blocking blocking_for(const KernelTable& table, const CacheSizes& caches, const Processor& processor);

// Throws std::invalid_argument for one that the loop nest has no room for.
const Blocking& checked(const Blocking& blocking);

}  // namespace numaserve
