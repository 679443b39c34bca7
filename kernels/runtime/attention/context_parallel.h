// Context parallelism: the latents of a long sequence divided among the ranks.
//
// The latents are the same for all heads. If only heads are divided among ranks, each rank reads all latents for its
// own heads. Beyond some length it is cheaper to exchange data for each new token. Each rank then gets the queries of
// all heads, attends a part of the latents, and sends each head's partial result to the rank that has the head. Latents
// are read once for all new tokens of a sequence, but data is exchanged for each new token. With three draft tokens the
// sequence therefore has to be four times as long. The many tokens of a prompt are cheaper to attend undivided. Blocks
// are dealt to the ranks round-robin. The merge order does not depend on which rank attends a block (see
// ops/latent_attention.inl), so a token has the same bits whether or not a step divides its sequence.
//
// Every rank keeps all latents: it computes them anyway, and only reading them takes time.
//
// Two collectives of each step that divides a sequence belong to this:
//   the first: a rank's part has the queries of its heads; the other ranks copy them
//   the second: a rank's part has its group's results for all heads; the other ranks merge the results of their heads
// All ranks decide alike, because all have the same plan; other steps neither run the two nodes nor count their
// collectives. The ring handles the death of a peer: see
// shm_comm/include/numaserve_ring.h.
#pragma once

#include <vector>

#include "kernels/runtime/exchange/gather_columns.h"

namespace numaserve {

struct GatherQueriesNode : Node {
  GatherQueriesNode(Place query_in, Place message_in, Place gathered_in, int32_t head_dim_in,
                    std::vector<int32_t> head_bounds_in)
      : Node("gather_queries"),
        query(query_in),
        message(message_in),
        gathered(gathered_in),
        heads{std::move(head_bounds_in), head_dim_in, static_cast<int64_t>(sizeof(bf16))} {}
  void run(Run& run, int thread) const override;
  Place query;     // [tokens, own heads, head_dim]
  Place message;   // [divided rows, own heads, head_dim], in the ring
  Place gathered;  // [divided rows, all heads, head_dim]
  RankColumns heads;
};

struct DividedAttentionNode : Node {
  DividedAttentionNode(Place q_in, Place message_in, Place out_in, Place partial_in, HeadGeometry all_heads_in,
                       KvLayer kv_in, std::vector<int32_t> head_bounds_in, size_t counter_in)
      : Node("divided_attention"),
        q(q_in),
        message(message_in),
        out(out_in),
        partial(partial_in),
        all_heads(all_heads_in),
        kv(kv_in),
        counter(counter_in),
        head_bounds(std::move(head_bounds_in)) {}
  void run(Run& run, int thread) const override;
  Cost cost(const Step& step) const override;
  Place q;        // [divided rows, all heads, head_dim]
  Place message;  // [divided rows, all heads, value_dim + kPartialExtra], in the ring
  Place out;      // [tokens, own heads, value_dim]
  Place partial;
  HeadGeometry all_heads;
  KvLayer kv;
  size_t counter;  // see `hand_out`
  float scale = 1.0f;
  std::vector<int32_t> head_bounds;

 private:
  void merge_groups(const Run& run, int thread) const;
};

}  // namespace numaserve
