// The arguments and results of sampling from rows of logits.
#pragma once

#include <cstdint>

#include "kernels/include/types.h"

namespace numaserve {

// The sampling settings of one row of logits; see workers/interface/protocol/steps.py for the meaning of the fields.
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
  const int32_t* named_ids;  // tokens whose log-probabilities are wanted; in the vocabulary
  int32_t num_named;
};

// Tokens in a block: threads that share a row take blocks, and the weights of a block are summed first.
inline constexpr int64_t kSampleBlock = 1024;

// A block of a row's tokens.
struct SampledBlock {
  float peak;    // the largest logit, NaN left out
  float weight;  // the sum of the weights from `sample_weigh`
  bool holds_nan;
};

// The state of sampling a row: `sample_begin` for all blocks, then `sample_weigh` for all, then `sample`. Threads may
// share the blocks of the first two, except for rows with a mask, with a barrier in between.
struct SampleArgs {
  const float* logits;  // [vocab]
  int64_t vocab, position;
  const SamplingState* state;
  const int32_t* drafts;  // output tokens not yet in `output_counts`: the draft tokens before this row in the step
  int32_t num_drafts;
  const uint32_t* mask;   // bit i of its words is set if token i is allowed; null: all tokens are
  int32_t* candidates;    // scratch: [2 * vocab]
  float* adjusted;        // scratch: [vocab], the logits after penalties, bias, mask and suppression
  SampledBlock* raw;      // scratch: [sample_blocks(vocab)], of the logits: exp(logit - peak) is weighed
  SampledBlock* drawn;    // scratch: the same for the logits that are drawn from, at the temperature
  float* named_logprobs;  // [num_named], a result
};

[[gnu::always_inline]] constexpr int64_t sample_blocks(int64_t vocab) {
  return (vocab + kSampleBlock - 1) / kSampleBlock;
}

// Returns the tokens of some blocks.
[[gnu::always_inline]] constexpr Range tokens_of_blocks(Range blocks, int64_t vocab) {
  const int64_t end = blocks.end * kSampleBlock;
  return {blocks.begin * kSampleBlock, end < vocab ? end : vocab};
}

inline constexpr int kMaxLogprobs = 20;

struct SampledRow {
  int32_t token;
  bool usable;   // the row's logits, before any change, are numbers with a finite maximum
  bool dropped;  // its mask allows no token, or it will never have a mask
  bool late;     // its mask did not arrive in time: the token is sampled without a mask
  float logprob;
  int32_t num_top;
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];
};

}  // namespace numaserve
