// How rows of logits are sampled, and what comes of it.
#pragma once

#include <cstdint>

namespace numaserve {

// How one row of logits is sampled; see workers/protocol/steps.py for the meaning of the fields.
struct SamplingState {
  float temperature, top_p, min_p;
  int32_t top_k;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  const int32_t* bias_ids;
  const float* bias_values;
  int32_t num_bias;
  const int32_t* suppress_ids;
  int32_t num_suppress;
  int32_t min_position;
  int32_t num_logprobs;          // -1: none wanted
  const int32_t* prompt_counts;  // [vocabulary], or null without penalties
  const int32_t* output_counts;
  // Tokens whose log-probabilities are wanted, and where they go; in the vocabulary.
  const int32_t* named_ids;
  float* named_logprobs;
  int32_t num_named;
};

inline constexpr int kMaxLogprobs = 20;

struct SampledRow {
  int32_t token;
  bool usable;   // the row's logits, before anything changed them, are numbers whose maximum is finite
  bool dropped;  // its mask leaves no token, or there is none
  float logprob;
  int32_t num_top;
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];
};

}  // namespace numaserve
