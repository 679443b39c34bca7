// Attention, over keys and values of heads or over latents.
#pragma once

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

struct AttentionNode : Node {
  AttentionNode(Place q_in, Place out_in, Place partial_in, HeadGeometry heads_in, KvLayer kv_in, size_t counter_in)
      : Node("attention"), q(q_in), out(out_in), partial(partial_in), heads(heads_in), kv(kv_in), counter(counter_in) {}
  void run(Run& run, int thread) const override;
  std::span<const std::byte> reads_first(const Run& run, int thread, int64_t index) const override;
  Cost cost(const Step& step) const override;
  Place q, out, partial;
  HeadGeometry heads;
  KvLayer kv;
  size_t counter;  // see `hand_out`
  float scale = 1.0f, softcap = 0.0f, value_scale = 1.0f;
  const float* sinks = nullptr;
  int32_t block_groups = 1;
  int work = 0;                         // index in Batch::attention
  bool read_alone = false;              // by the next node, a product in bf16; see `are_tiled`
  const RopeStoreNode* rope = nullptr;  // the node before, which may join this one

 private:
  AttentionArgs arguments(const Run& run) const;
};

// Computes the items of `work` and merges their partial results. If there are partial results, threads meet at a
// barrier before the merge.
void attend(Run& run, const AttentionArgs& args, const AttentionWork& work, size_t counter, int thread);

// The bytes read and the operations computed for `work`, with heads of `heads`.
Cost attention_cost(const AttentionWork& work, const HeadGeometry& heads, KvDtype dtype);

}  // namespace numaserve
