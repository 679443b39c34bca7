// Sampling one token from a row of logits.
//
// Order of the stages, each skipped when its parameter is neutral:
//   repetition penalty (prompt and output; positive logits are divided, others multiplied, as transformers does),
//   frequency and presence penalty (output), bias, mask, suppression, temperature, min-p (relative to the most likely
//   token), top-k, top-p (of what is left, renormalised), draw.
// This is the order of vLLM. Where suppression would leave no token that the mask allows, the mask wins. Where the mask
// itself leaves no token whose logit is above minus infinity, the row is dropped. Among equally likely tokens the lower
// id comes first everywhere: greedy, the k of top-k and the last token of top-p are all unambiguous.
//
// The draw inverts the cumulative distribution at u = Philox(seed, position). With top-k, top-p or min-p it runs over
// the candidates from the most to the least likely; over the whole vocabulary it runs in the order of ids, which needs
// no sort. Arithmetic has one order and calls no libm: the same logits give the same token on every instruction set.
//
// No value of a logit can lead out of the vocabulary. A row that holds a NaN or has no finite maximum gets its argmax
// (NaN left out; 0 if all are NaN) and is reported. A dropped row gets 0. The next step of a sequence, which may begin
// before the front end learns of the failure, therefore always has a token.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/ops/logprobs.inl"
#include "kernels/simd/f32x16.h"

namespace numaserve {
namespace {

constexpr int64_t kMaximaPerBlock = 16;
constexpr float kLowestTemperature = 1e-5f;  // below it sampling is greedy, as in vLLM

// Uniform in [0, 1) with 53 random bits: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011), with the position as its counter and the seed as its key.
double uniform_at(uint64_t seed, int64_t position) {
  const uint64_t counter = static_cast<uint64_t>(position);
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c0, product1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const uint64_t bits = (static_cast<uint64_t>(c0 >> 5) << 26) | (c1 >> 6);
  return static_cast<double>(bits) * 0x1p-53;
}

// Returns the index at which the running sum, starting from `below`, exceeds `target`. Rounding may leave no such
// index; the result is then the last index that has any weight.
int64_t find_in_cumulative(const float* weights, int64_t count, double below, double target) {
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!(weights[i] > 0.0f)) continue;
    below += static_cast<double>(weights[i]);
    last = i;
    if (below > target) break;
  }
  return last;
}

int32_t draw_from_all(const float* x, int64_t vocab, const Softmax& softmax, double u, const SampledBlock* blocks) {
  const double target = u * total_weight(blocks, vocab);
  double below = 0.0;
  int64_t block = 0;
  while (block + 1 < sample_blocks(vocab) && below + static_cast<double>(blocks[block].weight) <= target)
    below += static_cast<double>(blocks[block++].weight);
  const auto [begin, end] = tokens_of_blocks({block, block + 1}, vocab);
  const int64_t count = end - begin;
  alignas(64) float weights[kSampleBlock];
  for (int64_t i = 0; i < count; i += 16) softmax.weights(load_logits(x + begin, i, count)).store(weights + i);
  return static_cast<int32_t>(begin + find_in_cumulative(weights, count, below, target));
}

// Returns a key that is smaller for larger x; the two zeros have the same key.
uint32_t descending_key(float x) {
  const float value = x + 0.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return ~(bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u));
}

// Sorts ids by value, largest first; equal values keep their order. The result is in `sorted`, `ids` is overwritten.
// A radix sort, because flat distributions make many candidates and its time grows with their number only.
void sort_descending(const float* values, int32_t* ids, int32_t* sorted, int64_t count) {
  constexpr int kDigitBits = 11;
  constexpr uint32_t kDigits = 1u << kDigitBits;
  uint32_t offsets[kDigits];
  int32_t* from = ids;
  int32_t* to = sorted;
  for (int shift = 0; shift < 32; shift += kDigitBits) {
    for (uint32_t& offset : offsets) offset = 0;
    for (int64_t i = 0; i < count; ++i) ++offsets[(descending_key(values[from[i]]) >> shift) % kDigits];
    uint32_t sum = 0;
    for (uint32_t& offset : offsets) {
      const uint32_t size = offset;
      offset = sum;
      sum += size;
    }
    for (int64_t i = 0; i < count; ++i) to[offsets[(descending_key(values[from[i]]) >> shift) % kDigits]++] = from[i];
    int32_t* const other = from;
    from = to;
    to = other;
  }
}

// Returns a lower bound of the k-th largest logit: the k-th largest maximum of disjoint groups of 64 tokens, which at
// least k logits reach. It is close to the k-th largest logit if k is well below the number of groups. Overwrites 3 *
// vocab / 64 entries of scratch.
float lower_bound_of_top(const float* x, int64_t vocab, int64_t k, int32_t* scratch) {
  const int64_t groups = vocab / kSampleBlock * kMaximaPerBlock;
  if (k > groups) return kMinusInfinity;
  float* const maxima = reinterpret_cast<float*>(scratch);
  int32_t* const ids = scratch + groups;
  int32_t* const sorted = ids + groups;
  for (int64_t group = 0; group < groups; group += kMaximaPerBlock) {
    const int64_t begin = group / kMaximaPerBlock * kSampleBlock;
    lane_maxima(x, begin, begin + kSampleBlock).store(maxima + group);
  }
  for (int64_t i = 0; i < groups; ++i) ids[i] = static_cast<int32_t>(i);
  sort_descending(maxima, ids, sorted, groups);
  return maxima[sorted[k - 1]];
}

// Draws with top-k, top-p or min-p. Candidates are first narrowed down to tokens whose logit is at most -`depth` below
// the peak, a superset of the tokens wanted; only these are sorted.
int32_t draw_from_top(const float* x, const SampleArgs& a, const Softmax& softmax, double u) {
  const int64_t vocab = a.vocab;
  const SamplingState& state = *a.state;
  const bool limit_k = state.top_k > 0 && state.top_k < vocab, limit_min = state.min_p > 0.0f;
  const double temperature = static_cast<double>(state.temperature);
  float depth = kMinusInfinity;
  double total = 0.0;
  if (limit_k) depth = lower_bound_of_top(x, vocab, state.top_k, a.candidates) - softmax.peak;
  if (limit_min) {
    const float min_depth = static_cast<float>(temperature * log_of(static_cast<double>(state.min_p)));
    if (min_depth > depth) depth = min_depth;
  }
  if (!limit_k && !limit_min) {
    // Tokens that weigh less than (1 - p) total / vocab weigh less than (1 - p) total together: top-p does not need
    // them. The slack of 0.001 covers the rounding of weights.
    total = total_weight(a.drawn, vocab);
    const double lightest = (1.0 - static_cast<double>(state.top_p)) * total / static_cast<double>(vocab);
    depth = static_cast<float>(temperature * (log_of(lightest) - 1e-3));
  }
  if (depth > 0.0f) depth = 0.0f;  // parameters out of range: the peak always stays

  int32_t* const ids = a.candidates;
  int32_t* const sorted = ids + vocab;
  int64_t count = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    ids[count] = static_cast<int32_t>(i);
    count += x[i] - softmax.peak >= depth;
  }
  sort_descending(x, ids, sorted, count);
  if (limit_k && count > state.top_k) count = state.top_k;

  float* const weights = reinterpret_cast<float*>(ids);
  for (int64_t i = 0; i < count; i += 16) {
    alignas(64) float logits[16];
    const int lanes = static_cast<int>(count - i < 16 ? count - i : 16);
    for (int lane = 0; lane < 16; ++lane) logits[lane] = lane < lanes ? x[sorted[i + lane]] : kMinusInfinity;
    softmax.weights(F32x16::load(logits)).store_head(weights + i, lanes);
  }
  if (limit_k || limit_min)
    for (int64_t i = 0; i < count; ++i) total += static_cast<double>(weights[i]);
  const double wanted = state.top_p < 1.0f ? static_cast<double>(state.top_p) * total : __builtin_inf();
  double kept = 0.0;
  int64_t num_kept = 0;
  do kept += static_cast<double>(weights[num_kept++]);
  while (num_kept < count && kept < wanted);
  return sorted[find_in_cumulative(weights, num_kept, 0.0, u * kept)];
}

// Leaves only the tokens that the mask allows, among tokens from a multiple of 32 on.
void keep_allowed(const uint32_t* mask, Range tokens, float* x) {
  for (int64_t begin = tokens.begin; begin < tokens.end; begin += 32) {
    const uint32_t bits = mask[begin / 32];
    const int count = static_cast<int>(tokens.end - begin < 32 ? tokens.end - begin : 32);
    for (int i = 0; i < count; ++i) x[begin + i] = (bits >> i & 1) != 0 ? x[begin + i] : kMinusInfinity;
  }
}

bool is_in(int32_t id, Range tokens) { return id >= tokens.begin && id < tokens.end; }

bool suppresses(const SampleArgs& a) { return a.state->num_suppress > 0 && a.position < a.state->min_position; }

// Whether the logits that are drawn from differ from the row's logits.
bool adjusts(const SampleArgs& a) {
  return a.state->output_counts != nullptr || a.state->num_bias > 0 || suppresses(a) || a.mask != nullptr;
}

bool draws(const SampleArgs& a) { return a.state->temperature >= kLowestTemperature; }

bool wants_logprobs(const SampleArgs& a) { return a.state->num_logprobs >= 0 || a.state->num_named > 0; }

// Whether the draw uses the weights of all tokens: top-k and min-p weigh only the remaining tokens.
bool weighs_all(const SampleArgs& a) {
  return draws(a) && !(a.state->min_p > 0.0f) && !(a.state->top_k > 0 && a.state->top_k < a.vocab);
}

float penalized(const SamplingState& state, float logit, int32_t in_prompt, int32_t in_output) {
  float x = logit;
  if (in_prompt > 0 || in_output > 0) x = x > 0.0f ? x / state.repetition_penalty : x * state.repetition_penalty;
  if (in_output > 0) x = x - state.frequency_penalty * static_cast<float>(in_output) - state.presence_penalty;
  return x;
}

// Writes some of the logits after the penalties to `out`.
void penalize(const SampleArgs& a, Range tokens, float* out) {
  const SamplingState& state = *a.state;
  for (int64_t i = tokens.begin; i < tokens.end; ++i)
    out[i] = penalized(state, a.logits[i], state.prompt_counts[i], state.output_counts[i]);
  for (const int32_t* draft = a.drafts; draft != a.drafts + a.num_drafts; ++draft) {
    if (!is_in(*draft, tokens)) continue;
    int32_t count = state.output_counts[*draft];
    for (int32_t i = 0; i < a.num_drafts; ++i) count += a.drafts[i] == *draft;
    out[*draft] = penalized(state, a.logits[*draft], state.prompt_counts[*draft], count);
  }
}

// Writes some of the logits after penalties, bias, mask and suppression to `adjusted`.
void adjust_logits(const SampleArgs& a, Range tokens, bool suppress) {
  const SamplingState& state = *a.state;
  float* const out = a.adjusted;
  if (state.output_counts != nullptr) {
    penalize(a, tokens, out);
  } else {
    __builtin_memcpy(out + tokens.begin, a.logits + tokens.begin,
                     static_cast<size_t>(tokens.end - tokens.begin) * sizeof(float));
  }
  for (int i = 0; i < state.num_bias; ++i)
    if (is_in(state.bias_ids[i], tokens)) out[state.bias_ids[i]] += state.bias_values[i];
  if (a.mask != nullptr) keep_allowed(a.mask, tokens, out);
  for (int i = 0; suppress && i < state.num_suppress; ++i)
    if (is_in(state.suppress_ids[i], tokens)) out[state.suppress_ids[i]] = kMinusInfinity;
}

void look_at_blocks(const float* x, int64_t vocab, Range blocks, SampledBlock* out) {
  for (int64_t block = blocks.begin; block < blocks.end; ++block) out[block] = look_at_block(x, block, vocab);
}

void sample_begin(const SampleArgs& a, Range blocks) {
  look_at_blocks(a.logits, a.vocab, blocks, a.raw);
  if (!adjusts(a)) {
    for (int64_t block = blocks.begin; block < blocks.end; ++block) a.drawn[block] = a.raw[block];
    return;
  }
  adjust_logits(a, tokens_of_blocks(blocks, a.vocab), suppresses(a));
  look_at_blocks(a.adjusted, a.vocab, blocks, a.drawn);
}

void weigh_blocks(const float* x, int64_t vocab, float temperature, Range blocks, SampledBlock* out) {
  const Softmax softmax{find_peak(x, vocab, out).value, 1.0f / temperature};
  for (int64_t block = blocks.begin; block < blocks.end; ++block)
    out[block].weight = softmax.block_sum(x, block, vocab);
}

void sample_weigh(const SampleArgs& a, Range blocks) {
  const float* x = adjusts(a) ? a.adjusted : a.logits;
  if (a.mask != nullptr && suppresses(a) && find_peak(x, a.vocab, a.drawn).value == kMinusInfinity) {
    adjust_logits(a, tokens_of_blocks(blocks, a.vocab), false);
    look_at_blocks(x, a.vocab, blocks, a.drawn);
  }
  if (weighs_all(a)) weigh_blocks(x, a.vocab, a.state->temperature, blocks, a.drawn);
  if (wants_logprobs(a)) weigh_blocks(a.logits, a.vocab, 1.0f, blocks, a.raw);
}

void sample(const SampleArgs& a, SampledRow* out) {
  const SamplingState& state = *a.state;
  const float* x = adjusts(a) ? a.adjusted : a.logits;
  const Peak peak = find_peak(x, a.vocab, a.drawn), of_logits = adjusts(a) ? find_peak(a.logits, a.vocab, a.raw) : peak;
  out->dropped = a.mask != nullptr && peak.value == kMinusInfinity;
  out->token = peak.token;
  if (draws(a) && peak.usable) {
    const Softmax softmax{peak.value, 1.0f / state.temperature};
    const double u = uniform_at(state.seed, a.position);
    out->token = weighs_all(a) && state.top_p >= 1.0f ? draw_from_all(x, a.vocab, softmax, u, a.drawn)
                                                      : draw_from_top(x, a, softmax, u);
  }
  out->usable = of_logits.usable;  // a bias may be anything
  out->logprob = 0.0f;
  out->num_top = 0;
  if (!wants_logprobs(a)) return;
  const double log_sum = log_of(total_weight(a.raw, a.vocab)) + static_cast<double>(of_logits.value);
  for (int i = 0; i < state.num_named; ++i)
    a.named_logprobs[i] = static_cast<float>(static_cast<double>(a.logits[state.named_ids[i]]) - log_sum);
  if (state.num_logprobs >= 0)
    write_logprobs(a.logits, a.vocab, of_logits, log_sum, out->token, state.num_logprobs, out);
}

}  // namespace
}  // namespace numaserve
