// Sampling and log-probabilities of single rows; see module.cc.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/native/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace numaserve {
namespace {

// (token, logprob, top ids, top logprobs)
nb::tuple row_of(const SampledRow& row) {
  const std::vector<int32_t> ids(row.top_ids, row.top_ids + row.num_top);
  const std::vector<float> logprobs(row.top_logprobs, row.top_logprobs + row.num_top);
  return nb::make_tuple(row.token, row.logprob, ids, logprobs);
}

// A row whose blocks `parts` threads would share.
SampledRow sample_in_parts(const KernelTable& table, const float* logits, int64_t vocab, int64_t position,
                           const SamplingState& state, const uint32_t* mask, const std::vector<int32_t>& drafts,
                           int64_t parts, float* named_logprobs) {
  std::vector<int32_t> candidates(static_cast<size_t>(2 * vocab));
  std::vector<float> adjusted(static_cast<size_t>(vocab));
  const int64_t count = sample_blocks(vocab);
  std::vector<SampledBlock> raw(static_cast<size_t>(count)), drawn(static_cast<size_t>(count));
  const SampleArgs args{.logits = logits,
                        .vocab = vocab,
                        .position = position,
                        .state = &state,
                        .drafts = drafts.data(),
                        .num_drafts = static_cast<int32_t>(drafts.size()),
                        .mask = mask,
                        .candidates = candidates.data(),
                        .adjusted = adjusted.data(),
                        .raw = raw.data(),
                        .drawn = drawn.data(),
                        .named_logprobs = named_logprobs};
  for (int64_t part = 0; part < parts; ++part) table.sample_begin(args, split(count, parts, part));
  for (int64_t part = 0; part < parts; ++part) table.sample_weigh(args, split(count, parts, part));
  SampledRow row{};
  table.sample(args, &row);
  return row;
}

// The row, whether it is dropped, log-probabilities of the named tokens.
nb::tuple sample(const std::string& isa, Array<const float, 1> logits, int64_t position, float temperature,
                 int32_t top_k, float top_p, float min_p, float repetition_penalty, float presence_penalty,
                 float frequency_penalty, uint64_t seed, const std::vector<int32_t>& bias_ids,
                 const std::vector<float>& bias_values, const std::vector<int32_t>& suppress, int32_t min_position,
                 int32_t logprobs, Maybe<const int32_t, 1> prompt_counts, Maybe<const int32_t, 1> output_counts,
                 Maybe<const uint32_t, 1> mask, const std::vector<int32_t>& named, const std::vector<int32_t>& drafts,
                 int64_t parts) {
  const int64_t vocab = size(logits, 0);
  require(vocab >= 1 && bias_ids.size() == bias_values.size(), "a bias has an id and a value");
  require(prompt_counts.has_value() == output_counts.has_value(), "counts come in pairs");
  require(!prompt_counts || (size(*prompt_counts, 0) == vocab && size(*output_counts, 0) == vocab),
          "counts are too short");
  require(!mask || size(*mask, 0) >= ceil_div(vocab, 32), "the mask is too short");
  std::vector<float> named_logprobs(named.size());
  const SamplingState state{.temperature = temperature,
                            .top_p = top_p,
                            .min_p = min_p,
                            .top_k = top_k,
                            .repetition_penalty = repetition_penalty,
                            .presence_penalty = presence_penalty,
                            .frequency_penalty = frequency_penalty,
                            .seed = seed,
                            .bias_ids = bias_ids.data(),
                            .bias_values = bias_values.data(),
                            .num_bias = static_cast<int32_t>(bias_ids.size()),
                            .suppress_ids = suppress.data(),
                            .num_suppress = static_cast<int32_t>(suppress.size()),
                            .min_position = min_position,
                            .num_logprobs = logprobs,
                            .prompt_counts = data_or_null(prompt_counts),
                            .output_counts = data_or_null(output_counts),
                            .named_ids = named.data(),
                            .num_named = static_cast<int32_t>(named.size())};
  const SampledRow row = sample_in_parts(*table_by_name(isa), logits.data(), vocab, position, state, data_or_null(mask),
                                         drafts, parts, named_logprobs.data());
  return nb::make_tuple(row_of(row), row.dropped, named_logprobs);
}

nb::tuple token_logprobs(const std::string& isa, Array<const float, 1> logits, int32_t token, int32_t num_top) {
  require(token >= 0 && token < size(logits, 0), "the token is not in the vocabulary");
  SampledRow row{};
  table_by_name(isa)->token_logprobs(logits.data(), size(logits, 0), token, num_top, &row);
  return row_of(row);
}

// Whether the row that `sample` (greedily, with a bias on token 0) and the one that `token_logprobs` gives are usable.
std::pair<bool, bool> usable(const std::string& isa, Array<const float, 1> logits, float bias) {
  const KernelTable& table = *table_by_name(isa);
  const int64_t vocab = size(logits, 0);
  require(vocab >= 1, "there are no logits");
  const int32_t first = 0;
  SamplingState state{};
  state.bias_ids = &first;
  state.bias_values = &bias;
  state.num_bias = bias != 0.0f;
  state.num_logprobs = -1;
  SampledRow target{};
  const SampledRow sampled = sample_in_parts(table, logits.data(), vocab, 0, state, nullptr, {}, 1, nullptr);
  table.token_logprobs(logits.data(), vocab, 0, 0, &target);
  return {sampled.usable, target.usable};
}

}  // namespace

void bind_sampling(nb::module_& ops) {
  ops.def("sample", &sample, "isa"_a, "logits"_a, "position"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
          "repetition_penalty"_a, "presence_penalty"_a, "frequency_penalty"_a, "seed"_a, "bias_ids"_a, "bias_values"_a,
          "suppress"_a, "min_position"_a, "logprobs"_a, "prompt_counts"_a.none(), "output_counts"_a.none(),
          "mask"_a.none(), "named"_a, "drafts"_a, "parts"_a);
  ops.def("usable", &usable, "isa"_a, "logits"_a, "bias"_a);
  ops.def("token_logprobs", &token_logprobs, "isa"_a, "logits"_a, "token"_a, "num_top"_a);
}

}  // namespace numaserve
