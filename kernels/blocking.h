// Sizes of the blocks of a product, by instruction set and caches.
#pragma once

#include <map>
#include <string>
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

// A blocking as sizes by name, for Python, messages and files. All of these take the names from one list in
// blocking.cc. `blocking_of` throws std::invalid_argument unless each field is named once, and nothing else is.
using NamedSizes = std::map<std::string, int64_t>;
NamedSizes named_sizes(const Blocking& blocking);
Blocking blocking_of(const NamedSizes& sizes);

}  // namespace numaserve
