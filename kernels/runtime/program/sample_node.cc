#include <algorithm>
#include <cstring>

#include "kernels/runtime/program/nodes.h"

namespace numaserve {
namespace {

constexpr int32_t kNotSampled = -1;
// Size of the vocabulary from which on sharing a row is worth two barriers.
constexpr int64_t kLeastShared = 16 * kSampleBlock;

Slot& slot_of(const Run& run, int64_t row) {
  const int32_t sequence = run.step.logit_rows[static_cast<size_t>(row)].sequence;
  return run.slots.at(run.step.plan[static_cast<size_t>(sequence)].slot);
}

void not_sampled(SampledRow& row) {
  row.token = kNotSampled;
  row.dropped = row.late = false;
}

}  // namespace

void SampleNode::run(Run& run, int thread) const {
  const bool met = meet(run, logits, thread);
  const bool samples = run.ring == nullptr || run.ring->rank() == 0;
  if (samples && shares_rows(run))
    sample_shared(run, met, thread);
  else if (met && samples)
    sample_rows(run, thread);
  leave(run, logits, thread);
  run.team.barrier(thread);
  if (thread == 0 && samples && !run.failed()) void_after_late(run);
  if (run.ring != nullptr) share_tokens(run, thread);
  if (thread == 0 && !run.failed()) keep_tokens(run);
}

// Discards samples after a late row: the late row's placeholder may equal the draft token after it.
void SampleNode::void_after_late(Run& run) const {
  bool late = false;
  for (size_t i = 0; i < run.step.logit_rows.size(); ++i) {
    const LogitRow& row = run.step.logit_rows[i];
    if (!row.sample) continue;
    if (row.behind == 0)
      late = run.sampled[i].late;
    else if (late)
      not_sampled(run.sampled[i]);
  }
}

// Every rank has the tokens, so all ranks store the same ones.
void SampleNode::keep_tokens(Run& run) const {
  bool holds = true;  // whether all draft tokens of the sequence before this row were accepted
  for (size_t i = 0; i < run.step.logit_rows.size(); ++i) {
    const LogitRow& row = run.step.logit_rows[i];
    if (!row.sample) continue;
    int32_t& token = run.sampled[i].token;
    if (row.behind == 0) holds = true;
    holds = holds && token != kNotSampled;
    if (!holds) {
      token = kNotSampled;
      continue;
    }
    Slot& slot = slot_of(run, static_cast<int64_t>(i));
    slot.last_token = token;
    if (!slot.output_counts.empty()) ++slot.output_counts[static_cast<size_t>(token)];
    holds = token == row.draft;
  }
}

void SampleNode::sample_rows(Run& run, int thread) const {
  const Range rows = split(static_cast<int64_t>(run.step.logit_rows.size()), run.lanes(), thread);
  bool masked = false;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if (waits_for_mask(run, row))
      masked = true;
    else
      sample_row(run, row, nullptr, thread);
  }
  if (masked) sample_masked_rows(run, rows, thread);
}

void SampleNode::sample_masked_rows(Run& run, Range rows, int thread) const {
  const int64_t begin = now_ns();
  const int64_t limit = begin + std::max(run.masks.grace_ns, (begin - run.begin_ns) / Masks::kWaits);
  int64_t waited = 0;
  for (const bool waits : {false, true})
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const LogitRow& logit_row = run.step.logit_rows[static_cast<size_t>(row)];
      const Slot& slot = slot_of(run, row);
      if (!slot.masked || !logit_row.sample) continue;
      SampledRow& result = run.sampled[static_cast<size_t>(row)];
      if (!waits) result.token = kNotSampled;
      if (result.token != kNotSampled) continue;
      const masks::Board* board = run.masks.board;
      const auto index = static_cast<uint32_t>(run.step.plan[static_cast<size_t>(logit_row.sequence)].slot +
                                               logit_row.behind * run.slots.size());
      if (board != nullptr && index >= board->rows()) board = nullptr;
      masks::State state = board == nullptr ? masks::State::drop : board->peek(run.step_id, index);
      if (state == masks::State::none) {
        if (!waits) continue;
        const int64_t waits_from = now_ns();
        state = board->wait(run.step_id, index, static_cast<uint64_t>(limit));
        waited += now_ns() - waits_from;
      }
      if ((state == masks::State::drop || state == masks::State::none) && logit_row.behind > 0) {
        not_sampled(result);  // the sequence continues with the tokens sampled before this row
        continue;
      }
      const bool has_mask = state == masks::State::mask;
      sample_row(run, row, has_mask ? board->bits(run.step_id, index) : nullptr, thread);
      if (state == masks::State::drop) result.dropped = true;
      if (state == masks::State::none) result.late = true;
    }
  int64_t most = run.mask_wait_ns.load(std::memory_order_relaxed);
  while (waited > most && !run.mask_wait_ns.compare_exchange_weak(most, waited, std::memory_order_relaxed)) {
  }
}

SampleArgs SampleNode::arguments(Run& run, int64_t row, const uint32_t* mask, int thread) const {
  const int64_t vocab = vocab_first.back(), padded = round_up(vocab, kPad);
  auto* values = run.scratch<float>(thread);
  auto* candidates = reinterpret_cast<int32_t*>(values + padded);
  auto* adjusted = reinterpret_cast<float*>(candidates + 2 * padded);
  auto* raw = reinterpret_cast<SampledBlock*>(adjusted + padded);
  const LogitRow& logit_row = run.step.logit_rows[static_cast<size_t>(row)];
  return {.logits = values,
          .vocab = vocab,
          .position = logit_row.position,
          .state = &slot_of(run, row).sampling,
          .drafts = run.step.tokens().data() + logit_row.row - logit_row.behind + 1,
          .num_drafts = logit_row.behind,
          .mask = mask,
          .candidates = candidates,
          .adjusted = adjusted,
          .raw = raw,
          .drawn = raw + sample_blocks(vocab),
          .named_logprobs = run.named_logprobs.data() + logit_row.named.begin};
}

// Assembles some blocks of the vocabulary from the ranks' parts, whose rows are padded to each rank's own columns.
void SampleNode::begin(const Run& run, int64_t row, const SampleArgs& args, Range blocks) const {
  const auto [begin, end] = tokens_of_blocks(blocks, args.vocab);
  auto* values = const_cast<float*>(args.logits);
  for (int rank = 0; rank < run.world(); ++rank) {
    const int64_t first = vocab_first[static_cast<size_t>(rank)], last = vocab_first[static_cast<size_t>(rank) + 1];
    const int64_t from = std::max(begin, first), to = std::min(end, last);
    if (from >= to) continue;
    const float* part = run.part<float>(logits, rank) + row * round_up(last - first, kPad);
    run.table.copy(part + from - first, values + from, (to - from) * static_cast<int64_t>(sizeof(float)));
  }
  if (softcap > 0.0f && begin < end) run.table.softcap(values + begin, end - begin, softcap);
  if (run.step.logit_rows[static_cast<size_t>(row)].sample) run.table.sample_begin(args, blocks);
}

void SampleNode::finish(Run& run, int64_t index, const SampleArgs& args) const {
  const LogitRow& row = run.step.logit_rows[static_cast<size_t>(index)];
  SampledRow& result = run.sampled[static_cast<size_t>(index)];
  result.token = kNotSampled;
  result.late = false;
  if (row.target >= 0)
    run.table.token_logprobs(args.logits, args.vocab, row.target, std::max(args.state->num_logprobs, 0),
                             &run.sampled[run.step.logit_rows.size() + static_cast<size_t>(index)]);
  if (row.sample) run.table.sample(args, &result);
  // A draft token may lead to logits that are not numbers, or to a state where no token is allowed. Tokens sampled
  // before it stay valid: the sequence fails only when it gets there without draft tokens.
  if (row.behind > 0 && (!result.usable || result.dropped)) not_sampled(result);
}

void SampleNode::sample_row(Run& run, int64_t row, const uint32_t* mask, int thread) const {
  const SampleArgs args = arguments(run, row, mask, thread);
  const Range blocks{0, sample_blocks(args.vocab)};
  begin(run, row, args, blocks);
  if (run.step.logit_rows[static_cast<size_t>(row)].sample) run.table.sample_weigh(args, blocks);
  finish(run, row, args);
}

bool SampleNode::shares_rows(const Run& run) const {
  const auto rows = static_cast<int64_t>(run.step.logit_rows.size());
  return rows > 0 && 2 * rows <= run.lanes() && vocab_first.back() >= kLeastShared;
}

bool SampleNode::waits_for_mask(Run& run, int64_t row) const {
  return slot_of(run, row).masked && run.step.logit_rows[static_cast<size_t>(row)].sample;
}

// Row r lies in the scratch of thread r, which also finishes it.
void SampleNode::sample_shared(Run& run, bool takes, int thread) const {
  const auto rows = static_cast<int64_t>(run.step.logit_rows.size());
  const Range mine = split(sample_blocks(vocab_first.back()), run.lanes(), thread);
  const auto each_row = [&](auto&& work) {
    for (int64_t row = 0; takes && !run.failed() && row < rows; ++row)
      if (!waits_for_mask(run, row)) work(row, arguments(run, row, nullptr, static_cast<int>(row)));
  };
  each_row([&](int64_t row, const SampleArgs& args) { begin(run, row, args, mine); });
  run.team.barrier(thread);
  each_row([&](int64_t row, const SampleArgs& args) {
    if (run.step.logit_rows[static_cast<size_t>(row)].sample) run.table.sample_weigh(args, mine);
  });
  run.team.barrier(thread);
  each_row([&](int64_t row, const SampleArgs& args) {
    if (row == thread) finish(run, row, args);
  });
  if (takes && !run.failed() && thread < rows && waits_for_mask(run, thread))
    sample_masked_rows(run, {thread, thread + 1}, thread);
}

void SampleNode::share_tokens(Run& run, int thread) const {
  // Rank 0 has no tokens then and must not arrive, because peers would read invalid tokens. No thread can fail between
  // the last barrier and the next one, so all threads of a rank decide alike.
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
  return round_up(vocabulary, kPad) * static_cast<int64_t>(sizeof(float) + 3 * sizeof(int32_t)) +
         2 * sample_blocks(vocabulary) * static_cast<int64_t>(sizeof(SampledBlock));
}

}  // namespace numaserve
