// The operations a Program consists of. A node is run by every thread of the team; the Program puts a barrier after it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/include/kernel_table.h"
#include "kernels/runtime/adapters/adapter_weights.h"
#include "kernels/runtime/machine/memory.h"
#include "kernels/runtime/machine/team.h"
#include "kernels/runtime/program/states.h"
#include "kernels/runtime/program/step.h"
#include "kernels/runtime/program/vectors.h"
#include "kernels/runtime/weights/packed_matrix.h"
#include "shm_comm/include/numaserve_masks.h"
#include "shm_comm/include/numaserve_ring.h"

namespace numaserve {

inline int64_t now_ns() { return static_cast<int64_t>(ring::monotonic_ns()); }

// A [rows, ld] matrix in the arena. If `collective` is not negative and there are several ranks, the matrix is instead
// this rank's part of the ring slot of that collective of the step.
struct Place {
  int64_t offset;  // bytes
  int64_t ld;      // elements
  int32_t collective;
};

// The source of masks. Without a board, masked rows are dropped; only rank 0 needs a board.
struct Masks {
  // A step waits for masks at most 1 / kWaits of the time that it has taken so far.
  static constexpr int64_t kWaits = 5;
  const masks::Board* board = nullptr;
  int64_t grace_ns = 0;  // the minimum limit of the wait for all rows of a step together
};

class Counter;
class Node;

// The ranks' parts of a matrix in the ring, by rank.
using Parts = std::array<const float*, ring::kMaxWorld>;

struct Run {
  const KernelTable& table;
  Team& team;
  ring::Ring* ring;  // null with one rank
  Step& step;
  SlotTable& slots;
  const States& states;
  std::byte* arena;
  std::byte* thread_scratch;  // `thread_scratch_bytes` for each thread
  int64_t thread_scratch_bytes;
  Blocking blocking;
  void* part_sums;  // kPartSums, of the current product
  std::vector<SampledRow>& sampled;
  std::vector<float>& named_logprobs;  // of all rows; see `LogitRow::named`
  Masks masks;
  uint64_t step_id;
  int64_t begin_ns;
  std::atomic<int64_t> mask_wait_ns{0};  // of the thread that waited longest
  uint64_t first_collective = 0;
  const int32_t* numbers = nullptr;  // of the step's collectives, from the first one on
  // Set when a wait in the ring has failed. That node is run to its end, because its threads meet at its barriers. It
  // is the last node: writing the next collective's slot could overwrite data that a peer still reads.
  std::atomic<ring::Status> status{ring::Status::ok};
  std::atomic<size_t> last_node{std::numeric_limits<size_t>::max()};
  Counter* counter = nullptr;                    // counts the work of threads, or null
  int64_t all_reduce_ns = 0;                     // waiting for other ranks, on thread 0
  int64_t joined_ns = 0;                         // in nodes whose work the next node does, on thread 0
  std::vector<std::atomic<int64_t>> handed_out;  // by node that hands out items; see hand_out

  int world() const { return ring == nullptr ? 1 : ring->world(); }
  int lanes() const { return ring == nullptr ? team.size() : ring->lanes(); }
  // Returns `rank`'s part of a matrix: its part of the ring slot, or, with one rank, the matrix itself.
  template <class T>
  T* part(const Place& place, int rank) const {
    if (place.collective < 0 || ring == nullptr) return reinterpret_cast<T*>(arena + place.offset);
    return reinterpret_cast<T*>(ring->part(collective(place), rank));
  }
  template <class T>
  T* at(const Place& place) const {
    return part<T>(place, ring == nullptr ? 0 : ring->rank());
  }
  Parts parts(const Place& place) const {
    Parts found{};
    for (int rank = 0; rank < world(); ++rank) found[static_cast<size_t>(rank)] = part<float>(place, rank);
    return found;
  }
  uint64_t collective(const Place& place) const {
    return first_collective + static_cast<uint64_t>(numbers[place.collective]);
  }
  template <class T>
  T* scratch(int thread) const {
    return reinterpret_cast<T*>(thread_scratch + thread * thread_scratch_bytes);
  }
  bool failed() const { return status.load(std::memory_order_relaxed) != ring::Status::ok; }
  void fail(ring::Status why) { status.store(why, std::memory_order_relaxed); }
};

// Counts what `thread` does from now on as work of `node`.
void enter(Run& run, const Node& node, int thread);

// Waits until the other ranks have arrived at a phase of a collective; returns true when what they wrote before it may
// be read. After a failed wait of any thread it returns false at once.
bool wait_for_ranks(Run& run, const Place& place, int lane, int phase);

// Meets the other ranks at a collective; returns true when its parts may be read. Threads beyond the ring's lanes take
// no part. There is a barrier between two collectives, so all threads of a rank that arrives have left the one before.
bool meet(Run& run, const Place& place, int thread, int phase = 0);

// Marks the collective as read by this lane, or as not used by it. Lane 0 also waits, for the whole rank, until the
// slot of the next collective is free. The barrier before the next node passes that on to the other threads.
void leave(Run& run, const Place& place, int thread);

// Calls compute(item, next) for items that are handed out one by one to threads that are free; `next` is a prediction
// of the thread's next item, for prefetching, which assumes that each other thread takes one item in between. A
// thread's first item is its own number, so that its memory can be fetched in advance. `counter` is of the node alone
// (Program::next_counter): with two that nodes take in turn, a thread would have to clear the other one. Threads that
// take turns each have their part: the first one would find all others busy until it has taken every item.
template <class F>
void hand_out(Run& run, size_t counter, int64_t items, int thread, F&& compute) {
  const int threads = run.team.size();
  const auto after = [&](int64_t item) {
    return threads + (run.team.takes_turns() ? item : run.handed_out[counter].fetch_add(1));
  };
  for (int64_t i = thread; i < items; i = after(i)) compute(i, i + threads);
}

// A lower bound of a node's work since the Program was made: activations and repeated reads are not counted.
struct Cost {
  int64_t bytes = 0;  // of weights and KV cache, read from memory, and of states, read and written
  int64_t flops = 0;
  WeightFormat format = WeightFormat::kBf16;  // of the operations
  bool fp32 = false;                          // whether these are in fp32, whatever the format
};

class Node {
 public:
  explicit Node(std::string node_name) : name(std::move(node_name)) {}
  virtual ~Node() = default;
  virtual void run(Run& run, int thread) const = 0;
  // Whether the next node does this node's work in this step, each thread the part that it needs. There is then no
  // barrier between the two nodes. Every thread gets the same answer.
  virtual bool joins_next(const Run&) const { return false; }
  // Returns the `index`-th piece of memory that a thread reads first in this node and that no node of a step writes. It
  // is worth fetching before the node begins. Empty if there is no such piece.
  virtual std::span<const std::byte> reads_first(const Run&, int /*thread*/, int64_t /*index*/) const { return {}; }
  virtual Cost cost(const Step&) const { return {}; }
  // Whether the node has work in this step.
  bool runs(const Step& step) const {
    return (!on_request || step.wants_tokens) && (!of_divided || !step.divided.rows.empty()) &&
           (!of_features || !step.feature_rows.empty()) && (!of_adapters || !step.adapters(false).empty());
  }
  // The number of rows that the node works on.
  int64_t rows(const Run& run) const { return run.step.num_rows(narrow); }
  const std::string name;
  size_t node_number = 0;  // in the Program, from 0
  const Node* next_node = nullptr;
  bool narrow = false;       // whether it works on other rows than all tokens; see NarrowNode, PoolNode, MergeRowsNode
  bool on_request = false;   // whether it runs only in steps that ask for vectors of tokens
  bool of_divided = false;   // whether it runs only in steps that divide the latents of a sequence among ranks
  bool of_features = false;  // whether it runs only in steps that place image features
  bool of_adapters = false;  // whether it runs only in steps with sequences that have an adapter
  int64_t bytes = 0;         // of weights read by a run, for the profile
};

struct EmbedNode : Node {
  EmbedNode(const int32_t* indices_in, const PackedMatrix& table_in, int64_t first_row_in, float scale_in, Place out_in)
      : Node("embed"), indices(indices_in), table(table_in), first_row(first_row_in), scale(scale_in), out(out_in) {}
  void run(Run& run, int thread) const override;
  const int32_t* indices;  // of the rows of a step, in the whole table
  const PackedMatrix& table;
  int64_t first_row;
  float scale;
  Place out;
  bool accumulate = false;
};

// Rows of bf16, quantized for matrix products with weights in int8 or in groups.
struct Quantized {
  Place out;
  int64_t cols;
  int64_t group;  // 0: none
};

// A node that makes the rows of a product: a norm, or rows in int8. Up to kJoinedRows rows, each thread of the product
// makes all rows itself, which saves a barrier. It then works on more columns than with a barrier: at most
// kJoinedColumns more, which take as long as one.
inline constexpr int64_t kJoinedRows = 4, kJoinedColumns = 8192;

struct RowsNode : Node {
  using Node::Node;
  bool joins_next(const Run& run) const override;
  // Makes all rows on one thread, as its own rows of the result; returns the first of these rows.
  virtual int64_t run_alone(Run& run, int thread) const = 0;
  // The place of the rows that the product reads.
  virtual const Place& made() const = 0;
  bool has_product = false;  // only the next node, a LinearNode, reads the result

 private:
  virtual int64_t columns() const = 0;
};

struct NormNode : RowsNode {
  NormNode(Place x_in, const float* weight_in, int64_t cols_in, Place out_in, float eps_in)
      : RowsNode("rms_norm"), x(x_in), weight(weight_in), cols(cols_in), out(out_in), eps(eps_in) {}
  void run(Run& run, int thread) const override;
  int64_t run_alone(Run& run, int thread) const override;
  const Place& made() const override { return quantized ? quantized->out : out; }
  Place x;
  const float* weight;  // null: x is only rounded
  int64_t cols;
  Place out;
  float eps;
  std::optional<Quantized> quantized;  // the result, in addition to `out`
  bool beside = false;                 // rows of `out` have other columns after the result
  bool read_alone = false;             // by the next node, a product: `out`, or `quantized`; see `are_tiled`

 private:
  int64_t columns() const override { return cols; }
  void norm(Run& run, int64_t first_row, int part, int parts, int thread) const;
};

// The layer norm of rows, as bf16 or, maybe in their place, as fp32.
struct LayerNormNode : Node {
  LayerNormNode(Place x_in, const float* weight_in, const float* bias_in, int64_t cols_in, Place out_in, float eps_in)
      : Node("layer_norm"), x(x_in), weight(weight_in), bias(bias_in), cols(cols_in), out(out_in), eps(eps_in) {}
  void run(Run& run, int thread) const override;
  Place x;
  const float *weight, *bias;
  int64_t cols;
  Place out;
  float eps;
  bool rounded = false;
};

// `logits`: as in LinearNode.
struct QuantizeNode : RowsNode {
  QuantizeNode(Place x_in, Quantized quantized_in, int64_t rows_per_token_in, bool logits_in)
      : RowsNode("quantize"), x(x_in), quantized(quantized_in), rows_per_token(rows_per_token_in), logits(logits_in) {}
  void run(Run& run, int thread) const override;
  int64_t run_alone(Run& run, int thread) const override;
  const Place& made() const override { return quantized.out; }
  Place x;
  Quantized quantized;
  int64_t rows_per_token;
  bool logits;
  int64_t heads = 1, x_stride = 0, out_stride = 0;  // of a row; see QuantizeArgs
  bool read_alone = false;                          // by the next node, a product; see `are_tiled`

 private:
  int64_t columns() const override { return quantized.cols; }
  QuantizeArgs arguments(const Run& run) const;
};

// Whether rows that one product reads are in the order of tiles in this step. Few rows are faster as rows.
bool are_tiled(const Run& run, bool narrow);

struct ReduceNode;

// The product of rows of `x` and a packed matrix. `logits`: only rows whose logits are needed, which a GatherNode has
// gathered to `x`.
struct LinearNode : Node {
  LinearNode(std::string node_name, Place x_in, const PackedMatrix& weight_in, Place out_in);
  void run(Run& run, int thread) const override;
  bool joins_next(const Run& run) const override;
  std::span<const std::byte> reads_first(const Run& run, int thread, int64_t index) const override;
  Cost cost(const Step& step) const override;
  GemmArgs arguments(const Run& run) const;
  ExpandArgs expansion(const Run& run) const;
  Place x;
  const PackedMatrix& weight;
  Place out;
  const RowsNode* before = nullptr;  // the node before, which may join this one
  const ReduceNode* sum = nullptr;   // the node after, which this one may join
  const float* bias = nullptr;
  const AdapterWeights* adapters = nullptr;   // that update the product, or null
  Place shrunk{};                             // what a ShrinkNode has made for them
  Activation activation = Activation::kNone;  // with one, `out` is bf16
  bool widened = false, accumulate = false;   // see GemmArgs
  bool logits = false;
  // Whether only this node reads what the node before it makes, and whether only the next node reads what this one
  // makes; see `are_tiled`.
  bool reads_alone = false, read_alone = false;
};

struct RopeStoreNode : Node {
  RopeStoreNode(Place qkv_in, Place q_in, HeadGeometry heads_in, KvLayer kv_in)
      : Node("rope_store"), qkv(qkv_in), q(q_in), heads(heads_in), kv(kv_in) {}
  void run(Run& run, int thread) const override;
  bool joins_next(const Run& run) const override;
  RopeStoreArgs arguments(const Run& run) const;
  Place qkv, q;
  HeadGeometry heads;
  KvLayer kv;
  const float *cos = nullptr, *sin = nullptr, *q_scale = nullptr;
  std::optional<Place> rope_rows;  // in place of `cos` and `sin`; see RotaryRows in image_operations.h
  int32_t rot_dim = 0, distance = 0;
  const float *q_norm = nullptr, *k_norm = nullptr;
  float eps = 0.0f;
  HeadNorm norm = HeadNorm::kNone;
  size_t table = 0;  // the page table of its layer; see SlotTable
  KvSource source = KvSource::kProjected;
  bool norm_values = false;
  int attention = -1;  // index in Batch::attention of the next node, an AttentionNode that alone reads `q`; or -1
};

struct GatherNode : Node {
  GatherNode(Place x_in, Place out_in) : Node("gather"), x(x_in), out(out_in) {}
  void run(Run& run, int thread) const override;
  Place x, out;
};

// The vector, in fp32, of each sequence that is pooled. The nodes after it work on these rows alone.
struct PoolNode : Node {
  PoolNode(Place x_in, Pooling pooling_in, const float* weight_in, int64_t cols_in, Place out_in, float eps_in)
      : Node("pool"), x(x_in), pooling(pooling_in), weight(weight_in), cols(cols_in), out(out_in), eps(eps_in) {}
  void run(Run& run, int thread) const override;
  Place x;
  Pooling pooling;
  const float* weight;  // of the final norm, or null
  int64_t cols;
  Place out;
  float eps;
};

// Samples every row of logits on rank 0 and sends the tokens to all ranks. Each thread samples its unmasked rows first,
// then the rows whose masks have arrived, and finally waits for the other masks. A row whose mask is late gets a
// placeholder token, since the next plan may continue from it. If there are at least two threads for each row of a
// large vocabulary, threads share the blocks of rows without a mask.
struct SampleNode : Node {
  SampleNode(Place logits_in, Place tokens_in, std::vector<int64_t> vocab_first_in, float softcap_in)
      : Node("sample"),
        logits(logits_in),
        tokens(tokens_in),
        vocab_first(std::move(vocab_first_in)),
        softcap(softcap_in) {}
  void run(Run& run, int thread) const override;
  Place logits, tokens;
  std::vector<int64_t> vocab_first;  // world + 1 boundaries of the ranks' parts of the vocabulary
  float softcap;

 private:
  bool shares_rows(const Run& run) const;
  bool waits_for_mask(Run& run, int64_t row) const;
  // `takes`: whether this thread takes part; the other threads only meet it at barriers.
  void sample_shared(Run& run, bool takes, int thread) const;
  void sample_rows(Run& run, int thread) const;
  void sample_masked_rows(Run& run, Range rows, int thread) const;
  void sample_row(Run& run, int64_t row, const uint32_t* mask, int thread) const;
  void void_after_late(Run& run) const;
  // Returns the arguments for sampling `row`, in the scratch of `thread`; then the steps of sampling.
  SampleArgs arguments(Run& run, int64_t row, const uint32_t* mask, int thread) const;
  void begin(const Run& run, int64_t row, const SampleArgs& args, Range blocks) const;
  void finish(Run& run, int64_t row, const SampleArgs& args) const;
  void share_tokens(Run& run, int thread) const;
  // Stores samples as the slots' last tokens, and discards samples that follow a rejected draft token.
  void keep_tokens(Run& run) const;
};

// Bytes of scratch that SampleNode needs on each thread.
int64_t sample_scratch_bytes(int64_t vocabulary);

}  // namespace numaserve
