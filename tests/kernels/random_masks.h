// The front end of a group whose ranks are threads: what it says of masked rows, and the thread that writes it.
//
// What is said of a row, and when, is a function of the request and the position, so that the request meets the same
// alone and among others. Where a word must come before the deadline or must not, the deadline is far away or the word
// is there before the step begins: no outcome rests on the machine's speed, but for words that race.
#pragma once

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/runtime/program/nodes.h"

namespace numaserve::testing {

enum class Word {
  kMask,
  kFree,
  kDrop,
  kEmpty,          // a mask that leaves no token
  kWrongState,     // none of the three
  kNothing,        // no word at all
  kLate,           // a mask, once the step's result is there
  kOldStep,        // a mask, for the step that had the row before
  kOldGeneration,  // a mask, of a board that another group had
  kRacing,         // a mask, about when the deadline ends
};

inline constexpr int64_t kMostDelay = 400;  // µs

struct MaskedRow {
  uint32_t row = 0;
  Word word = Word::kMask;
  std::vector<uint32_t> bits;
  std::chrono::microseconds delay{0};

  bool is_racing() const { return word == Word::kRacing; }
  // Whether rank 0 waits until its deadline, or may have to.
  bool is_missed() const { return word >= Word::kNothing; }
  bool allows(int32_t token) const { return (bits[static_cast<size_t>(token / 32)] >> token % 32 & 1) != 0; }
  bool accepts(int32_t token, bool dropped, bool late) const {
    if (word == Word::kMask) return !dropped && !late && allows(token);
    if (word == Word::kFree) return !dropped && !late;
    if (!is_missed()) return dropped && !late;
    return (late && !dropped) || (is_racing() && allows(token));
  }
};

// What the front end says of the token that request `number` has at `position`. Bits after the vocabulary are anything.
inline MaskedRow make_masked_row(uint32_t row, int64_t vocabulary, uint64_t seed, int number, size_t position) {
  std::mt19937_64 random(seed * 1'000'000 + static_cast<uint64_t>(number) * 1000 + position);
  MaskedRow made{.row = row, .bits = std::vector<uint32_t>(static_cast<size_t>(ceil_div(vocabulary, 32)))};
  // Half of them masks: a request should meet several before the word that ends it.
  made.word =
      random() % 2 == 0 ? Word::kMask : static_cast<Word>(random() % (static_cast<uint64_t>(Word::kRacing) + 1));
  if (random() % 2 == 0) made.delay = std::chrono::microseconds(random() % kMostDelay);
  if (made.word == Word::kEmpty) return made;
  for (uint32_t& bits : made.bits) bits = static_cast<uint32_t>(random() & random());
  const uint64_t sure = random() % static_cast<uint64_t>(vocabulary);
  made.bits[sure / 32] |= 1u << sure % 32;
  return made;
}

class FrontEnd {
 public:
  explicit FrontEnd(const Limits& limits)
      : layout_{static_cast<uint32_t>(limits.max_slots), static_cast<uint32_t>(4 * ceil_div(limits.vocabulary, 32))},
        memory_(allocate(layout_)),
        // The end that a group before this one had: it writes to the same memory.
        old_(board(kNonce - 1)),
        ours_(board(kNonce)),
        rank0_(std::make_unique<masks::Board>(memory_.get(), layout_.total_bytes(), kNonce)) {
    for (uint64_t step = 0; step < masks::kHalves; ++step)
      for (uint32_t row = 0; row < layout_.rows; ++row)
        ASAN_POISON_MEMORY_REGION(reinterpret_cast<std::byte*>(ours_->bits(step, row)) + layout_.row_bytes,
                                  layout_.row_stride() - sizeof(masks::Row) - layout_.row_bytes);
    writer_ = std::thread([this] { write_all(); });
  }
  ~FrontEnd() {
    {
      const std::lock_guard<std::mutex> held(lock_);
      ended_ = true;
      jobs_.clear();
    }
    changed_.notify_all();
    writer_.join();
    ASAN_UNPOISON_MEMORY_REGION(memory_.get(), layout_.total_bytes());
  }
  FrontEnd(const FrontEnd&) = delete;
  FrontEnd& operator=(const FrontEnd&) = delete;

  // The plan of a step is made: says what there is to say of its rows. Returns how rank 0 is to wait for that. A word
  // that races comes up to two times `step_ns` later.
  Masks plan(uint64_t step, const std::vector<MaskedRow>& rows, int64_t step_ns) {
    const bool some_missed =
        std::any_of(rows.begin(), rows.end(), [](const MaskedRow& row) { return row.is_missed(); });
    for (const MaskedRow& row : rows)
      if (!row.is_racing() && row.word != Word::kLate) submit(step, row, !some_missed);
    // The deadline is one for all rows: what comes in time comes before it begins.
    if (some_missed) wait_until_written();
    for (MaskedRow row : rows) {
      if (!row.is_racing()) continue;
      row.delay = std::chrono::microseconds(step_ns / 1000 * 2 * row.delay.count() / kMostDelay);
      submit(step, row, true);
    }
    return {.board = rank0_.get(), .grace_ns = some_missed ? kShortNs : kPatienceNs};
  }

  // The step's result is there.
  void take_result(uint64_t step, const std::vector<MaskedRow>& rows) {
    for (const MaskedRow& row : rows)
      if (row.word == Word::kLate) submit(step, row, false);
  }

 private:
  static constexpr uint64_t kNonce = 0x1234'5678'9abc;
  static constexpr int64_t kPatienceNs = 300'000'000'000;
  static constexpr int64_t kShortNs = 200'000;

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Job {
    uint64_t step;
    MaskedRow row;
  };

  static std::unique_ptr<void, Free> allocate(const masks::Layout& layout) {
    std::unique_ptr<void, Free> memory(std::aligned_alloc(ring::kPage, layout.total_bytes()));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory.get(), 0, layout.total_bytes());
    return memory;
  }
  std::unique_ptr<masks::Board> board(uint64_t nonce) {
    masks::format_board(memory_.get(), layout_, nonce);
    return std::make_unique<masks::Board>(memory_.get(), layout_.total_bytes(), nonce);
  }

  void submit(uint64_t step, MaskedRow row, bool delayed) {
    if (!delayed) row.delay = {};
    const std::lock_guard<std::mutex> held(lock_);
    jobs_.push_back({step, std::move(row)});
    changed_.notify_all();
  }
  void wait_until_written() {
    std::unique_lock<std::mutex> held(lock_);
    changed_.wait(held, [this] { return jobs_.empty(); });
  }

  // A job leaves the queue once it is done.
  void write_all() {
    std::unique_lock<std::mutex> held(lock_);
    while (true) {
      changed_.wait(held, [this] { return ended_ || !jobs_.empty(); });
      if (ended_) return;
      const Job job = jobs_.front();
      held.unlock();
      if (job.row.delay.count() > 0) std::this_thread::sleep_for(job.row.delay);
      write(job);
      held.lock();
      if (!jobs_.empty()) jobs_.pop_front();
      changed_.notify_all();
    }
  }

  void write(const Job& job) const {
    const auto say = [&](const masks::Board& to, masks::State state, uint64_t step) {
      to.publish(step, job.row.row, state, job.row.bits.data());
    };
    switch (job.row.word) {
      case Word::kFree:
        return say(*ours_, masks::State::free, job.step);
      case Word::kDrop:
        return say(*ours_, masks::State::drop, job.step);
      case Word::kWrongState:
        return say(*ours_, static_cast<masks::State>(4 + job.step % 252), job.step);
      case Word::kNothing:
        return;
      case Word::kOldStep:
        return say(*ours_, masks::State::mask, job.step - masks::kHalves);
      case Word::kOldGeneration:
        return say(*old_, masks::State::mask, job.step);
      default:
        return say(*ours_, masks::State::mask, job.step);
    }
  }

  masks::Layout layout_;
  std::unique_ptr<void, Free> memory_;
  std::unique_ptr<masks::Board> old_, ours_, rank0_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool ended_ = false;
  std::thread writer_;
};

}  // namespace numaserve::testing
