// The ranks of a group as threads of one process, around one ring in anonymous memory.
#pragma once

#include <sys/mman.h>

#include <exception>
#include <functional>
#include <optional>
#include <thread>

#include "tests/kernels/random_program.h"

namespace numaserve::testing {

class Segment {
 public:
  explicit Segment(const Model& model)
      : layout_{static_cast<uint32_t>(model.world()), model.lanes(), slot_bytes(model)} {
    base_ = mmap(nullptr, layout_.total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    ring::format_segment(base_, layout_, kNonce);
  }
  ~Segment() { munmap(base_, layout_.total_bytes()); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::unique_ptr<ring::Ring> attach(int rank, uint64_t deadline_ns) const {
    auto attached = std::make_unique<ring::Ring>(base_, layout_.total_bytes(), rank, kNonce);
    attached->set_deadline(deadline_ns);
    attached->share_cores();
    return attached;
  }
  // As the supervisor does when a worker has died.
  void abort() const { ring::abort_segment(*static_cast<ring::Header*>(base_), {}, "a worker has died"); }

 private:
  static constexpr uint64_t kNonce = 7;

  static uint64_t slot_bytes(const Model& model) {
    const int64_t sums = round_up(model.limits.max_step_tokens, kPad) * round_up(model.shape.hidden, kPad);
    const int64_t logits = round_up(model.limits.max_logit_rows, kPad) * round_up(model.shape.vocabulary, kPad);
    return static_cast<uint64_t>(round_up(std::max(sums, logits) * static_cast<int64_t>(sizeof(float)), 4096));
  }

  ring::Layout layout_;
  void* base_;
};

inline constexpr uint64_t kPatience = 300'000'000'000;  // ns: far longer than any step takes

// body(program, ring) on a thread of each rank. When one throws, the others are ended by an abort and the first
// exception that is not about that is thrown again here.
inline void on_all_ranks(const Model& model, const std::function<void(RankProgram&, ring::Ring*)>& body,
                         uint64_t deadline_ns = kPatience, std::function<void(const Segment&)> meanwhile = nullptr) {
  const Segment segment(model);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(model.world()));
  std::atomic<int> first{-1};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < model.world(); ++rank)
    ranks.emplace_back([&, rank] {
      try {
        const auto attached = model.world() > 1 ? segment.attach(rank, deadline_ns) : nullptr;
        RankProgram program(model, rank, attached.get());
        body(program, attached.get());
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
        int nobody = -1;
        first.compare_exchange_strong(nobody, rank);
        segment.abort();
      }
    });
  if (meanwhile) meanwhile(segment);
  for (std::thread& rank : ranks) rank.join();
  if (first >= 0) std::rethrow_exception(errors[static_cast<size_t>(first)]);
}

}  // namespace numaserve::testing
