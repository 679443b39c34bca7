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
#include <string>

#include "kernels/runtime/program/step.h"
#include "tests/kernels/fuzz_numbers.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace numaserve::testing {
namespace {

constexpr int32_t kWindowPages = 17, kPoolRows = 20;
constexpr Window kWindow{.tokens = 40};
const Limits kLimits{{.num_pages = 31,
                      .context_length = 14 * kPageTokens,
                      .max_slots = 4,
                      .max_step_tokens = 48,
                      .max_logit_rows = 9,
                      .num_snapshots = 3,
                      .max_drafts = 4},
                     19};

std::vector<uint8_t> current;  // the input that is being run
std::string left_in;
int64_t accepted = 0, refused = 0;  // steps
int64_t placed_features = 0;        // rows of features

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

struct Remembered {
  std::vector<std::pair<std::vector<int32_t>, int64_t>> tables;
  int32_t last_token, min_position, state_position, state_drafts;
  std::vector<int32_t> named_ids;
  bool operator==(const Remembered&) const = default;
};

class Run {
 public:
  explicit Run(std::span<const uint8_t> input)
      : numbers_(input),
        step_(kLimits, kinds(input), parallel(input), 1 + (input.size() % 3)),
        narrows_(input.size() % 5 == 0 && input.size() % 4 < 3),
        windows_(input.size() % 4 == 1 ? 2 : 1),
        slots_(kLimits.max_slots, kLimits.pages_per_slot(), table_pages(), kLimits.vocabulary) {
    // Layers work on the rows of logits alone in programs that do not pool.
    if (input.size() % 2 == 0 && !narrows_) step_.allow_pooling();
    if (input.size() % 3 == 0) step_.keep_states();
    if (narrows_) step_.allow_narrowing(kinds(input), 1 + (input.size() % 3));
    step_.allow_placing(kPoolRows);
    step_.limit_positions(400);
    if (windows_.size() > 1) windows_[1] = kWindow;
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
              {.heads = {.q_heads = 2, .kv_heads = 1, .head_dim = 40, .value_dim = 24},
               .window = kWindow,
               .layers = 1,
               .table = input.size() % 4}};
    return {{.heads = {.q_heads = 4, .kv_heads = 1, .head_dim = 96, .value_dim = 64, .latent = true},
             .window = {},
             .layers = 1}};
  }

  std::vector<int64_t> table_pages() const {
    if (windows_.size() == 1) return {kLimits.num_pages};
    return {kLimits.num_pages, kWindowPages};
  }

  static ContextParallel parallel(std::span<const uint8_t> input) {
    if (input.size() % 4 < 3) return {};
    return {.head_bounds = {0, 4, 9}, .world = 2, .rank = 1, .from = 3, .max_rows = 2};
  }

  std::vector<Remembered> remembered() {
    std::vector<Remembered> all;
    for (int64_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_.at(i);
      all.push_back(
          {{}, slot.last_token, slot.sampling.min_position, slot.state_position, slot.state_drafts, slot.named_ids});
      for (const PageTable& table : slot.tables) all.back().tables.emplace_back(table.pages, table.first);
    }
    return all;
  }

  void change() {
    const int32_t slot = numbers_.number(kLimits.max_slots - 1);
    switch (numbers_.byte() % 4) {
      case 0:
        return slots_.append_pages(slot, numbers_.list(12, kLimits.num_pages - 1));
      case 1:
        return advance_window(slot);
      default:
        return init(slot);
    }
  }

  void advance_window(int32_t slot) {
    const int32_t window = numbers_.number(0), blocks = numbers_.number(1);
    const int64_t first = blocks == 1 ? kBlockPages : blocks;
    slots_.advance_window(slot, window, first, numbers_.list(12, kWindowPages - 1));
  }

  void init(int32_t slot) {
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
      if (flags & 4 && sequence.start >= 0 && sequence.start <= 150) sequence.start += kAttentionBlock;
      if (flags & 8 && sequence.sample) sequence.drafts = numbers_.number(4);
      // Where states are kept, mostly from where these are.
      if (flags & 2 && sequence.slot >= 0 && sequence.slot < kLimits.max_slots) {
        const Slot& slot = slots_.at(sequence.slot);
        sequence.start = slot.state_position + std::min(slot.state_drafts, flags & 1);
      }
      tokens += sequence.from_previous ? 0 : std::clamp(sequence.count, 0, 64);
      targets += std::clamp(sequence.num_targets, 0, 64);
    }
    const std::vector<PlacedRows> placed = features(plan);
    const bool honest = numbers_.byte() < 240;
    step_.begin(plan, ids(honest ? tokens : numbers_.byte()), ids(honest ? targets : numbers_.byte()), slots_, placed);
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

  std::vector<PlacedRows> features(std::span<const SequenceInput> plan) {
    std::vector<PlacedRows> placed(numbers_.byte() % 8 / 4 * (numbers_.byte() % 3));
    for (PlacedRows& rows : placed) {
      rows.sequence = numbers_.number(static_cast<int32_t>(std::max<size_t>(plan.size(), 1)) - 1);
      const bool known = rows.sequence >= 0 && static_cast<size_t>(rows.sequence) < plan.size();
      const int32_t start = known ? plan[static_cast<size_t>(rows.sequence)].start : 0, offset = numbers_.number(9);
      rows.start = offset >= 0 && offset < 10 ? std::clamp(start, 0, 1000) + offset : offset;
      rows.count = numbers_.number(5);
      rows.row = numbers_.number(kPoolRows - 1);
    }
    return placed;
  }

  std::vector<int32_t> ids(int32_t count) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (int32_t& id : result) id = numbers_.number(kLimits.vocabulary - 1);
    return result;
  }

  void check_step(std::span<const SequenceInput> plan) {
    require(step_.num_tokens() <= kLimits.max_step_tokens, "too many tokens");
    for (const int32_t token : step_.tokens())
      require(token >= 0 && token < kLimits.vocabulary, "a token beyond the vocabulary");
    require(step_.feature_rows.empty() || static_cast<int64_t>(step_.feature_rows.size()) == step_.num_tokens(),
            "features of tokens that are not there");
    for (const int32_t row : step_.feature_rows) {
      require(row >= -1 && row < kPoolRows, "a feature beyond the pool");
      placed_features += row >= 0;
    }
    const int32_t* position = positions_;
    for (const SequenceInput& s : plan)
      for (int32_t i = 0; i < s.count; ++i) require(*position++ == s.start + i, "a token at another position");
    for (size_t table = 0; table < windows_.size(); ++table)
      for (int narrow = 0; narrow <= narrows_; ++narrow) check_table(table, narrow > 0);
    require(step_.logit_rows.size() <= static_cast<size_t>(kLimits.max_logit_rows), "too many rows of logits");
    for (const LogitRow& row : step_.logit_rows)
      require(row.row >= 0 && row.row < step_.num_tokens() && row.sequence >= 0 &&
                  row.sequence < static_cast<int32_t>(plan.size()),
              "a row of logits that there is not");
    require(step_.batch(false).tables[0].sequences.size() + step_.divided.sequences.size() == plan.size(),
            "a sequence that nobody attends");
    check_segments(plan);
  }

  void check_table(size_t table, bool narrow) {
    const auto& [sequences, runs] = step_.batch(narrow).tables[table];
    const int64_t pages = table_pages()[table];
    int64_t covered = 0;
    for (const PageRun& run : runs) {
      require(run.page >= 0 && run.page < pages, "a page beyond the cache");
      require(run.count > 0 && run.position % kPageTokens + run.count <= kPageTokens, "a run beyond its page");
      require(run.row == covered, "rows that are not one after the other");
      covered += run.count;
    }
    require(covered == step_.num_rows(narrow), "tokens without a page");
    for (const AttentionSequence& s : sequences)
      for (int64_t i = windows_[table].first(s.start) / kAttentionBlock * kBlockPages;
           i * kPageTokens < s.start + s.q_len; ++i)
        require(s.pages[i] >= 0 && s.pages[i] < pages, "a page beyond the cache is attended");
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
  const int32_t* positions_ = step_.indices.read(row_index_of("position"));
  bool narrows_;  // whether the last nodes work on the rows of logits alone; not where ranks divide latents
  std::vector<Window> windows_;  // of each page table
  SlotTable slots_;
  std::vector<StateMark> marks_[6];  // of the sequences of a plan
};

void run(std::vector<uint8_t> input) {
  current = std::move(input);
  Run(current).play();
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
  std::printf("%lld runs, %.0f a second; %lld steps were accepted, %lld refused; %lld features were placed\n",
              static_cast<long long>(runs), static_cast<double>(runs) / passed(), static_cast<long long>(accepted),
              static_cast<long long>(refused), static_cast<long long>(placed_features));
  return 0;
}

}  // namespace
}  // namespace numaserve::testing

int main(int argc, char** argv) { return numaserve::testing::main(argc, argv); }
