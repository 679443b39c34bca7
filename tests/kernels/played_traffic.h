// Random traffic on all ranks of a model, and its differences from the same requests one by one.
#pragma once

#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/kernels/random_traffic.h"
#include "tests/kernels/rank_threads.h"

namespace numaserve::testing {

using Outcomes = std::map<int, Outcome>;

struct Played {
  Outcomes outcomes;
  int64_t drafted, accepted;
};

inline std::vector<Played> play(const Model& model, int requests, uint64_t seed, bool calm,
                                const Outcomes& expected = {}) {
  std::vector<Played> played(static_cast<size_t>(model.world()));
  on_all_ranks(model, [&](RankProgram& rank, ring::Ring*) {
    Traffic traffic(rank, seed, calm, expected);
    // As a thread of a rank loads adapters while steps run.
    const std::jthread loading([&](const std::stop_token& ended) {
      while (model.shape.adapters && !ended.stop_requested()) {
        rank.reload_adapter();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    Outcomes outcomes = traffic.play(requests);
    played[static_cast<size_t>(rank.rank())] = {std::move(outcomes), traffic.drafted(), traffic.accepted()};
  });
  return played;
}

// Returns the number of outcomes that differ from those of the same requests alone, on any rank. Prints the draft
// tokens.
inline int differences(const Model& model, int requests, uint64_t seed) {
  Model alone = model;  // without a window table, which changes no bit
  alone.threads.assign(alone.threads.size(), 1);
  alone.shape.window_pages = 0;
  const Outcomes calm = play(alone, requests, seed, true).front().outcomes;
  const std::vector<Played> wild = play(model, requests, seed, false, calm);
  int wrong = 0;
  for (const auto& [number, expected] : calm) {
    wrong += wild.front().outcomes.at(number) != expected;
    for (const Played& rank : wild) wrong += !rank.outcomes.at(number).on_every_rank(expected);
  }
  const auto& [_, drafted, accepted] = wild.front();
  std::printf("%ld draft tokens, %ld accepted; ", static_cast<long>(drafted), static_cast<long>(accepted));
  return wrong;
}

}  // namespace numaserve::testing
