// Random requests, played on a rank's Program as a scheduler would: chunks of prompts mixed with decode tokens, draft
// tokens, retractions, pages given to one sequence after another.
//
// Every rank plays the same traffic by itself: all it takes is the seed and the tokens that every rank gets to know.
#pragma once

#include <algorithm>
#include <map>

#include "tests/kernels/random_masks.h"
#include "tests/kernels/random_pages.h"
#include "tests/kernels/random_requests.h"
#include "tests/kernels/random_snapshots.h"

namespace numaserve::testing {

class Traffic {
 public:
  // With `calm` one request runs after the other, in the longest chunks there can be, and is never retracted. Draft
  // tokens are right where `expected` has the request.
  Traffic(RankProgram& rank, uint64_t seed, bool calm, const std::map<int, Outcome>& expected = {})
      : rank_(rank),
        expected_(expected),
        limits_(rank.model().limits),
        seed_(seed),
        random_(seed),
        calm_(calm),
        pages_(rank),
        snapshots_(calm ? 0 : rank.model().limits.num_snapshots) {
    slots_.resize(calm ? 1 : static_cast<size_t>(limits_.max_slots));
    if (rank.rank() == 0) front_end_ = std::make_unique<FrontEnd>(limits_);
  }

  // Plays requests number 0 to count - 1.
  std::map<int, Outcome> play(int count) {
    while (static_cast<int>(outcomes_.size()) < count || busy()) step(count);
    return outcomes_;
  }

  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

  // Plays steps until one throws, or `count` of them; new requests never end.
  void play_steps(int64_t count = std::numeric_limits<int64_t>::max()) {
    for (int64_t i = 0; i < count; ++i) step(std::numeric_limits<int>::max());
  }

 private:
  struct Running {
    int number = -1;  // of the request; negative: nothing runs here
    Request request;
    std::vector<int32_t> known;
    RandomPages::Tables pages;
    int64_t computed = 0;
    bool sampled = false;  // in the slot as it is: what `from_previous` goes on from
  };
  struct Batch {
    std::vector<SequenceInput> plan;
    std::vector<std::vector<StateMark>> marks;  // of each sequence
    std::vector<int32_t> tokens, targets;
    std::vector<size_t> slots;
    std::vector<MaskedRow> masked;
    std::vector<PlacedRows> placed;
    int64_t rows = 0;
  };

  bool busy() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Running& r) { return r.number >= 0; });
  }
  bool coin(uint64_t n) { return random_() % n == 0; }

  void step(int count) {
    Batch batch;
    snapshots_.begin_batch();
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      Running& running = slots_[slot];
      if (running.number < 0 && next_ < count && (calm_ || coin(2))) begin(slot);
      if (running.number < 0) continue;
      if (!calm_ && running.computed > 0 && coin(40)) retract(slot);
      if (calm_ || !coin(8)) advance(slot, batch);
    }
    if (batch.plan.empty()) return;
    for (size_t i = 0; i < batch.plan.size(); ++i) batch.plan[i].marks = batch.marks[i];
    run(batch);
    ++step_id_;
  }

  void run(const Batch& batch) {
    Program& program = rank_.program();
    if (front_end_ != nullptr) program.use_masks(front_end_->plan(step_id_, batch.masked, step_ns_));
    const StepOutcome outcome = program.run(batch.plan, batch.tokens, batch.targets, step_id_, batch.placed);
    step_ns_ = outcome.native_ns;
    if (front_end_ != nullptr) front_end_->take_result(step_id_, batch.masked);
    for (size_t i = 0; i < outcome.rows.size(); ++i) take(outcome, i, batch);
    size_t pooled = 0;
    for (size_t i = 0; i < batch.plan.size(); ++i)
      if (batch.plan[i].pool) take_pooled(slots_[batch.slots[i]], program.pooled(pooled++));
  }

  void begin(size_t slot) {
    Running& running = slots_[slot];
    running = {.number = next_, .request = make_request(rank_.model(), seed_, next_), .known = {}, .pages = {}};
    running.known = running.request.prompt;
    outcomes_[next_++];
    init(slot);
  }

  void init(size_t slot) {
    Running& running = slots_[slot];
    SlotSettings settings = running.request.settings;
    if (settings.penalties) {
      settings.prompt_history = running.request.prompt;
      settings.output_history = outcomes_[running.number].tokens;
    }
    rank_.program().slots().init(static_cast<int64_t>(slot), settings);
    running.sampled = false;
  }

  void release_pages(Running& running) {
    pages_.release(running.pages);
    running.computed = 0;
  }

  // Everything is computed again, the log-probabilities of the prompt too.
  void retract(size_t slot) {
    release_pages(slots_[slot]);
    outcomes_[slots_[slot].number].prompt_logprobs.clear();
    init(slot);
  }

  void advance(size_t slot, Batch& batch) {
    Running& running = slots_[slot];
    const auto known = static_cast<int64_t>(running.known.size());
    const auto prompt = static_cast<int64_t>(running.request.prompt.size());
    const int64_t rows_left = limits_.max_logit_rows - batch.rows - 1;
    const int64_t to_score = running.request.prompt_logprobs ? prompt - 1 - running.computed : 0;
    int64_t count = std::min(known - running.computed, limits_.max_step_tokens - planned_tokens(batch));
    if (to_score > 0) count = std::min(count, rows_left);
    if (!calm_ && count > 1) count = pick(random_, 1, count);
    if (count <= 0 || rows_left < 0) return;
    if (!pages_.reach(static_cast<int64_t>(slot), running.pages, running.computed, running.computed + count))
      return retract(slot);
    const bool ends = running.computed + count == known, sample = ends && !running.request.pooled;
    const int64_t targets = std::clamp<int64_t>(to_score, 0, count);
    const bool from_previous = running.sampled && coin(2);
    for (int64_t i = 0; i < count && !from_previous; ++i)
      batch.tokens.push_back(running.known[static_cast<size_t>(running.computed + i)]);
    for (int64_t i = 0; i < targets; ++i)
      batch.targets.push_back(running.known[static_cast<size_t>(running.computed + i + 1)]);
    batch.plan.push_back({.slot = static_cast<int32_t>(slot),
                          .start = static_cast<int32_t>(running.computed),
                          .count = static_cast<int32_t>(count),
                          .from_previous = from_previous,
                          .sample = sample,
                          .num_targets = static_cast<int32_t>(targets),
                          .pool = ends && running.request.pooled});
    place_features(running.request, batch);
    batch.marks.push_back(snapshots_.use(random_, batch.plan.back(), running.number));
    batch.slots.push_back(slot);
    if (sample && running.request.settings.masked) batch.masked.push_back(masked_row(slot));
    batch.rows += targets + sample;
    running.computed += count;
    if (sample && targets == 0 && !from_previous) add_drafts(running, std::min(rows_left, limits_.max_drafts), batch);
  }

  // Names the features among the new tokens of the sequence that was planned last.
  static void place_features(const Request& request, Batch& batch) {
    const SequenceInput& s = batch.plan.back();
    for (const Features& each : request.features) {
      const int64_t begin = std::max<int64_t>(each.start, s.start),
                    end = std::min<int64_t>(each.start + each.count, s.start + s.count);
      if (begin < end)
        batch.placed.push_back({.sequence = static_cast<int32_t>(batch.plan.size()) - 1,
                                .start = static_cast<int32_t>(begin),
                                .count = static_cast<int32_t>(end - begin),
                                .row = static_cast<int32_t>(each.row + begin - each.start)});
    }
  }

  // Adds draft tokens to the part of the sequence that was planned last: at most `most`, and none that needs a page or
  // follows the request's last token. Masked rows have none, as each would need a mask of its own.
  void add_drafts(const Running& running, int64_t most, Batch& batch) {
    const std::vector<int32_t>& sampled = outcomes_[running.number].tokens;
    const auto paged = static_cast<int64_t>(running.pages.front().pages.size()) * kPageTokens;
    most = std::min({most, limits_.max_step_tokens - planned_tokens(batch), rank_.model().context() - running.computed,
                     paged - running.computed, running.request.max_new - static_cast<int64_t>(sampled.size()) - 1});
    if (calm_ || most <= 0 || running.request.settings.masked) return;
    const int64_t count = pick(random_, 0, most);
    const auto found = expected_.find(running.number);
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = sampled.size() + static_cast<size_t>(i);
      const bool known = found != expected_.end() && at < found->second.tokens.size() && !coin(4);
      batch.tokens.push_back(known ? found->second.tokens[at]
                                   : static_cast<int32_t>(pick(random_, 0, limits_.vocabulary - 1)));
    }
    batch.plan.back().count += static_cast<int32_t>(count);
    batch.plan.back().drafts = static_cast<int32_t>(count);
    batch.rows += count;
    drafted_ += count;
  }

  static int64_t planned_tokens(const Batch& batch) {
    int64_t total = 0;
    for (const SequenceInput& s : batch.plan) total += s.count;
    return total;
  }

  void take(const StepOutcome& outcome, size_t index, const Batch& batch) {
    const LogitRow& row = outcome.rows[index];
    Running& running = slots_[batch.slots[static_cast<size_t>(row.sequence)]];
    Outcome& result = outcomes_[running.number];
    if (row.target >= 0 && rank_.rank() == 0) result.prompt_logprobs.push_back(outcome.targets[index].logprob);
    if (!row.sample) return;
    const int32_t token = outcome.sampled[index].token;
    if (row.behind > 0) {
      if (token < 0) return;  // a draft token before it was rejected
      ++running.computed;
      ++accepted_;
    }
    if (token < 0 || token >= limits_.vocabulary) throw std::logic_error("a token outside the vocabulary");
    if (running.request.settings.masked) {
      const MaskedRow masked = masked_row(batch.slots[static_cast<size_t>(row.sequence)]);
      const bool dropped = rank_.rank() == 0 && outcome.sampled[index].dropped;
      const bool late = rank_.rank() == 0 && outcome.sampled[index].late;
      if (rank_.rank() == 0 && !masked.accepts(token, dropped, late))
        throw std::logic_error("a masked row has a token, was dropped or is late against what was said of it");
      // Either outcome is right: nothing that follows can be compared.
      if (masked.is_racing()) return end(running);
      result.dropped.push_back(dropped);
      result.late.push_back(late);
    }
    result.tokens.push_back(token);
    if (rank_.rank() == 0) {
      result.logprobs.push_back(outcome.sampled[index].logprob);
      result.logprobs.insert(result.logprobs.end(), outcome.named_logprobs + row.named.begin,
                             outcome.named_logprobs + row.named.end);
    }
    running.known.push_back(token);
    running.sampled = true;
    if (static_cast<int64_t>(result.tokens.size()) >= running.request.max_new) end(running);
  }

  void take_pooled(Running& running, std::span<const float> values) {
    outcomes_[running.number].pooled.assign(values.begin(), values.end());
    end(running);
  }

  void end(Running& running) {
    release_pages(running);
    running.number = -1;
  }

  // What is said of the token that a slot samples next.
  MaskedRow masked_row(size_t slot) const {
    const Running& running = slots_[slot];
    return make_masked_row(static_cast<uint32_t>(slot), limits_.vocabulary, seed_, running.number,
                           running.known.size());
  }

  RankProgram& rank_;
  const std::map<int, Outcome> expected_;
  const Limits& limits_;
  uint64_t seed_;
  std::mt19937_64 random_;
  bool calm_;
  int next_ = 0;
  uint64_t step_id_ = 1000;
  int64_t step_ns_ = 0;  // of the last step
  int64_t drafted_ = 0, accepted_ = 0;
  std::vector<Running> slots_;
  RandomPages pages_;
  RandomSnapshots snapshots_;
  std::map<int, Outcome> outcomes_;
  std::unique_ptr<FrontEnd> front_end_;  // of rank 0
};

}  // namespace numaserve::testing
