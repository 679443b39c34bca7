// The largest logit, the softmax and the log-probabilities of a row of logits.
//
// Every sum has one order: sixteen lanes over a block of the vocabulary in fp32, then blocks in fp64.
#pragma once

#include "kernels/include/kernel_table.h"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"

namespace numaserve {
namespace {

constexpr int64_t kTopScan = 256;  // tokens skipped at once when none of them enters the list of the top ones
constexpr float kMinusInfinity = -__builtin_inff();

// Natural logarithm of a positive normal x, to about 2 ulp: x = m 2^e with m in [0.71, 1.42), and the series of
// log m = 2 atanh((m - 1) / (m + 1)). Not libm's: glibc picks a variant by processor.
double log_of(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
  double m;
  __builtin_memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  double series = 0.0;
  for (int power = 23; power >= 1; power -= 2) series = series * (s * s) + 1.0 / power;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * series;
}

// Sixteen logits from `i`; those at `end` and after are minus infinity.
F32x16 load_logits(const float* x, int64_t i, int64_t end) {
  if (i + 16 <= end) return F32x16::load(x + i);
  alignas(64) float padded[16];
  for (int lane = 0; lane < 16; ++lane) padded[lane] = i + lane < end ? x[i + lane] : kMinusInfinity;
  return F32x16::load(padded);
}

// Lane by lane the maximum of x[begin .. end), NaN left out: an x86 maximum gives its second operand for a NaN.
// Four running maxima hide the latency of one.
F32x16 lane_maxima(const float* x, int64_t begin, int64_t end) {
  F32x16 best[4];
  for (F32x16& b : best) b = F32x16::set1(kMinusInfinity);
  for (int64_t i = begin; i < end; i += 64)
    for (int j = 0; j < 4; ++j) best[j] = F32x16::max(load_logits(x, i + 16 * j, end), best[j]);
  return F32x16::max(F32x16::max(best[0], best[1]), F32x16::max(best[2], best[3]));
}

struct Peak {
  float value;
  int32_t token;
  bool usable;  // the logits hold no NaN, and their maximum is finite: they have a softmax
};

// A part of `find_peak`'s pass: a maximum leaves NaN out.
bool holds_nan(const float* x, int64_t begin, int64_t end) {
  F32x16 peak = F32x16::zero();
  for (int64_t i = begin; i < end; i += 16) peak = F32x16::larger_magnitude(peak, load_logits(x, i, end));
  const float magnitude = peak.max_magnitude();
  return magnitude != magnitude;
}

SampledBlock look_at_block(const float* x, int64_t block, int64_t vocab) {
  const auto [begin, end] = tokens_of_blocks({block, block + 1}, vocab);
  return {.peak = lane_maxima(x, begin, end).max_lane(), .weight = 0.0f, .holds_nan = holds_nan(x, begin, end)};
}

// Finds the largest logit and the lowest id that has it, from blocks that `block_at` gives; one block is read again.
template <class BlockAt>
Peak peak_of_blocks(const float* x, int64_t vocab, BlockAt&& block_at) {
  Peak peak{kMinusInfinity, 0, true};
  int64_t best = 0;
  for (int64_t index = 0; index < sample_blocks(vocab); ++index) {
    const SampledBlock& block = block_at(index);
    if (block.holds_nan) peak.usable = false;
    if (block.peak > peak.value) {
      peak.value = block.peak;
      best = index * kSampleBlock;
    }
  }
  for (int64_t i = best; i < vocab && i < best + kSampleBlock; ++i)
    if (x[i] == peak.value) {
      peak.token = static_cast<int32_t>(i);
      break;
    }
  peak.usable = peak.usable && is_finite(peak.value);
  return peak;
}

Peak find_peak(const float* x, int64_t vocab) {
  return peak_of_blocks(x, vocab, [&](int64_t block) { return look_at_block(x, block, vocab); });
}
Peak find_peak(const float* x, int64_t vocab, const SampledBlock* blocks) {
  return peak_of_blocks(x, vocab, [&](int64_t block) -> const SampledBlock& { return blocks[block]; });
}

// Turns logits into weights exp((x - peak) / temperature): probabilities but for their sum, at most 1.
struct Softmax {
  float peak, inverse_temperature;

  F32x16 weights(F32x16 x) const { return exp((x - F32x16::set1(peak)) * F32x16::set1(inverse_temperature)); }

  float block_sum(const float* x, int64_t block, int64_t vocab) const {
    const auto [begin, end] = tokens_of_blocks({block, block + 1}, vocab);
    F32x16 sum = F32x16::zero();
    for (int64_t i = begin; i < end; i += 16) sum = sum + weights(load_logits(x, i, end));
    return sum.sum();
  }

  // The sum of all weights.
  double total(const float* x, int64_t vocab) const {
    double sum = 0.0;
    for (int64_t block = 0; block < sample_blocks(vocab); ++block)
      sum += static_cast<double>(block_sum(x, block, vocab));
    return sum;
  }
};

// The same for blocks that have been weighed.
double total_weight(const SampledBlock* blocks, int64_t vocab) {
  double sum = 0.0;
  for (int64_t block = 0; block < sample_blocks(vocab); ++block) sum += static_cast<double>(blocks[block].weight);
  return sum;
}

// Finds the most likely tokens by insertion into a list of at most `num_top`; blocks that cannot enter it are skipped.
int find_top(const float* x, int64_t vocab, int num_top, int32_t* ids, float* values) {
  int count = 0;
  for (int64_t begin = 0; num_top > 0 && begin < vocab; begin += kTopScan) {
    const int64_t end = begin + kTopScan < vocab ? begin + kTopScan : vocab;
    if (count == num_top && !(lane_maxima(x, begin, end).max_lane() > values[count - 1])) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (x[i] != x[i] || (count == num_top && !(x[i] > values[count - 1]))) continue;
      int place = count < num_top ? count++ : count - 1;
      for (; place > 0 && x[i] > values[place - 1]; --place) {
        values[place] = values[place - 1];
        ids[place] = ids[place - 1];
      }
      values[place] = x[i];
      ids[place] = static_cast<int32_t>(i);
    }
  }
  return count;
}

// Writes a token's log-probability and those of the most likely tokens. `log_sum` is the logarithm of the sum of the
// exponentials of the logits.
void write_logprobs(const float* logits, int64_t vocab, const Peak& peak, double log_sum, int32_t token, int num_top,
                    SampledRow* out) {
  out->token = token;
  out->usable = peak.usable;
  out->logprob = static_cast<float>(static_cast<double>(logits[token]) - log_sum);
  const int limit = static_cast<int>(sizeof out->top_ids / sizeof out->top_ids[0]);
  out->num_top = find_top(logits, vocab, num_top < limit ? num_top : limit, out->top_ids, out->top_logprobs);
  for (int i = 0; i < out->num_top; ++i)
    out->top_logprobs[i] = static_cast<float>(static_cast<double>(out->top_logprobs[i]) - log_sum);
}

void token_logprobs(const float* logits, int64_t vocab, int32_t token, int num_top, SampledRow* out) {
  const Peak peak = find_peak(logits, vocab);
  const double log_sum = log_of(Softmax{peak.value, 1.0f}.total(logits, vocab)) + static_cast<double>(peak.value);
  write_logprobs(logits, vocab, peak, log_sum, token, num_top, out);
}

}  // namespace
}  // namespace numaserve
