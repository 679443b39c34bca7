// Random plans and page tables, as no front end would send them, before what a step makes of them.
//
//   plan_fuzz SECONDS SEED [FOLDER | FILE]
//
// An input is a list of operations on a table of slots: begin a slot anew, give it pages, run a step. What is refused
// must have changed nothing; what is accepted must stay within the cache, the page tables and the vocabulary. Inputs
// are made anew for SECONDS, or once for 0 seconds of the FILE; one that ends the process is left in FOLDER.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "kernels/runtime/program/step.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace numaserve::testing {
namespace {

constexpr Limits kLimits{.max_tokens = 48,
                         .max_logit_rows = 9,
                         .max_slots = 4,
                         .pages_per_slot = 5,
                         .num_pages = 11,
                         .vocabulary = 19,
                         .num_snapshots = 3,
                         .max_drafts = 4};

std::vector<uint8_t> current;  // the input that is being run
std::string left_in;
int64_t accepted = 0, refused = 0;  // steps

void leave_input() {
  if (left_in.empty()) return;
  std::ofstream(left_in + "/plan", std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "plan_fuzz: %s\n", what);
  leave_input();
  std::abort();
}

// Reads numbers out of an input; zeros come after its end.
class Numbers {
 public:
  explicit Numbers(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  // Mostly from 0 to `usual`, else any: a plan that is wrong everywhere is refused at the first place.
  int32_t number(int32_t usual) {
    const uint8_t value = byte();
    if (value < 248) return value % (usual + 1);
    if (value == 248) return -1;
    if (value == 249) return usual + 1;
    uint32_t any = 0;
    for (int i = 0; i < 4; ++i) any = any << 8 | byte();
    return static_cast<int32_t>(any);
  }
  std::vector<int32_t> list(int32_t longest, int32_t usual) {
    std::vector<int32_t> values(byte() % static_cast<size_t>(longest + 1));
    for (int32_t& value : values) value = number(usual);
    return values;
  }

 private:
  std::span<const uint8_t> bytes_;
};

struct Remembered {
  std::vector<int32_t> pages;
  int32_t last_token, min_position, state_position, state_drafts;
  std::vector<int32_t> named_ids;
  bool operator==(const Remembered&) const = default;
};

class Run {
 public:
  explicit Run(std::span<const uint8_t> input)
      : numbers_(input),
        step_(kLimits, kinds(input), parallel(input), 1 + (input.size() % 3)),
        slots_(kLimits.max_slots, kLimits.pages_per_slot, kLimits.num_pages, kLimits.vocabulary) {
    if (input.size() % 2 == 0) step_.allow_pooling();
    if (input.size() % 3 == 0) step_.keep_states();
    step_.limit_positions(150);
  }

  void play() {
    while (!numbers_.empty()) {
      const std::vector<Remembered> before = remembered();
      try {
        const int changes = numbers_.byte() % 4;
        for (int i = 0; i < changes; ++i) change();
        run_step();
        slots_.commit();
        ++accepted;
      } catch (const std::invalid_argument&) {
        ++refused;
        slots_.revert();
        require(remembered() == before, "what was refused has changed a slot");
      }
    }
  }

 private:
  static std::vector<CacheKind> kinds(std::span<const uint8_t> input) {
    if (input.size() % 4 < 2)
      return {{.heads = {.q_heads = 6, .kv_heads = 3, .head_dim = 24}, .window = {}, .layers = 1},
              {.heads = {.q_heads = 2, .kv_heads = 1, .head_dim = 40}, .window = {.tokens = 40}, .layers = 1}};
    return {{.heads = {.q_heads = 4, .kv_heads = 1, .head_dim = 96, .value_dim = 64}, .window = {}, .layers = 1}};
  }

  static ContextParallel parallel(std::span<const uint8_t> input) {
    if (input.size() % 4 < 3) return {};
    return {.head_bounds = {0, 4, 9}, .world = 2, .rank = 1, .from = 3, .max_rows = 2};
  }

  std::vector<Remembered> remembered() {
    std::vector<Remembered> all;
    for (int64_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_.at(i);
      all.push_back({slot.pages, slot.last_token, slot.sampling.min_position, slot.state_position, slot.state_drafts,
                     slot.named_ids});
    }
    return all;
  }

  void change() {
    const int32_t slot = numbers_.number(kLimits.max_slots - 1);
    if (numbers_.byte() % 2 == 0) return slots_.append_pages(slot, numbers_.list(6, kLimits.num_pages - 1));
    SlotSettings settings{};
    const int32_t last = kLimits.vocabulary - 1;
    settings.min_position = numbers_.number(100);
    settings.bias_ids = numbers_.list(3, last);
    settings.bias_values.assign(settings.bias_ids.size() + (numbers_.byte() > 250), 1.0f);
    settings.suppress = numbers_.list(3, last);
    settings.token_ids_logprob = numbers_.list(3, last);
    settings.penalties = numbers_.byte() % 2 == 0;
    settings.prompt_history = numbers_.list(5, last);
    settings.output_history = numbers_.list(5, last);
    slots_.init(slot, std::move(settings));
  }

  void run_step() {
    std::vector<SequenceInput> plan(numbers_.byte() % 6);
    int32_t tokens = 0, targets = 0;
    for (SequenceInput& sequence : plan) {
      const uint8_t flags = numbers_.byte();
      sequence = {.slot = numbers_.number(kLimits.max_slots - 1),
                  .start = numbers_.number(150),
                  .count = flags % 4 == 0 ? 1 : numbers_.number(20),
                  .from_previous = flags % 4 == 0 && flags & 16,
                  .sample = (flags & 32) != 0,
                  .num_targets = flags & 64 ? numbers_.number(3) : 0,
                  .pool = (flags & 128) != 0};
      use_snapshots(sequence, marks_[static_cast<size_t>(&sequence - plan.data())]);
      if (flags & 8 && sequence.sample) sequence.drafts = numbers_.number(4);
      // Where states are kept, mostly from where these are.
      if (flags & 2 && sequence.slot >= 0 && sequence.slot < kLimits.max_slots) {
        const Slot& slot = slots_.at(sequence.slot);
        sequence.start = slot.state_position + std::min(slot.state_drafts, flags & 1);
      }
      tokens += sequence.from_previous ? 0 : std::clamp(sequence.count, 0, 64);
      targets += std::clamp(sequence.num_targets, 0, 64);
    }
    const bool honest = numbers_.byte() < 240;
    step_.begin(plan, ids(honest ? tokens : numbers_.byte()), ids(honest ? targets : numbers_.byte()), slots_);
    check_step(plan);
    for (const SequenceInput& sequence : plan)
      if (sequence.sample) slots_.at(sequence.slot).last_token = numbers_.byte() % kLimits.vocabulary;
  }

  void use_snapshots(SequenceInput& sequence, std::vector<StateMark>& marks) {
    const uint8_t flags = numbers_.byte();
    sequence.begin = flags & 1 ? numbers_.number(kLimits.num_snapshots - 1) : -1;
    marks.clear();
    for (int i = flags / 2 % 4; i > 0; --i) {
      const int32_t position = numbers_.number(24);
      marks.push_back({position < 24 && position >= 0 ? std::clamp(sequence.start, 0, 1000) + position : position,
                       numbers_.number(kLimits.num_snapshots - 1)});
    }
    sequence.marks = marks;
  }

  std::vector<int32_t> ids(int32_t count) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (int32_t& id : result) id = numbers_.number(kLimits.vocabulary - 1);
    return result;
  }

  void check_step(std::span<const SequenceInput> plan) {
    require(step_.num_tokens() <= kLimits.max_tokens, "too many tokens");
    for (const int32_t token : step_.tokens)
      require(token >= 0 && token < kLimits.vocabulary, "a token beyond the vocabulary");
    int64_t covered = 0;
    for (const PageRun& run : step_.runs) {
      require(run.page >= 0 && run.page < kLimits.num_pages, "a page beyond the cache");
      require(run.count > 0 && run.position % kPageTokens + run.count <= kPageTokens, "a run beyond its page");
      require(run.row == covered, "rows that are not one after the other");
      covered += run.count;
    }
    require(covered == step_.num_tokens(), "tokens without a page");
    require(step_.logit_rows.size() <= static_cast<size_t>(kLimits.max_logit_rows), "too many rows of logits");
    for (const LogitRow& row : step_.logit_rows)
      require(row.row >= 0 && row.row < step_.num_tokens() && row.sequence >= 0 &&
                  row.sequence < static_cast<int32_t>(plan.size()),
              "a row of logits that there is not");
    require(step_.sequences.size() + step_.divided.sequences.size() == plan.size(), "a sequence that nobody attends");
    check_segments(plan);
    for (const AttentionSequence& sequence : step_.sequences)
      for (int32_t i = 0; i < sequence.start + sequence.q_len; i += kPageTokens)
        require(sequence.pages[i / kPageTokens] < kLimits.num_pages, "a page beyond the cache is attended");
  }

  // The segments of each sequence cover its rows in order, and the last known one ends in its slot.
  void check_segments(std::span<const SequenceInput> plan) {
    const int64_t states = kLimits.max_slots + kLimits.num_snapshots;
    int64_t next = 0, row = 0;
    for (size_t i = 0; i < plan.size(); ++i) {
      require(step_.chains[i].begin == next && step_.chains[i].end > next, "segments that are not one after the other");
      for (; next < step_.chains[i].end; ++next) {
        const StateSegment& segment = step_.segments[static_cast<size_t>(next)];
        require(segment.row == row && segment.count >= 0, "segments whose rows are not one after the other");
        require(segment.load >= -1 && segment.load < states && segment.store >= -1 && segment.store < states,
                "a state that does not exist");
        require(segment.replayed == 0 || segment.load == plan[i].slot, "draft tokens of another slot");
        require(segment.replayed >= 0 && segment.replayed <= kLimits.max_drafts, "draft tokens that are not kept");
        if (next > step_.chains[i].begin)
          require(segment.load == step_.segments[static_cast<size_t>(next) - 1].store,
                  "a segment that goes on elsewhere");
        row += segment.count;
      }
      const size_t last = static_cast<size_t>(next) - (plan[i].drafts > 0 ? 2 : 1);
      require(step_.segments[last].store == plan[i].slot, "a state that the slot does not get");
      if (plan[i].drafts == 0) continue;
      const StateSegment& drafts = step_.segments[last + 1];
      require(drafts.store == -1 && drafts.count == plan[i].drafts, "draft tokens that change a state");
    }
    require(row == step_.num_tokens(), "tokens without a segment");
  }

  Numbers numbers_;
  Step step_;
  SlotTable slots_;
  std::vector<StateMark> marks_[6];  // of the sequences of a plan
};

void run(std::vector<uint8_t> input) {
  current = std::move(input);
  Run(current).play();
}

std::vector<uint8_t> random_input(std::mt19937_64& random) {
  std::vector<uint8_t> input(random() % 400);
  // Small numbers are met more often: they are usual ones.
  const uint64_t most = random() % 3 == 0 ? 256 : 248;
  for (uint8_t& byte : input) byte = static_cast<uint8_t>(random() % most);
  return input;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const double seconds = std::atof(argv[1]);
  if (seconds == 0 && argc > 3) {
    std::ifstream file(argv[3], std::ios::binary);
    run({std::istreambuf_iterator<char>(file), {}});
    return 0;
  }
  if (argc > 3) left_in = argv[3];
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_set_death_callback(leave_input);
#endif
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  int64_t runs = 0;
  for (; runs % 256 != 0 || passed() < seconds; ++runs) run(random_input(random));
  std::printf("%lld runs, %.0f a second; %lld steps were accepted, %lld refused\n", static_cast<long long>(runs),
              static_cast<double>(runs) / passed(), static_cast<long long>(accepted), static_cast<long long>(refused));
  return 0;
}

}  // namespace
}  // namespace numaserve::testing

int main(int argc, char** argv) { return numaserve::testing::main(argc, argv); }
