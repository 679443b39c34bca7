// Random requests, and what comes of them.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/runtime/program/slots.h"
#include "tests/kernels/random_nodes.h"

namespace numaserve::testing {

// Positions of a prompt whose embeddings rows of images replace, from `row` on.
struct Features {
  int64_t start, count, row;
};

struct Request {
  std::vector<int32_t> prompt;
  std::vector<Features> features{};
  int64_t max_new = 1;
  bool pooled = false, prompt_logprobs = false;
  SlotSettings settings{};
};

inline int64_t pick(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

inline std::vector<Features> make_features(const Model& model, std::mt19937_64& random, int64_t prompt) {
  std::vector<Features> made;
  const int64_t rows = model.shape.features;
  for (int64_t at = pick(random, 0, 30); at < prompt; at += made.back().count + pick(random, 0, 30)) {
    const int64_t count = std::min(pick(random, 1, rows), prompt - at);
    made.push_back({.start = at, .count = count, .row = pick(random, 0, rows - count)});
  }
  return made;
}

inline Request make_request(const Model& model, uint64_t seed, int number) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(number));
  const auto any_token = [&] { return static_cast<int32_t>(pick(random, 0, model.limits.vocabulary - 1)); };
  const auto one_in = [&](uint64_t n) { return random() % n == 0; };
  Request request;
  request.max_new = pick(random, 1, 12);
  const int64_t longest = model.context() - request.max_new;
  request.prompt.resize(static_cast<size_t>(pick(random, 1, one_in(3) ? longest : std::min<int64_t>(longest, 40))));
  for (int32_t& token : request.prompt) token = any_token();
  request.prompt_logprobs = one_in(4);
  SlotSettings& s = request.settings;
  s = {.temperature = one_in(2) ? 0.0f : 1.3f,
       .top_p = one_in(3) ? 0.8f : 1.0f,
       .min_p = one_in(3) ? 0.05f : 0.0f,
       .top_k = one_in(3) ? 5 : 0,
       .repetition_penalty = 1.0f,
       .presence_penalty = 0.0f,
       .frequency_penalty = 0.0f,
       .seed = random(),
       .num_logprobs = static_cast<int32_t>(pick(random, 0, 20)),
       .min_position = 0,
       .bias_ids = {},
       .bias_values = {},
       .suppress = {},
       .masked = false,
       .token_ids_logprob = one_in(3) ? std::vector{any_token(), any_token()} : std::vector<int32_t>{},
       .penalties = one_in(3),
       .prompt_history = {},
       .output_history = {},
       .declared = {}};
  if (s.penalties) s.repetition_penalty = 1.2f, s.presence_penalty = 0.5f, s.frequency_penalty = 0.25f;
  if (one_in(3)) s.bias_ids = {any_token()}, s.bias_values = {1.5f};
  if (one_in(3)) s.suppress = {any_token()}, s.min_position = static_cast<int32_t>(request.prompt.size()) + 3;
  s.masked = one_in(2);
  if (model.shape.adapters) s.declared.adapter = static_cast<int32_t>(pick(random, 0, RandomAdapters::kNamed));
  if (model.shape.features > 0) request.features = make_features(model, random, std::ssize(request.prompt));
  request.pooled = model.shape.pools && (!model.shape.samples || one_in(3));
  if (request.pooled) request.prompt_logprobs = false;
  return request;
}

// The outcome of a request: the same on every rank, but for what rank 0 alone knows.
struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> pooled;
  std::vector<float> logprobs, prompt_logprobs;  // on rank 0
  std::vector<bool> dropped, late;               // on rank 0
  bool operator==(const Outcome&) const = default;
  bool on_every_rank(const Outcome& other) const { return tokens == other.tokens && pooled == other.pooled; }
};

}  // namespace numaserve::testing
