#include "kernels/runtime/nodes.h"

#include <chrono>
#include <cstring>

namespace numaserve {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Meets the other ranks at a collective; true when its parts may be read. Lanes beyond the ring's have no part in it.
bool meet(Run& run, const Place& place, int thread) {
  if (thread >= run.lanes()) return false;
  if (run.ring == nullptr) return true;
  if (run.failed.load(std::memory_order_relaxed)) return false;
  const int64_t begin = thread == 0 ? now_ns() : 0;
  const ring::Status status = run.ring->arrive_and_wait(thread, run.collective(place), 0);
  if (thread == 0) run.all_reduce_ns += now_ns() - begin;
  if (status != ring::Status::ok) run.fail(status, thread);
  return status == ring::Status::ok;
}

// This lane has read its collective; lane 0 also makes sure, for the whole rank, that the next one's slot is free.
// The barrier between this and the next node carries that to the other threads.
void leave(Run& run, const Place& place, int thread) {
  if (run.ring == nullptr || thread >= run.lanes()) return;
  run.ring->done(thread, run.collective(place));
  if (thread != 0 || run.failed.load(std::memory_order_relaxed)) return;
  const ring::Status status = run.ring->acquire(0, run.collective(place) + 1);
  if (status != ring::Status::ok) run.fail(status, thread);
}

}  // namespace

void Run::fail(ring::Status why, int thread) {
  if (!failed.exchange(true, std::memory_order_acq_rel) || thread == 0) status = why;
}

void EmbedNode::run(Run& run, int thread) const {
  run.table.embed({.tokens = run.step.tokens.data(),
                   .table = table.data(),
                   .k_tiles = table.k_tiles(),
                   .first_row = first_row,
                   .num_rows = table.n(),
                   .scale = scale,
                   .out = run.at<float>(out),
                   .ld = out.ld,
                   .rows = run.step.num_tokens()},
                  thread, run.team.size());
}

void NormNode::run(Run& run, int thread) const {
  run.table.rms_norm({.x = run.at<float>(x),
                      .ldx = x.ld,
                      .weight = weight.data(),
                      .out = run.at<bf16>(out),
                      .ldo = out.ld,
                      .rows = run.step.num_tokens(),
                      .cols = static_cast<int64_t>(weight.size()),
                      .eps = eps},
                     thread, run.team.size());
}

LinearNode::LinearNode(std::string node_name, Place x_in, const PackedMatrix& weight_in, Place out_in)
    : Node(std::move(node_name)), x(x_in), weight(weight_in), out(out_in) {
  bytes = weight.bytes();
}

void LinearNode::run(Run& run, int thread) const {
  const int64_t rows = logits ? static_cast<int64_t>(run.step.logit_rows.size()) : run.step.num_tokens();
  const bool narrow = activation != Activation::kNone;
  run.table.gemm({.a = run.at<bf16>(x),
                  .lda = x.ld,
                  .b = weight.data(),
                  .m = rows,
                  .n_panels = weight.n_panels(),
                  .k_tiles = weight.k_tiles(),
                  .bias = bias,
                  .activation = activation,
                  .out_f32 = narrow ? nullptr : run.at<float>(out),
                  .out_bf16 = narrow ? run.at<bf16>(out) : nullptr,
                  .ldo = out.ld},
                 run.scratch<float>(thread), thread, run.team.size());
}

void ReduceNode::run(Run& run, int thread) const {
  const float* parts[ring::kMaxWorld];
  for (int rank = 0; rank < run.world(); ++rank)
    parts[rank] = run.ring == nullptr ? run.at<float>(partial)
                                      : reinterpret_cast<const float*>(run.ring->part(run.collective(partial), rank));
  const ReduceArgs args{.parts = parts,
                        .num_parts = run.world(),
                        .residual = run.at<float>(residual),
                        .ld = residual.ld,
                        .rows = run.step.num_tokens(),
                        .cols = cols,
                        .bias = bias,
                        .post_norm = post_norm,
                        .sum = run.at<float>(sum),
                        .eps = eps,
                        .assign = assign};
  if (meet(run, partial, thread)) run.table.reduce_add(args, thread, run.lanes());
  leave(run, partial, thread);
  if (post_norm == nullptr) return;
  run.team.barrier(thread);
  run.table.post_norm_add(args, thread, run.team.size());
}

void RopeStoreNode::run(Run& run, int thread) const {
  run.table.rope_store({.qkv = run.at<float>(qkv),
                        .ld = qkv.ld,
                        .q_heads = heads.q_heads,
                        .kv_heads = heads.kv_heads,
                        .head_dim = heads.head_dim,
                        .head_tiles = heads.head_tiles(),
                        .cos = cos,
                        .sin = sin,
                        .rot_dim = rot_dim,
                        .q_norm = q_norm,
                        .k_norm = k_norm,
                        .eps = eps,
                        .q = run.at<bf16>(q),
                        .kv = kv,
                        .runs = run.step.runs.data(),
                        .num_runs = static_cast<int64_t>(run.step.runs.size())},
                       thread, run.team.size());
}

void AttentionNode::run(Run& run, int thread) const {
  const AttentionWork& todo = run.step.attention[static_cast<size_t>(work)];
  const AttentionArgs args{.q = run.at<bf16>(q),
                           .q_heads = heads.q_heads,
                           .kv_heads = heads.kv_heads,
                           .head_dim = heads.head_dim,
                           .head_tiles = heads.head_tiles(),
                           .scale = scale,
                           .softcap = softcap,
                           .window = todo.window,
                           .kv = kv,
                           .sequences = run.step.sequences.data(),
                           .out = run.at<bf16>(out),
                           .ldo = out.ld,
                           .partial = run.at<float>(partial)};
  const auto count = static_cast<int64_t>(todo.items.size());
  // Handed out one by one, heaviest first: which thread computes an item does not show in its bits.
  for (int64_t i = run.next_item.fetch_add(1); i < count; i = run.next_item.fetch_add(1))
    run.table.attention_item(args, todo.items[static_cast<size_t>(i)], run.scratch<void>(thread));
  run.team.barrier(thread);
  if (thread == 0) run.next_item.store(0);
  const Range merges = split(static_cast<int64_t>(todo.merges.size()), run.team.size(), thread);
  for (int64_t i = merges.begin; i < merges.end; ++i) {
    const AttentionWork::Merge& merge = todo.merges[static_cast<size_t>(i)];
    run.table.attention_merge(args, merge.first, merge.blocks, merge.stride);
  }
}

void GatherNode::run(Run& run, int thread) const {
  const std::vector<LogitRow>& rows = run.step.logit_rows;
  const Range mine = split(static_cast<int64_t>(rows.size()), run.team.size(), thread);
  for (int64_t i = mine.begin; i < mine.end; ++i)
    std::memcpy(run.at<bf16>(out) + i * out.ld, run.at<bf16>(x) + rows[static_cast<size_t>(i)].row * x.ld,
                static_cast<size_t>(x.ld) * sizeof(bf16));
}

void SampleNode::run(Run& run, int thread) const {
  const bool met = meet(run, logits, thread);
  const bool samples = run.ring == nullptr || run.ring->rank() == 0;
  if (met && samples) sample_rows(run, thread);
  leave(run, logits, thread);
  run.team.barrier(thread);
  if (run.ring != nullptr) share_tokens(run, thread);
  if (thread != 0 || run.failed.load(std::memory_order_relaxed)) return;
  for (size_t i = 0; i < run.step.logit_rows.size(); ++i) {
    const LogitRow& row = run.step.logit_rows[i];
    if (!row.sample) continue;
    Slot& slot = run.slots.at(run.step.plan[static_cast<size_t>(row.sequence)].slot);
    slot.last_token = run.sampled[i].token;
    if (!slot.output_counts.empty()) ++slot.output_counts[static_cast<size_t>(slot.last_token)];
  }
}

void SampleNode::sample_rows(Run& run, int thread) const {
  const Range rows = split(static_cast<int64_t>(run.step.logit_rows.size()), run.lanes(), thread);
  for (int64_t row = rows.begin; row < rows.end; ++row) sample_row(run, row, thread);
}

void SampleNode::assemble(const Run& run, int64_t row, float* out) const {
  for (int rank = 0; rank < run.world(); ++rank) {
    const float* part = run.ring == nullptr
                            ? run.at<float>(logits)
                            : reinterpret_cast<const float*>(run.ring->part(run.collective(logits), rank));
    const int64_t first = vocab_first[static_cast<size_t>(rank)];
    const int64_t count = vocab_first[static_cast<size_t>(rank) + 1] - first;
    // Each rank's rows are padded to its own number of columns.
    std::memcpy(out + first, part + row * round_up(count, kPad), static_cast<size_t>(count) * sizeof(float));
  }
}

void SampleNode::sample_row(Run& run, int64_t index, int thread) const {
  const LogitRow& row = run.step.logit_rows[static_cast<size_t>(index)];
  const Slot& slot = run.slots.at(run.step.plan[static_cast<size_t>(row.sequence)].slot);
  const int64_t vocab = vocab_first.back();
  float* values = run.scratch<float>(thread);
  auto* scratch = reinterpret_cast<int32_t*>(values + round_up(vocab, kPad));
  assemble(run, index, values);
  if (softcap > 0.0f) run.table.softcap(values, vocab, softcap);
  SampledRow& result = run.sampled[static_cast<size_t>(index)];
  result.token = -1;
  if (row.target >= 0) {
    const int wanted = slot.sampling.num_logprobs > 0 ? slot.sampling.num_logprobs : 0;
    run.table.token_logprobs(values, vocab, row.target, wanted, &run.sampled[run.step.logit_rows.size() + static_cast<size_t>(index)]);
  }
  if (row.sample) run.table.sample(values, vocab, row.position, slot.sampling, scratch, &result);
}

void SampleNode::share_tokens(Run& run, int thread) const {
  const size_t count = run.step.logit_rows.size();
  auto* shared = reinterpret_cast<int32_t*>(run.ring->part(run.collective(tokens), 0));
  const bool ok = !run.failed.load(std::memory_order_relaxed);
  if (run.ring->rank() == 0 && thread == 0 && ok)
    for (size_t i = 0; i < count; ++i) shared[i] = run.sampled[i].token;
  run.team.barrier(thread);
  if (meet(run, tokens, thread) && run.ring->rank() != 0 && thread == 0)
    for (size_t i = 0; i < count; ++i) run.sampled[i].token = shared[i];
  leave(run, tokens, thread);
}

int64_t sample_scratch_bytes(int64_t vocabulary) {
  return round_up(vocabulary, kPad) * static_cast<int64_t>(sizeof(float) + 3 * sizeof(int32_t));
}

}  // namespace numaserve
