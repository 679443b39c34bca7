// Products of experts whose results are added to the sums of the tokens at once, without the node that combines them.
#include <algorithm>
#include <cstring>

#include "kernels/runtime/experts/moe_nodes.h"

namespace numaserve {
namespace {

// Pairs of panels of a chunk with int8 activations. With the avx512 set of a virtual Xeon, chunks of 16 and of 4 pairs
// take up to 1.05 times as long as chunks of 8. On Zen 4, chunks of 16 take 0.97-0.99 of the time of chunks of 8, and
// chunks of 4 take 1.05.
constexpr int64_t kChunkPairs = 16;

}  // namespace

// Needs columns for nearly all threads, and space in `out`, whose rows are then not used: see `columns_of`.
bool ExpertsNode::sums(const Run& run) const {
  if (combine == nullptr || experts.size() < 2) return false;
  const int64_t tokens = rows(run), copies = std::min<int64_t>(combine->top_k, static_cast<int64_t>(experts.size()));
  const int64_t results = tokens * copies * out.ld, owners = tokens * (2 * combine->top_k + 1);
  const int64_t pairs = out.ld / (2 * kTileN), threads = run.team.size(), most = ceil_div(pairs, threads);
  const int64_t kept = std::min(threads * kKeptByThread, kept_bytes) / static_cast<int64_t>(sizeof(float));
  return results > kept && pairs * 10 >= most * threads * 7 &&
         (std::min(tokens, kRowBlock) + tokens) * out.ld + owners <= results;
}

// A thread adds the results of its columns to the sums of all tokens, expert by expert: the sum of a token has the
// order of `combine`. Results that wait for `combine` are written to memory and read again, top_k rows for each token.
// The sums lie side by side: in `combine`'s matrix, columns of rows whose width is a power of two would fall into a few
// sets of the second-level cache. Measured on a virtual Xeon with AMX, two threads, in time with `combine`: 0.57-0.76
// of results that wait.
void ExpertsNode::multiply_and_sum(Run& run, int thread) const {
  find_owners(run, thread);
  run.team.barrier(thread);
  if (thread == 0)
    for (int64_t i = 0; i < num_parts(run); ++i) count(part(run, i));
  for_chunks(run, thread, [&](Range pairs, const Columns& columns) {
    run.table.clear_columns(columns.sums, columns.ld, rows(run), columns.range);
    for (int64_t i = 0; i < num_parts(run); ++i) add_part(run, thread, i, pairs, columns);
  });
}

// Each chunk reads the activations of all experts again, which pays where products take little time: int8 without
// tiles. There, a thread of a Xeon with 32 pairs of panels takes 0.82-0.89 of the time with chunks of 8 pairs. Other
// formats take 0.98-1.03, and tiles 1.0-1.2.
template <class Use>
void ExpertsNode::for_chunks(Run& run, int thread, Use&& use) const {
  const Range pairs = split(out.ld / (2 * kTileN), run.team.size(), thread);
  const int64_t count = pairs.end - pairs.begin,
                most = item_bytes == 1 && !run.table.takes_tiled_rows ? kChunkPairs : count;
  const int64_t chunks = count > 0 ? ceil_div(count, most) : 0;
  for (int64_t i = 0; i < chunks; ++i) {
    const Range chunk = split(count, chunks, i), own{pairs.begin + chunk.begin, pairs.begin + chunk.end};
    use(own, columns_of(run, own));
  }
}

// The matrix that `combine` writes may have the memory of activations that other threads still read while they
// multiply.
void ExpertsNode::move_sums(Run& run, int thread) const {
  for_chunks(run, thread, [&](Range, const Columns& columns) {
    run.table.move_sums({.sums = columns.sums,
                         .lds = columns.ld,
                         .rows = rows(run),
                         .accumulate = combine->accumulate,
                         .out = run.at<float>(combine->out),
                         .ldo = combine->out.ld},
                        columns.range);
  });
}

void ExpertsNode::add_part(Run& run, int thread, int64_t index, Range pairs, const Columns& columns) const {
  const Owners owner = owners(run);
  const Part whole = part(run, index);
  const bool is_shared = whole.weight == shared;
  const std::byte* next = weights_at(run, index + 1, pairs.begin);
  for (int64_t i = 0; i < row_blocks(whole.rows, kRowBlock); ++i) {
    const Range block = row_block(whole.rows, kRowBlock, i);
    Part each = whole;
    each.first_row += block.begin;
    each.x_row += block.begin;
    each.rows = block.end - block.begin;
    const bool last = block.end == whole.rows;
    multiply(run, thread, each, pairs, {reinterpret_cast<std::byte*>(columns.results), columns.ld},
             last ? next : weights_at(run, index, pairs.begin), -1);
    run.table.add_weighted_rows({.y = columns.results,
                                 .ldy = columns.ld,
                                 .rows = each.rows,
                                 .tokens = is_shared ? nullptr : owner.tokens + each.first_row,
                                 .weights = (is_shared ? owner.shared : owner.weights) + each.first_row,
                                 .out = columns.sums + (is_shared ? each.first_row * columns.ld : 0),
                                 .ldo = columns.ld},
                                columns.range);
  }
}

// `out` has the results of a row block, then the sums of all tokens, then owners. The columns of a chunk lie side by
// side.
ExpertsNode::Columns ExpertsNode::columns_of(Run& run, Range pairs) const {
  const Range range{pairs.begin * 2 * kTileN, pairs.end * 2 * kTileN};
  const int64_t tokens = rows(run), block = std::min(tokens, kRowBlock), ld = range.end - range.begin;
  float* results = run.at<float>(out);
  return {range, results + (block - 1) * range.begin, results + block * out.ld + (tokens - 1) * range.begin, ld};
}

ExpertsNode::Owners ExpertsNode::owners(Run& run) const {
  const int64_t tokens = rows(run), routed = tokens * combine->top_k, block = std::min(tokens, kRowBlock);
  auto* found = reinterpret_cast<int32_t*>(run.at<float>(out) + (block + tokens) * out.ld);
  auto* weights = reinterpret_cast<float*>(found + routed);
  return {found, weights, weights + routed};
}

void ExpertsNode::find_owners(Run& run, int thread) const {
  const Owners owner = owners(run);
  const Range tokens = split(rows(run), run.team.size(), thread);
  const int32_t top_k = combine->top_k;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int32_t* route = run.at<const int32_t>(combine->routes) + t * combine->routes.ld;
    float weights[kMaxTopK + 1];
    std::memcpy(weights, route + top_k, static_cast<size_t>(top_k + 1) * sizeof(float));
    for (int32_t k = 0; k < top_k; ++k) {
      if (route[k] < 0) continue;
      owner.tokens[route[k]] = static_cast<int32_t>(t);
      owner.weights[route[k]] = weights[k];
    }
    owner.shared[t] = weights[top_k];
  }
}

void join(ExpertsNode& experts, CombineNode& combine) {
  if (experts.activation != Activation::kNone) return;
  const auto fills = [&](const PackedMatrix* weight) { return weight->padded_n() == experts.out.ld; };
  if (!std::all_of(experts.experts.begin(), experts.experts.end(), fills)) return;
  if (experts.shared != nullptr && !fills(experts.shared)) return;
  if (experts.out.offset != combine.y.offset || experts.out.ld != combine.out.ld) return;
  if ((experts.shared != nullptr) != combine.has_shared) return;
  if (combine.has_shared && experts.shared_out.offset != combine.shared.offset) return;
  experts.combine = &combine;
  combine.experts = &experts;
}

}  // namespace numaserve
