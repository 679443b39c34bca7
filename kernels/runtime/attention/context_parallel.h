// Context parallelism: the latents of a long sequence divided among the ranks.
//
// The latents are the same for all heads. With heads divided among ranks, and only those, each rank reads all latents
// for its part of the heads. From some length on it is less to exchange what belongs to a new token: each rank has the
// queries of all heads, attends a part of the latents, and sends every head's part of the result to the rank that has
// the head. Latents are read once for all new tokens of a sequence, while each new token is exchanged: with three
// guesses behind a token the sequence has to be four times as long, and a prompt's many tokens are cheaper to attend
// whole. Blocks go to the ranks in turn, and are merged in an order that does not depend on who attends them (see
// ops/latent_attention.inl): a token has the same bits in a step that divides its sequence and in one that does not.
//
// Every rank keeps all latents: it makes them anyway, and only reading them takes time.
//
// Two collectives of the step belong to this, whether a step divides anything or not, so that numbers stay in step:
//   the first: a rank's part has the queries of its heads; others copy them
//   the second: a rank's part has its group's results for all heads; others merge those of their heads
// All ranks decide alike, from the plan that all have got. When a peer dies the ring's own rules hold: see
// shm_comm/include/numaserve_ring.h.
#pragma once

#include <vector>

#include "kernels/runtime/program/gather_columns.h"

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
                       KvLayer kv_in, std::vector<int32_t> head_bounds_in, int turn_in)
      : Node("divided_attention"),
        q(q_in),
        message(message_in),
        out(out_in),
        partial(partial_in),
        all_heads(all_heads_in),
        kv(kv_in),
        turn(turn_in),
        head_bounds(std::move(head_bounds_in)) {}
  void run(Run& run, int thread) const override;
  Cost cost(const Step& step) const override;
  Place q;        // [divided rows, all heads, head_dim]
  Place message;  // [divided rows, all heads, value_dim + kPartialExtra], in the ring
  Place out;      // [tokens, own heads, value_dim]
  Place partial;
  HeadGeometry all_heads;
  KvLayer kv;
  int turn;  // see `attend`
  float scale = 1.0f;
  std::vector<int32_t> head_bounds;

 private:
  void merge_groups(const Run& run, int thread) const;
};

}  // namespace numaserve
