#include "kernels/bindings/program.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/bindings/arguments.h"
#include "kernels/bindings/operations.h"
#include "kernels/cpu_features.h"
#include "kernels/runtime/counting/counting_table.h"

namespace nb = nanobind;

namespace numaserve {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int32_t, nb::shape<-1, 6>, nb::c_contig, nb::device::cpu>;

// The division of a sequence's latents among ranks: boundaries of the ranks' heads, the minimum number of tokens per
// new token, and the maximum number of new tokens.
struct Division {
  std::vector<int32_t> head_bounds;
  int64_t from, max_rows;
};

struct Settings {
  ProgramShape shape;
  std::optional<Division> context_parallel;
  void visit(auto&& field) {
    Limits& limits = shape.limits;
    limits.visit(field);
    field("vocabulary", limits.vocabulary), field("extra_tokens", limits.extra_tokens);
    field("context_parallel", context_parallel);
    field("caches", shape.caches), field("states", shape.states);
    field("kv_dtype", shape.kv_dtype), field("arena_bytes", shape.arena_bytes);
  }
};

}  // namespace

template <>
struct FromPython<Division> {
  static std::string wanted() { return "a tuple (head bounds, minimum context, maximum rows)"; }
  static bool read(nb::handle from, Division& to, Kept& kept) {
    return read_tuple(from, kept, to.head_bounds, to.from, to.max_rows);
  }
};
template <>
struct FromPython<CacheKind> {
  static std::string wanted() {
    return "a tuple (query heads, KV heads, lower, higher, dimensions of keys, of values, latent, window, aligned, "
           "bidirectional, images, layers, page table)";
  }
  static bool read(nb::handle from, CacheKind& to, Kept& kept) {
    HeadGeometry& heads = to.heads;
    return read_tuple(from, kept, heads.q_heads, heads.kv_heads, heads.lower, heads.higher, heads.head_dim,
                      heads.value_dim, heads.latent, to.window.tokens, to.window.aligned, to.window.bidirectional,
                      to.window.images, to.layers, to.table);
  }
};
template <>
struct FromPython<StateKind> {
  static std::string wanted() { return "a tuple (bytes of a slot, of a page, and of a draft token, layers)"; }
  static bool read(nb::handle from, StateKind& to, Kept& kept) {
    return read_tuple(from, kept, to.slot_bytes, to.page_bytes, to.draft_bytes, to.layers);
  }
};

namespace {

std::unique_ptr<Program> make_program(Team& team, ring::Ring* ring, const nb::dict& given, const Program* lender,
                                      Counter* counter) {
  Kept none;
  auto settings = arguments<Settings>("Program", given, none);
  ContextParallel& parallel = settings.shape.parallel;
  if (settings.context_parallel && ring != nullptr)
    parallel = {.head_bounds = std::move(settings.context_parallel->head_bounds),
                .world = ring->world(),
                .rank = ring->rank(),
                .from = settings.context_parallel->from,
                .max_rows = settings.context_parallel->max_rows};
  static const KernelTable counting = counting_table(*default_table());
  const KernelTable& table = counter == nullptr ? *default_table() : counting;
  return std::make_unique<Program>(table, team, ring, settings.shape, lender, counter);
}

void init_slot(Program& program, int64_t slot, const nb::dict& settings) {
  Kept none;
  program.slots().init(slot, arguments<SlotSettings>("init_slot", settings, none));
}

std::unique_ptr<RopeTable> make_rope(const Table& cos, const Table& sin, const std::optional<Floats>& query_scale,
                                     int32_t distance) {
  if (sin.shape(0) != cos.shape(0) || sin.shape(1) != cos.shape(1))
    throw std::invalid_argument("the cosine and sine tables must have the same shape");
  if (query_scale && query_scale->shape(0) != cos.shape(0))
    throw std::invalid_argument("the scale of queries must have a factor for each position");
  const auto half = static_cast<int32_t>(cos.shape(1));
  if (distance != 0 && distance < half)
    throw std::invalid_argument("the dimensions of a pair must lie at least as far apart as there are pairs");
  return std::make_unique<RopeTable>(cos.data(), sin.data(), static_cast<int64_t>(cos.shape(0)), half,
                                     distance == 0 ? half : distance, query_scale ? query_scale->data() : nullptr);
}

// Copies the vectors, one after the other, into an array of this shape.
nb::ndarray<nb::numpy, float> copied(std::initializer_list<const Vector*> parts, std::initializer_list<size_t> shape) {
  size_t total = 0;
  for (const Vector* part : parts) total += part->size();
  auto values = std::make_unique<float[]>(total);
  float* end = values.get();
  for (const Vector* part : parts) end = std::copy(part->begin(), part->end(), end);
  float* data = values.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return {data, shape, owner};
}

nb::object logprobs(const SampledRow& row) {
  nb::list ids, values;
  for (int i = 0; i < row.num_top; ++i) {
    ids.append(row.top_ids[i]);
    values.append(row.top_logprobs[i]);
  }
  return nb::make_tuple(row.token, row.logprob, ids, values);
}

// The memory of all buffers, which lives as long as the program.
nb::ndarray<nb::numpy, uint8_t> arena(Program& program) {
  const LargeBuffer& memory = program.arena();
  return {memory.data(), {memory.bytes()}, nb::find(program)};
}

// The states of a layer, [slots and snapshots, bytes] and [pages, bytes], which live as long as the program.
nb::tuple state_memory(Program& program, const nb::tuple& given) {
  Kept none;
  CacheIndex index;
  if (!FromPython<CacheIndex>::read(given, index, none)) throw nb::type_error("the index must be (kind, layer)");
  const StateKind& kind = program.states().kind(index);
  const auto rows = [&](std::span<std::byte> memory, int64_t bytes) {
    const size_t width = static_cast<size_t>(bytes), count = width == 0 ? 0 : memory.size() / width;
    return nb::ndarray<nb::numpy, uint8_t>(memory.data(), {count, width}, nb::find(program));
  };
  return nb::make_tuple(rows(program.states().of_sequences(index), kind.slot_bytes),
                        rows(program.states().of_pages(index), kind.page_bytes));
}

// The use of a sequence's last position; 0: none.
constexpr int32_t kSample = 1, kPool = 2, kPoolTokens = 3;

nb::list named_logprobs(const StepOutcome& outcome, Range where) {
  nb::list values;
  for (int64_t i = where.begin; i < where.end; ++i) values.append(outcome.named_logprobs[i]);
  return values;
}

// Index of a sequence in the plan, the snapshot that it begins with or -1, and marks (position, snapshot).
using SequenceStates = std::tuple<int32_t, int32_t, std::vector<std::pair<int32_t, int32_t>>>;

// Index of a sequence in the plan, the first of some positions, their number, and the first row of the feature pool.
using Placed = std::tuple<int32_t, int32_t, int32_t, int32_t>;

// A part of a step: the first and the end of its nodes, and the same of its collectives.
using Nodes = std::tuple<int64_t, int64_t, int64_t, int64_t>;

// Gives sequences of a plan their snapshots; `marks` is the memory of all marks.
void use_states(std::vector<SequenceInput>& plan, const std::vector<SequenceStates>& states,
                std::vector<StateMark>& marks) {
  std::vector<bool> given(plan.size());
  size_t total = 0;
  for (const auto& [index, begin, own] : states) total += own.size();
  marks.reserve(total);
  for (const auto& [index, begin, own] : states) {
    const auto at = static_cast<size_t>(index);
    if (index < 0 || at >= plan.size())
      throw std::invalid_argument("the step has states of a sequence that is not in it");
    if (given[at]) throw std::invalid_argument("the step has states of a sequence twice");
    given[at] = true;
    const size_t first = marks.size();
    for (const auto& [position, snapshot] : own) marks.push_back({position, snapshot});
    plan[at].begin = begin;
    plan[at].marks = std::span(marks).subspan(first);
  }
}

// Returns a list and three times. The list has, for each row of logits, (sequence, sample or None, target or None,
// log-probabilities of the named tokens). A sample or a target is (token, logprob, top ids, top logprobs). `drafts` is
// empty or has a number of draft tokens for each sequence. `states` has the snapshots of those sequences that use some,
// and `placed` the rows of image features. With a `part` only that part of the step runs.
nb::tuple step(Program& program, const Rows& sequences, const Ints& tokens, const Ints& targets, uint64_t step_id,
               const std::vector<int32_t>& drafts, const std::vector<SequenceStates>& states,
               const std::vector<Placed>& placed, const std::optional<Nodes>& part) {
  if (!drafts.empty() && drafts.size() != sequences.shape(0))
    throw std::invalid_argument("the step must have one number of draft tokens for each sequence");
  std::vector<SequenceInput> plan(sequences.shape(0));
  for (size_t i = 0; i < plan.size(); ++i)
    plan[i] = {.slot = sequences(i, 0),
               .start = sequences(i, 1),
               .count = sequences(i, 2),
               .from_previous = sequences(i, 3) != 0,
               .sample = sequences(i, 4) == kSample,
               .num_targets = sequences(i, 5),
               .pool = sequences(i, 4) == kPool || sequences(i, 4) == kPoolTokens,
               .tokens = sequences(i, 4) == kPoolTokens,
               .drafts = drafts.empty() ? 0 : drafts[i]};
  std::vector<StateMark> marks;
  use_states(plan, states, marks);
  std::vector<PlacedRows> features;
  for (const auto& [index, start, count, row] : placed) features.push_back({index, start, count, row});
  std::optional<StepPart> nodes;
  if (part) {
    const auto& [first, end, first_collective, end_collective] = *part;
    nodes = {.first = first, .end = end, .first_collective = first_collective, .end_collective = end_collective};
  }
  StepOutcome outcome{};
  {
    const nb::gil_scoped_release released;
    outcome =
        program.run(plan, {tokens.data(), tokens.size()}, {targets.data(), targets.size()}, step_id, features, nodes);
  }
  nb::list rows;
  for (size_t i = 0; i < outcome.rows.size(); ++i) {
    const LogitRow& row = outcome.rows[i];
    rows.append(nb::make_tuple(
        row.sequence, row.sample && outcome.sampled[i].token >= 0 ? logprobs(outcome.sampled[i]) : nb::none(),
        row.target >= 0 ? logprobs(outcome.targets[i]) : nb::none(), named_logprobs(outcome, row.named)));
  }
  return nb::make_tuple(rows, outcome.native_ns, outcome.all_reduce_ns, outcome.mask_wait_ns);
}

// Returns [(sequence, pooled values as bytes)] of the last step.
nb::list pooled(const Program& program) {
  nb::list found;
  const std::vector<int32_t>& sequences = program.step().pooled_sequences;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::span<const float> values = program.pooled(i);
    found.append(nb::make_tuple(sequences[i], nb::bytes(values.data(), values.size_bytes())));
  }
  return found;
}

void use_masks(Program& program, const masks::Board& board, double grace_s) {
  if (!(grace_s >= 0 && grace_s <= 86400))
    throw nb::value_error("the grace period for masks must be from 0 to 86400 s");
  program.use_masks({.board = &board, .grace_ns = static_cast<int64_t>(grace_s * 1e9)});
}

}  // namespace

// A phase as (node, work of each thread, work of each item, whether it joins the next phase); work is (memory, moved,
// remote, operations).
nb::list phases(const Counter& counter) {
  const auto tuples = [](const std::vector<Work>& all) {
    nb::list found;
    for (const Work& each : all) found.append(nb::make_tuple(each.memory, each.moved, each.remote, each.flops));
    return found;
  };
  nb::list found;
  for (const CountedPhase& phase : counter.phases())
    found.append(nb::make_tuple(phase.node, tuples(phase.threads), tuples(phase.items), phase.joins_next));
  return found;
}

void bind_program(nb::module_& m) {
  nb::class_<Counter>(m, "Counter", "Counts the work of each thread in the steps of a Program, which computes nothing.")
      .def(nb::new_([](double skew, uint64_t seed) {
             return std::make_unique<Counter>(Routing{.skew = skew, .seed = seed});
           }),
           nb::arg("skew") = 0.0, nb::arg("seed") = 0)
      .def_prop_ro("phases", &phases);

  nb::class_<PaddedVector>(m, "Vector", "A norm weight or a bias, in fp32.")
      .def(nb::new_([](const Floats& values) {
             return std::make_unique<PaddedVector>(values.data(), static_cast<int64_t>(values.size()));
           }),
           nb::arg("values"))
      .def("to_numpy", [](const PaddedVector& self) { return copied({&self.values}, {self.values.size()}); })
      .def_ro("size", &PaddedVector::size);

  nb::class_<RopeTable>(m, "RopeTable",
                        "Cosines and sines [positions, rotated dimensions / 2] of one rotary embedding.")
      .def(nb::new_(&make_rope), nb::arg("cos"), nb::arg("sin"), nb::arg("query_scale") = nb::none(),
           nb::arg("distance") = 0)
      .def("to_numpy",
           [](const RopeTable& self) {
             return copied({&self.cos, &self.sin},
                           {2, static_cast<size_t>(self.positions), static_cast<size_t>(self.half)});
           })
      .def("query_scale_to_numpy", [](const RopeTable& self) { return copied({&self.q_scale}, {self.q_scale.size()}); })
      .def_ro("positions", &RopeTable::positions)
      .def_ro("distance", &RopeTable::distance);

  nb::class_<Program> program(m, "Program", "A forward pass as one list of nodes, run by one call per step.");
  program
      .def(nb::new_(&make_program), nb::arg("team"), nb::arg("ring").none(), nb::arg("settings"),
           nb::arg("lender") = nb::none(), nb::arg("counter") = nb::none(), nb::keep_alive<0, 2>(),
           nb::keep_alive<0, 3>(), nb::keep_alive<0, 5>(), nb::keep_alive<0, 6>())
      .def("set_collectives", &Program::set_collectives)
      .def("init_slot", &init_slot, nb::arg("slot"), nb::arg("settings"))
      .def("append_pages", [](Program& self, int64_t slot,
                              const std::vector<int32_t>& pages) { self.slots().append_pages(slot, pages); })
      .def("advance_window",
           [](Program& self, int64_t slot, int64_t window, int64_t first, const std::vector<int32_t>& pages) {
             self.slots().advance_window(slot, window, first, pages);
           })
      .def("revert", [](Program& self) { self.slots().revert(); })
      .def("use_masks", &use_masks, nb::arg("board"), nb::arg("grace_s"), nb::keep_alive<1, 2>())
      .def_prop_ro("nan_sequences", &Program::nan_sequences)
      .def_prop_ro("dropped_sequences", &Program::dropped_sequences)
      .def_prop_ro("late_sequences", &Program::late_sequences)
      .def_prop_ro("pooled", &pooled)
      .def("step", &step, nb::arg("sequences"), nb::arg("tokens"), nb::arg("targets"), nb::arg("step_id") = 0,
           nb::arg("drafts") = std::vector<int32_t>{}, nb::kw_only(), nb::arg("states") = std::vector<SequenceStates>{},
           nb::arg("placed") = std::vector<Placed>{}, nb::arg("part") = nb::none())
      .def_prop_rw(
          "blocking", [](const Program& self) { return named_sizes(self.blocking()); },
          [](Program& self, const NamedSizes& sizes) { self.set_blocking(blocking_of(sizes)); })
      .def("profile",
           [](const Program& self) {
             std::vector<std::tuple<std::string, std::string, int64_t, int64_t, int64_t, int64_t, int64_t>> rows;
             for (const NodeTime& node : self.profile())
               rows.emplace_back(node.name, node.cost.fp32 ? "fp32" : weight_format_name(node.cost.format), node.ns,
                                 node.wait_ns, node.weight_bytes, node.cost.bytes, node.cost.flops);
             return rows;
           })
      .def_prop_ro("totals",
                   [](Program& self) {
                     const Step::Totals& done = self.step().totals;
                     return std::make_tuple(done.steps, done.tokens, self.native_ns());
                   })
      .def_prop_ro("shape_totals",
                   [](Program& self) {
                     const Step::Totals& done = self.step().totals;
                     return std::make_tuple(done.steps, done.sequences, done.tokens, done.logit_rows, done.pooled,
                                            done.divided);
                   })
      .def_static("partial_rows", &AttentionPlanner::partial_rows, nb::arg("pages_per_slot"))
      .def_prop_ro("kv_memory",
                   [](const Program& self) {
                     std::vector<std::pair<uintptr_t, size_t>> layers;
                     for (const std::span<std::byte> layer : self.kv().layers())
                       layers.emplace_back(reinterpret_cast<uintptr_t>(layer.data()), layer.size());
                     return layers;
                   })
      .def("state_memory", &state_memory, nb::arg("index"))
      .def_prop_ro("arena", &arena)
      .def_prop_ro("isa", [](const Program& self) { return std::string(self.table().name); });
  bind_operations(program);
}

}  // namespace numaserve
