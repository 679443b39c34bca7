// The nodes of multi-head latent attention, except attention itself, which is an AttentionNode over a latent cache.
#pragma once

#include <string>

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

struct LatentStoreNode : Node {
  LatentStoreNode(Place q_in, Place kv_in, Place nope_in, Place query_in, HeadGeometry heads_in, KvLayer layer_in)
      : Node("latent_store"), q(q_in), kv(kv_in), nope(nope_in), query(query_in), heads(heads_in), layer(layer_in) {}
  void run(Run& run, int thread) const override;
  Place q, kv, nope, query;
  HeadGeometry heads;
  KvLayer layer;
  int32_t nope_dim = 0;
  const float *cos = nullptr, *sin = nullptr, *q_scale = nullptr, *norm = nullptr;
  int64_t positions = 0;  // rows of cos and sin
  float eps = 0.0f;
};

// A product for each head: the head's columns of `x` (`x_stride` from head to head) times the head's rows of `weight`,
// into the head's columns of `out`, which is bf16. `x` is bf16, or int8 with one or more scales per head and row.
struct HeadLinearNode : Node {
  HeadLinearNode(std::string node_name, Place x_in, int64_t x_stride_in, const PackedMatrix& weight_in,
                 int32_t num_heads_in, Place out_in, int64_t out_stride_in);
  void run(Run& run, int thread) const override;
  Cost cost(const Step& step) const override;
  Place x;
  int64_t x_stride;
  const PackedMatrix& weight;
  int32_t num_heads;
  Place out;
  int64_t out_stride;
  bool widened = false;     // see GemmArgs
  bool read_alone = false;  // by the next node, a product in bf16; see `are_tiled`

 private:
  bool in_int8() const { return takes_int8(weight.format()) && !widened; }
};

}  // namespace numaserve
