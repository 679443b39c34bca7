#include <cstring>

#include "kernels/runtime/nodes.h"

namespace numaserve {
namespace {

constexpr int32_t kNotSampled = -1;

Slot& slot_of(const Run& run, int64_t row) {
  const int32_t sequence = run.step.logit_rows[static_cast<size_t>(row)].sequence;
  return run.slots.at(run.step.plan[static_cast<size_t>(sequence)].slot);
}

}  // namespace

void SampleNode::run(Run& run, int thread) const {
  const bool met = meet(run, logits, thread);
  const bool samples = run.ring == nullptr || run.ring->rank() == 0;
  if (met && samples) sample_rows(run, thread);
  leave(run, logits, thread);
  run.team.barrier(thread);
  if (run.ring != nullptr) share_tokens(run, thread);
  if (thread != 0 || run.failed()) return;
  for (size_t i = 0; i < run.step.logit_rows.size(); ++i) {
    const LogitRow& row = run.step.logit_rows[i];
    if (!row.sample) continue;
    Slot& slot = slot_of(run, static_cast<int64_t>(i));
    slot.last_token = run.sampled[i].token;
    if (!slot.output_counts.empty()) ++slot.output_counts[static_cast<size_t>(slot.last_token)];
  }
}

void SampleNode::sample_rows(Run& run, int thread) const {
  const Range rows = split(static_cast<int64_t>(run.step.logit_rows.size()), run.lanes(), thread);
  bool masked = false;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if (slot_of(run, row).masked && run.step.logit_rows[static_cast<size_t>(row)].sample)
      masked = true;
    else
      sample_row(run, row, nullptr, thread);
  }
  if (masked) sample_masked_rows(run, rows, thread);
}

void SampleNode::sample_masked_rows(Run& run, Range rows, int thread) const {
  const int64_t begin = now_ns(), limit = begin + run.masks.deadline_ns;
  int64_t waited = 0;
  for (const bool waits : {false, true})
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const LogitRow& logit_row = run.step.logit_rows[static_cast<size_t>(row)];
      const Slot& slot = slot_of(run, row);
      if (!slot.masked || !logit_row.sample) continue;
      SampledRow& result = run.sampled[static_cast<size_t>(row)];
      if (!waits) result.token = kNotSampled;
      if (result.token != kNotSampled) continue;
      const auto index = static_cast<uint32_t>(run.step.plan[static_cast<size_t>(logit_row.sequence)].slot);
      const masks::Board* board = run.masks.board;
      masks::State state = board == nullptr ? masks::State::drop : board->peek(run.step_id, index);
      if (state == masks::State::none) {
        if (!waits) continue;
        const int64_t waits_from = now_ns();
        state = board->wait(run.step_id, index, static_cast<uint64_t>(limit));
        waited += now_ns() - waits_from;
      }
      const bool has_mask = state == masks::State::mask;
      sample_row(run, row, has_mask ? board->bits(run.step_id, index) : nullptr, thread);
      if (state == masks::State::drop) result.dropped = true;
    }
  int64_t most = run.mask_wait_ns.load(std::memory_order_relaxed);
  while (waited > most && !run.mask_wait_ns.compare_exchange_weak(most, waited, std::memory_order_relaxed)) {
  }
}

void SampleNode::assemble(const Run& run, int64_t row, float* out) const {
  for (int rank = 0; rank < run.world(); ++rank) {
    const float* part = run.part<float>(logits, rank);
    const int64_t first = vocab_first[static_cast<size_t>(rank)];
    const int64_t count = vocab_first[static_cast<size_t>(rank) + 1] - first;
    // Each rank's rows are padded to its own number of columns.
    std::memcpy(out + first, part + row * round_up(count, kPad), static_cast<size_t>(count) * sizeof(float));
  }
}

void SampleNode::sample_row(Run& run, int64_t index, const uint32_t* mask, int thread) const {
  const LogitRow& row = run.step.logit_rows[static_cast<size_t>(index)];
  const Slot& slot = slot_of(run, index);
  const int64_t vocab = vocab_first.back();
  float* values = run.scratch<float>(thread);
  auto* scratch = reinterpret_cast<int32_t*>(values + round_up(vocab, kPad));
  assemble(run, index, values);
  if (softcap > 0.0f) run.table.softcap(values, vocab, softcap);
  SampledRow& result = run.sampled[static_cast<size_t>(index)];
  result.token = -1;
  if (row.target >= 0) {
    const int wanted = slot.sampling.num_logprobs > 0 ? slot.sampling.num_logprobs : 0;
    run.table.token_logprobs(values, vocab, row.target, wanted,
                             &run.sampled[run.step.logit_rows.size() + static_cast<size_t>(index)]);
  }
  if (row.sample) run.table.sample(values, vocab, row.position, slot.sampling, mask, scratch, &result);
}

void SampleNode::share_tokens(Run& run, int thread) const {
  // Rank 0 has no tokens then, and must not arrive: peers would take what it does not have. No thread can fail between
  // the last barrier and the next, so that all of a rank decide alike.
  if (run.failed()) return;
  const size_t count = run.step.logit_rows.size();
  auto* shared = run.part<int32_t>(tokens, 0);
  if (run.ring->rank() == 0 && thread == 0)
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
