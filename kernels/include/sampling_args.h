// How rows of logits are sampled, and what comes of it.
#pragma once

#include <cstdint>

#include "kernels/include/types.h"

namespace numaserve {

// How one row of logits is sampled; see workers/interface/protocol/steps.py for the meaning of the fields.
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

// Tokens that threads which share a row take at once, and whose weights are summed first.
inline constexpr int64_t kSampleBlock = 1024;

// A block of a row's tokens.
struct SampledBlock {
  float peak;    // the largest logit, NaN left out
  float weight;  // the sum of what `sample_weigh` weighs
  bool holds_nan;
};

// A row of logits on its way to a token: `sample_begin` for all blocks, then `sample_weigh` for all, then `sample`.
// Threads may share the blocks of the first two, but for rows with a mask, and meet in between.
struct SampleArgs {
  const float* logits;  // [vocab]
  int64_t vocab, position;
  const SamplingState* state;
  const int32_t* drafts;  // tokens of the output that `output_counts` does not count yet; those of the step before this
  int32_t num_drafts;
  const uint32_t* mask;   // bit i of its words tells whether token i is allowed; null: all are
  int32_t* candidates;    // scratch: [2 * vocab]
  float* adjusted;        // scratch: [vocab], the logits after penalties, bias, mask and suppression
  SampledBlock* raw;      // scratch: [sample_blocks(vocab)], of the logits: exp(logit - peak) is weighed
  SampledBlock* drawn;    // scratch: the same of what is drawn from, at the temperature
  float* named_logprobs;  // [num_named], a result
};

[[gnu::always_inline]] constexpr int64_t sample_blocks(int64_t vocab) {
  return (vocab + kSampleBlock - 1) / kSampleBlock;
}

// The tokens of some blocks.
[[gnu::always_inline]] constexpr Range tokens_of_blocks(Range blocks, int64_t vocab) {
  const int64_t end = blocks.end * kSampleBlock;
  return {blocks.begin * kSampleBlock, end < vocab ? end : vocab};
}

inline constexpr int kMaxLogprobs = 20;

struct SampledRow {
  int32_t token;
  bool usable;   // the row's logits, before anything changed them, are numbers whose maximum is finite
  bool dropped;  // its mask leaves no token, or it has none and never will
  bool late;     // its mask was not there in time: the token is one of all
  float logprob;
  int32_t num_top;
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];
};

}  // namespace numaserve
