// Kernels that compute nothing, and count what the kernels of an instruction set would do; see Counter.
#pragma once

#include "kernels/include/kernel_table.h"

namespace numaserve {

// Divides work exactly as other tables do: by shares.h, and for the blocks of products by `like`.
KernelTable counting_table(const KernelTable& like);

}  // namespace numaserve
