// The models of program_stress for many ranks and threads.
#pragma once

#include <vector>

#include "tests/kernels/stress_models.h"

namespace numaserve::testing {

// Groups as large as those of real hosts: six nodes of 42 and 43 cores, two of 128, eight of 16. Most threads have no
// rows, panels or items of such small layers; the others have one.
inline std::vector<Model> crowded_models(const KernelTable& table) {
  const std::vector<int> six{43, 43, 42, 43, 43, 42}, two{128, 128}, eight(8, 16);
  Models list(table);
  list.add({.q_heads = 12,
            .kv_heads = 6,
            .head_dim = 24,
            .hidden = 1056,
            .intermediate = 1300,
            .vocabulary = 1311,
            .layers = 1,
            .extras = true,
            .experts = 5},
           six, 160, 20);
  list.add({.q_heads = 32,
            .kv_heads = 8,
            .head_dim = 24,
            .hidden = 544,
            .intermediate = 700,
            .vocabulary = 531,
            .layers = 1,
            .cuts_groups = true},
           six, 96, 20, WeightFormat::kInt8);
  list.add({.q_heads = 8,
            .kv_heads = 1,
            .head_dim = 96,
            .hidden = 544,
            .intermediate = 700,
            .vocabulary = 531,
            .layers = 1,
            .experts = 9,
            .value_dim = 64,
            .divided_from = 300},
           six, 70, 20, WeightFormat::kInt8);
  list.add({.q_heads = 16,
            .kv_heads = 4,
            .head_dim = 64,
            .hidden = 2112,
            .intermediate = 1400,
            .vocabulary = 4999,
            .layers = 1,
            .window = 300},
           two, 160, 20, WeightFormat::kInt4);
  list.add({.q_heads = 8,
            .kv_heads = 2,
            .head_dim = 32,
            .hidden = 320,
            .intermediate = 400,
            .vocabulary = 531,
            .layers = 2,
            .delta_keys = 8,
            .delta_values = 16,
            .pools = true},
           eight, 96, 20);
  return list.all;
}

}  // namespace numaserve::testing
