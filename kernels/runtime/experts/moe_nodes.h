// The nodes of a mixture of experts. Tokens are routed, and their rows are sorted by expert. The experts are then
// matrix products on consecutive rows, whose results are summed for each token in the order of the experts.
#pragma once

#include <vector>

#include "kernels/runtime/program/nodes.h"

namespace numaserve {

// Places that the nodes of one layer share.
struct MoePlaces {
  Place routes;  // [tokens, 2 * top_k + 1]; see CombineArgs
  // int32 [threads + 3, experts + 1]: rows by thread and expert, for threads with tokens; the first row of each expert;
  // the number of experts with rows, and these experts; the first row of each expert where each has whole tiles of 32.
  Place counts;
};

// Chooses each token's experts and copies the token's row to a row of each. The rows of an expert are consecutive, in
// the order of the tokens, for any number of threads.
struct RouteNode : Node {
  RouteNode(Place logits_in, Place x_in, Place sorted_in, MoePlaces places_in, RouteArgs choice_in)
      : Node("moe_route"), logits(logits_in), x(x_in), sorted(sorted_in), places(places_in), choice(choice_in) {}
  void run(Run& run, int thread) const override;
  Place logits, x, sorted;  // rows of x and sorted are of equal length
  MoePlaces places;
  RouteArgs choice;  // all but the logits
  int64_t item_bytes = 2;
  int32_t first_expert = 0, num_experts = 0;  // of this rank
  bool shared_gate = false;                   // the logit after the experts' logits is the shared expert's
  bool weighs_input = false;                  // the copied rows are multiplied by their weights, which become 1
  int64_t cols = 0, group = 0;                // of x in int8

 private:
  void choose(Run& run, Range tokens, int32_t* counts) const;
  void find_rows(Run& run, int thread, int32_t* next) const;
  // Writes the first row of each expert, and which experts have rows.
  void list_experts(Run& run, const int32_t* totals) const;
  void copy_rows(Run& run, Range tokens, int32_t* next) const;
  void copy_row(Run& run, int64_t token, int32_t row, float* weight) const;
  void weigh_scales(std::byte* row, float weight) const;
};

struct CombineNode;

// Results of experts up to these sizes, for each thread and of all, stay in the caches of cores until they are summed.
inline constexpr int64_t kKeptByThread = 2 << 20, kKeptResults = 16 << 20;

// A matrix product for every expert that has rows, and the shared expert's product on all tokens. Work is divided by
// cost, at any pair of panels: with one token all threads read the same number of bytes. Work that computes is handed
// out to threads that are free.
struct ExpertsNode : Node {
  ExpertsNode(std::string node_name, Place x_in, Place out_in, Place counts_in,
              std::vector<const PackedMatrix*> experts_in, size_t counter_in);
  void run(Run& run, int thread) const override;
  Cost cost(const Step& step) const override;
  Place x, out, counts;
  std::vector<const PackedMatrix*> experts;
  size_t counter;  // see `hand_out`
  const PackedMatrix* shared = nullptr;
  Place shared_x{}, shared_out{};
  int64_t item_bytes = 2;       // of x
  const float* bias = nullptr;  // [experts, padded rows of their matrices], or null
  Activation activation = Activation::kNone;
  float limit = 0.0f;  // see GemmArgs
  bool widened = false, shared_widened = false;
  // Whether `x`, or `out`, is of two such nodes alone, in bf16, and has space for whole tiles of each expert.
  bool reads_alone = false, read_alone = false;
  const CombineNode* combine = nullptr;  // the node after, if this one may do its work
  int64_t kept_bytes = kKeptResults;     // of all threads

  // Whether threads sum the results of their columns at once, instead of keeping them for the next node.
  bool sums(const Run& run) const;
  // Moves a thread's sums to the matrix of `combine`, whose node does this in place of its own work.
  void move_sums(Run& run, int thread) const;

 private:
  struct Part {
    const PackedMatrix* weight;
    const float* bias;
    Place x, out;
    bool widened;
    int64_t first_row, rows;  // of the sorted rows
    int64_t x_row, out_row;   // the first rows of x and out
    bool tiled_x, tiled_out;  // whether these are in the order of tiles
  };
  struct PairCost {
    int64_t value;
    bool computes;  // whether the pair takes longer than reading it
  };
  // The experts with rows, and the shared expert.
  int64_t num_parts(const Run& run) const { return active(run)[0] + (shared != nullptr && rows(run) > 0 ? 1 : 0); }
  Part part(const Run& run, int64_t index) const;
  const int32_t* active(const Run& run) const;
  // Whether rows between two such nodes are in the order of tiles. With few rows an expert, padding would be much.
  bool are_tiled(const Run& run) const;
  static PairCost pair_cost(const Part& part);
  // Computes an item: the pairs whose costs, all in a row, begin in a range.
  void multiply_between(Run& run, int thread, int64_t item, Range costs) const;
  int64_t result_bytes(const Run& run, const Part& part) const;
  // A product's results: the row of the part's first row, for column 0, and the distance of rows.
  struct Results {
    std::byte* first;
    int64_t ld;
  };
  Results results_of(Run& run, const Part& part) const;
  // Multiplies pairs of panels of a part. `next`: the weights that the thread reads then; see GemmShare.
  void multiply(Run& run, int thread, const Part& part, Range pairs, const Results& to, const std::byte* next,
                int64_t item) const;
  void multiply_and_sum(Run& run, int thread) const;
  // Returns where a pair of panels of a part's weights begins, null if there is no such part.
  const std::byte* weights_at(const Run& run, int64_t part, int64_t pair) const;
  // The places in `out` of some columns while a thread sums: results of a row block, and sums of all tokens.
  struct Columns {
    Range range;
    float *results, *sums;  // for column 0
    int64_t ld;
  };
  Columns columns_of(Run& run, Range pairs) const;
  // Calls use(pairs of panels, Columns) for each part of a thread's columns that it sums at once.
  template <class Use>
  void for_chunks(Run& run, int thread, Use&& use) const;
  void add_part(Run& run, int thread, int64_t index, Range pairs, const Columns& columns) const;
  // The token and the weight of each row, and the shared expert's weight of each token.
  struct Owners {
    int32_t* tokens;
    float *weights, *shared;
  };
  Owners owners(Run& run) const;
  void find_owners(Run& run, int thread) const;
  void count(const Part& part) const;
  mutable Cost done_;  // only a step shows which experts are read
};

struct CombineNode : Node {
  CombineNode(Place y_in, Place routes_in, Place out_in, int32_t top_k_in)
      : Node("moe_combine"), y(y_in), routes(routes_in), out(out_in), top_k(top_k_in) {}
  void run(Run& run, int thread) const override;
  Place y, routes, out, shared{};
  int32_t top_k;
  bool has_shared = false, accumulate = false;
  const ExpertsNode* experts = nullptr;  // the node before, if it may do this one's work
};

// Lets `experts` do the work of `combine` as well, in steps in which that is faster.
void join(ExpertsNode& experts, CombineNode& combine);

}  // namespace numaserve
