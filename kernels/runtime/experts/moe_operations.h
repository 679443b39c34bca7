// The operations of a mixture of experts as data; see operations.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/program/operations.h"

namespace numaserve {

// Return the value of a name; throw std::invalid_argument for an unknown name.
Scoring scoring_of(std::string_view name);
GroupScore group_score_of(std::string_view name);

namespace operation {

struct MoeRoute {
  static constexpr const char* kKind = "moe_route";
  Place logits, x, sorted, routes, counts;
  int64_t item_bytes;
  int32_t first_expert, local_experts;
  bool shared_gate;
  int32_t num_experts, top_k;
  Scoring scoring;
  bool renormalize;
  float scale;
  std::optional<const PaddedVector*> correction, factors;
  int32_t num_groups, top_groups;
  GroupScore group_score;
  bool weighs_input;
  int64_t cols, group;  // of x in int8
  void visit(auto&& field) {
    field("logits", logits), field("x", x), field("sorted", sorted), field("routes", routes), field("counts", counts);
    field("item_bytes", item_bytes), field("first_expert", first_expert), field("local_experts", local_experts);
    field("shared_gate", shared_gate), field("num_experts", num_experts), field("top_k", top_k);
    field("scoring", scoring), field("renormalize", renormalize), field("scale", scale);
    field("correction", correction), field("factors", factors), field("num_groups", num_groups);
    field("top_groups", top_groups);
    field("group_score", group_score), field("weighs_input", weighs_input), field("cols", cols);
    field("group", group);
  }
};

struct MoeExperts {
  static constexpr const char* kKind = "moe_experts";
  std::string name;
  Place x;
  std::vector<const PackedMatrix*> weights;
  std::optional<const PaddedVector*> bias;
  Place out, counts;
  std::optional<const PackedMatrix*> shared;
  Place shared_x, shared_out;
  Activation activation;
  float limit;
  int64_t item_bytes;
  bool widened, shared_widened;
  bool reads_alone;  // the rows that the operation before makes, in bf16: they may be in the order of tiles
  void visit(auto&& field) {
    field("name", name), field("x", x), field("weights", weights), field("bias", bias), field("out", out);
    field("counts", counts), field("shared", shared), field("shared_x", shared_x), field("shared_out", shared_out);
    field("activation", activation), field("limit", limit), field("item_bytes", item_bytes);
    field("widened", widened), field("shared_widened", shared_widened);
    field("reads_alone", reads_alone);
  }
};

struct MoeCombine {
  static constexpr const char* kKind = "moe_combine";
  Place y, routes;
  int32_t top_k;
  std::optional<Place> shared;
  bool accumulate;
  Place out;
  void visit(auto&& field) {
    field("y", y), field("routes", routes), field("top_k", top_k), field("shared", shared);
    field("accumulate", accumulate), field("out", out);
  }
};

void add(Program& p, const MoeRoute& f);
void add(Program& p, const MoeExperts& f);
void add(Program& p, const MoeCombine& f);

// Throws std::invalid_argument for parameters by which experts cannot be chosen.
void require_choice(const RouteArgs& choice);

}  // namespace operation
}  // namespace numaserve
