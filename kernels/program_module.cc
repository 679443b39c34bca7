#include "kernels/program_module.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/cpu_features.h"
#include "kernels/runtime/attention_nodes.h"
#include "kernels/runtime/gather_columns.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int32_t, nb::shape<-1, 6>, nb::c_contig, nb::device::cpu>;

// Boundaries of the ranks' heads; from how many tokens on; of at most how many sequences.
using ContextParallelTuple = std::tuple<std::vector<int32_t>, int64_t, int64_t>;

std::unique_ptr<Program> make_program(Team& team, ring::Ring* ring, int64_t max_tokens, int64_t max_logit_rows,
                                      int64_t max_slots, int64_t pages_per_slot, int64_t num_pages, int64_t vocabulary,
                                      int32_t q_heads, int32_t kv_heads, int32_t head_dim, int32_t value_dim,
                                      const std::optional<ContextParallelTuple>& divided, int64_t layers,
                                      const std::string& kv_dtype_name, int64_t arena_bytes) {
  const Limits limits{.max_tokens = max_tokens,
                      .max_logit_rows = max_logit_rows,
                      .max_slots = max_slots,
                      .pages_per_slot = pages_per_slot,
                      .num_pages = num_pages,
                      .vocabulary = vocabulary};
  ContextParallel parallel;
  if (divided && ring != nullptr) {
    parallel.world = ring->world();
    parallel.rank = ring->rank();
    std::tie(parallel.head_bounds, parallel.from, parallel.max_rows) = *divided;
  }
  return std::make_unique<Program>(*default_table(), team, ring, limits,
                                   HeadGeometry{q_heads, kv_heads, head_dim, value_dim}, parallel, layers,
                                   kv_dtype(kv_dtype_name), arena_bytes);
}

void init_slot(Program& program, int64_t slot, float temperature, int32_t top_k, float top_p, float min_p,
               float repetition_penalty, float presence_penalty, float frequency_penalty, uint64_t seed,
               std::vector<int32_t> bias_ids, std::vector<float> bias_values, int32_t num_logprobs,
               int32_t min_position, std::vector<int32_t> suppress, bool penalties, std::vector<int32_t> prompt_history,
               std::vector<int32_t> output_history) {
  program.slots().init(slot, {.temperature = temperature,
                              .top_p = top_p,
                              .min_p = min_p,
                              .top_k = top_k,
                              .repetition_penalty = repetition_penalty,
                              .presence_penalty = presence_penalty,
                              .frequency_penalty = frequency_penalty,
                              .seed = seed,
                              .num_logprobs = num_logprobs,
                              .min_position = min_position,
                              .bias_ids = std::move(bias_ids),
                              .bias_values = std::move(bias_values),
                              .suppress_ids = std::move(suppress),
                              .penalties = penalties,
                              .prompt_history = std::move(prompt_history),
                              .output_history = std::move(output_history)});
}

nb::object logprobs(const SampledRow& row) {
  nb::list ids, values;
  for (int i = 0; i < row.num_top; ++i) {
    ids.append(row.top_ids[i]);
    values.append(row.top_logprobs[i]);
  }
  return nb::make_tuple(row.token, row.logprob, ids, values);
}

// [(sequence, sampled or None, target or None)], each a (token, logprob, top ids, top logprobs), and two times.
nb::tuple step(Program& program, const Rows& sequences, const Ints& tokens, const Ints& targets) {
  std::vector<SequenceInput> plan(sequences.shape(0));
  for (size_t i = 0; i < plan.size(); ++i)
    plan[i] = {.slot = sequences(i, 0),
               .start = sequences(i, 1),
               .count = sequences(i, 2),
               .from_previous = sequences(i, 3) != 0,
               .sample = sequences(i, 4) != 0,
               .num_targets = sequences(i, 5)};
  StepOutcome outcome{};
  {
    const nb::gil_scoped_release released;
    outcome = program.run(plan, {tokens.data(), tokens.size()}, {targets.data(), targets.size()});
  }
  nb::list rows;
  for (size_t i = 0; i < outcome.rows.size(); ++i) {
    const LogitRow& row = outcome.rows[i];
    rows.append(nb::make_tuple(row.sequence, row.sample ? logprobs(outcome.sampled[i]) : nb::none(),
                               row.target >= 0 ? logprobs(outcome.targets[i]) : nb::none()));
  }
  return nb::make_tuple(rows, outcome.native_ns, outcome.all_reduce_ns);
}

void add_embed(Program& p, const PackedMatrix& table, int64_t first_row, float scale, const PlaceTuple& out) {
  require(table.format() == WeightFormat::kBf16, "embed", "the table must be bf16");
  require(place(out).ld == table.depth(), "embed", "the output has another width than the table");
  p.add(std::make_unique<EmbedNode>(table, first_row, scale, place(out)));
}

Quantized quantized(const std::string& node, const Place& x, const QuantizedTuple& t) {
  const auto& [out, cols, group] = t;
  require(cols >= 0 && group >= 0 && x.ld >= round_up(cols, kPad), node, "the input is narrower than it should be");
  require(place(out).ld >= quantised_bytes(cols, group), node, "the output is too narrow");
  return {place(out), cols, group};
}

void add_rms_norm(Program& p, const PlaceTuple& x, const PaddedVector& weight, const PlaceTuple& out, float eps,
                  const std::optional<QuantizedTuple>& also) {
  require(place(x).ld >= weight.size && place(out).ld >= round_up(weight.size, kPad), "rms_norm",
          "the input or the output is narrower than the weight");
  auto node = std::make_unique<NormNode>(place(x), weight.values, place(out), eps);
  if (also) node->quantized = quantized("rms_norm", place(out), *also);
  p.add(std::move(node));
}

void add_quantize(Program& p, const PlaceTuple& x, const QuantizedTuple& out, int64_t rows_per_token, bool logits) {
  require(rows_per_token >= 1, "quantize", "a token has a row at least");
  p.add(std::make_unique<QuantizeNode>(place(x), quantized("quantize", place(x), out), rows_per_token, logits));
}

void add_linear(Program& p, const std::string& name, const PlaceTuple& x, const PackedMatrix& weight,
                const PaddedVector* bias, const std::string& activation, bool widened, bool accumulate, bool logits,
                const PlaceTuple& out) {
  const Place from = place(x), to = place(out);
  require(!accumulate || activation == "none", name, "an activation is not accumulated");
  require(activation != "swiglu_oai", name, "only experts have this activation");
  require(!widened || is_grouped(weight.format()), name, "only codes in groups are widened");
  require(from.ld >= operand_columns(weight, widened), name, "the input is narrower than the weight");
  require(to.ld >= weight.padded_n() / (activation == "none" ? 1 : 2), name, "the output is narrower than the weight");
  require_size(bias, weight.n(), name);
  auto node = std::make_unique<LinearNode>(name, from, weight, to);
  node->bias = data_or_null(bias);
  node->activation = activation_of(activation);
  node->widened = widened;
  node->accumulate = accumulate;
  node->logits = logits;
  p.add(std::move(node));
}

void add_reduce(Program& p, const PlaceTuple& partial, const PlaceTuple& residual, const PlaceTuple& sum, int64_t cols,
                bool assign, const PaddedVector* bias, const PaddedVector* post_norm, float eps) {
  auto node = std::make_unique<ReduceNode>(place(partial), place(residual), place(sum), cols);
  node->assign = assign;
  node->bias = data_or_null(bias);
  node->post_norm = data_or_null(post_norm);
  node->eps = eps;
  p.add(std::move(node));
}

void add_rope_store(Program& p, const PlaceTuple& qkv, const PlaceTuple& q, int64_t layer, const RopeTable& rope,
                    const PaddedVector* q_norm, const PaddedVector* k_norm, float eps) {
  const HeadGeometry& heads = p.heads();
  require(2 * rope.half <= heads.head_dim, "rope_store", "the rope table is wider than a head");
  require(place(qkv).ld >= (heads.q_heads + 2 * heads.kv_heads) * heads.head_dim &&
              place(q).ld == heads.q_heads * heads.head_tiles() * kTileK,
          "rope_store", "the matrices do not have the width of the heads");
  require_size(q_norm, heads.head_dim, "rope_store");
  require_size(k_norm, heads.head_dim, "rope_store");
  p.step().limit_positions(rope.positions);
  auto node = std::make_unique<RopeStoreNode>(place(qkv), place(q), p.heads(), p.kv().layer(layer));
  node->cos = rope.cos.data();
  node->sin = rope.sin.data();
  node->positions = rope.positions;
  node->rot_dim = 2 * rope.half;
  node->q_norm = data_or_null(q_norm);
  node->k_norm = data_or_null(k_norm);
  node->eps = eps;
  p.add(std::move(node));
}

void add_attention(Program& p, const PlaceTuple& q, const PlaceTuple& out, const PlaceTuple& partial, int64_t layer,
                   float scale, int32_t window, float softcap, const PaddedVector* sinks) {
  const HeadGeometry& heads = p.heads();
  require(place(q).ld == heads.q_heads * heads.head_tiles() * kTileK &&
              place(out).ld >= heads.q_heads * heads.values() &&
              place(partial).ld >= round_up(heads.values(), kTileK) + kPartialExtra,
          "attention", "the matrices do not have the width of the heads");
  require(scale > 0.0f, "attention", "the scale must be above 0");
  require_size(sinks, heads.q_heads, "attention");
  auto node = std::make_unique<AttentionNode>(place(q), place(out), place(partial), p.heads(), p.kv().layer(layer));
  node->scale = scale;
  node->softcap = softcap;
  node->sinks = data_or_null(sinks);
  node->block_groups = p.context_parallel().world;
  node->work = p.step().add_window(window);
  p.add(std::move(node));
}

void add_gather(Program& p, const PlaceTuple& x, const PlaceTuple& out) {
  require(place(x).ld == place(out).ld, "gather", "the matrices differ in width");
  p.add(std::make_unique<GatherNode>(place(x), place(out)));
}

void add_gather_columns(Program& p, const PlaceTuple& message, const PlaceTuple& out, std::vector<int32_t> bounds) {
  require(p.world() > 1 && static_cast<int>(bounds.size()) == p.world() + 1 && bounds.front() == 0 &&
              std::is_sorted(bounds.begin(), bounds.end()) && bounds.back() <= place(out).ld &&
              std::all_of(bounds.begin(), bounds.end(),
                          [&](int32_t bound) { return bound % kPad == 0 || bound == bounds.back(); }),
          "gather_columns", "the ranks' parts do not make up the columns");
  p.add(std::make_unique<GatherColumnsNode>(place(message), place(out), std::move(bounds)));
}

void add_sample(Program& p, const PlaceTuple& logits, const PlaceTuple& tokens, std::vector<int64_t> vocab_first,
                float softcap) {
  require(static_cast<int>(vocab_first.size()) == p.world() + 1 && vocab_first.front() == 0 &&
              vocab_first.back() == p.slots().vocabulary() && std::is_sorted(vocab_first.begin(), vocab_first.end()),
          "sample", "the ranks' parts do not make up the vocabulary");
  p.add(std::make_unique<SampleNode>(place(logits), place(tokens), std::move(vocab_first), softcap));
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<PaddedVector>(m, "Vector", "A norm weight or a bias, in fp32.")
      .def(nb::init<const Floats&>(), nb::arg("values"))
      .def_ro("size", &PaddedVector::size);

  nb::class_<RopeTable>(m, "RopeTable", "Cosines and sines [positions, rotated dimensions / 2] of one rope.")
      .def(nb::init<const Table&, const Table&>(), nb::arg("cos"), nb::arg("sin"))
      .def_ro("positions", &RopeTable::positions);

  // Nodes point into weights, vectors and tables: each `add` keeps its arguments alive with the Program.
  nb::class_<Program> program(m, "Program", "A forward pass as one list of nodes, run by one call per step.");
  program
      .def(nb::new_(&make_program), nb::arg("team"), nb::arg("ring").none(), nb::arg("max_tokens"),
           nb::arg("max_logit_rows"), nb::arg("max_slots"), nb::arg("pages_per_slot"), nb::arg("num_pages"),
           nb::arg("vocabulary"), nb::arg("q_heads"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("value_dim"),
           nb::arg("context_parallel").none(), nb::arg("layers"), nb::arg("kv_dtype"), nb::arg("arena_bytes"),
           nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>())
      .def("embed", &add_embed, nb::keep_alive<1, 2>())
      .def("rms_norm", &add_rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("out"), nb::arg("eps"),
           nb::arg("quantized").none(), nb::keep_alive<1, 3>())
      .def("quantize", &add_quantize, nb::arg("x"), nb::arg("out"), nb::arg("rows_per_token"), nb::arg("logits"))
      .def("linear", &add_linear, nb::arg("name"), nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("activation"), nb::arg("widened"), nb::arg("accumulate"), nb::arg("logits"), nb::arg("out"),
           nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
      .def("reduce", &add_reduce, nb::arg("partial"), nb::arg("residual"), nb::arg("sum"), nb::arg("cols"),
           nb::arg("assign"), nb::arg("bias").none(), nb::arg("post_norm").none(), nb::arg("eps"),
           nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>())
      .def("rope_store", &add_rope_store, nb::arg("qkv"), nb::arg("q"), nb::arg("layer"), nb::arg("rope"),
           nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"), nb::keep_alive<1, 5>(),
           nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>())
      .def("attention", &add_attention, nb::arg("q"), nb::arg("out"), nb::arg("partial"), nb::arg("layer"),
           nb::arg("scale"), nb::arg("window"), nb::arg("softcap"), nb::arg("sinks").none() = nb::none(),
           nb::keep_alive<1, 9>())
      .def("gather", &add_gather)
      .def("gather_columns", &add_gather_columns, nb::arg("message"), nb::arg("out"), nb::arg("bounds"))
      .def("sample", &add_sample)
      .def("set_collectives", &Program::set_collectives)
      .def("init_slot", &init_slot)
      .def("append_pages", [](Program& self, int64_t slot,
                              const std::vector<int32_t>& pages) { self.slots().append_pages(slot, pages); })
      .def("revert", [](Program& self) { self.slots().revert(); })
      .def_prop_ro("nan_sequences", &Program::nan_sequences)
      .def("step", &step, nb::arg("sequences"), nb::arg("tokens"), nb::arg("targets"))
      .def("profile",
           [](const Program& self) {
             std::vector<std::tuple<std::string, std::string, int64_t, int64_t, int64_t, int64_t, int64_t>> rows;
             for (const NodeTime& node : self.profile())
               rows.emplace_back(node.name, weight_format_name(node.cost.format), node.ns, node.wait_ns,
                                 node.weight_bytes, node.cost.bytes, node.cost.flops);
             return rows;
           })
      .def_prop_ro("totals",
                   [](Program& self) {
                     const Step::Totals& done = self.step().totals;
                     return std::make_tuple(done.steps, done.tokens, self.native_ns());
                   })
      .def_static("partial_rows", &AttentionPlanner::partial_rows, nb::arg("pages_per_slot"))
      .def_prop_ro("kv_memory",
                   [](const Program& self) {
                     return std::make_pair(reinterpret_cast<uintptr_t>(self.kv().buffer().data()),
                                           self.kv().buffer().bytes());
                   })
      .def_prop_ro("isa", [](const Program& self) { return std::string(self.table().name); });
  bind_moe(program);
  bind_mla(program);
  bind_describe(program);
}

}  // namespace numaserve
