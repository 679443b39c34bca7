#include "kernels/runtime/program/nodes.h"

#include <algorithm>

#include "kernels/runtime/counting/counter.h"
#include "kernels/runtime/exchange/reduce_node.h"

namespace numaserve {
namespace {

// Whether, without dividing k, some threads would be idle for more than an eighth of the time.
bool divides_k(const GemmArgs& g, int threads) {
  const int64_t pairs = g.b.n_panels / 2;
  return g.b.k_parts > 1 && g.m <= kStreamedRows && 8 * threads * ceil_div(pairs, threads) > 9 * pairs;
}

QuantizeArgs quantize_args(const Run& run, const Place& x, const Quantized& q, int64_t rows) {
  return {.x = run.at<bf16>(x),
          .ldx = x.ld,
          .out = run.at<int8_t>(q.out),
          .ldo = q.out.ld,
          .rows = rows,
          .cols = q.cols,
          .depth = quantized_depth(q.cols, q.group),
          .group = q.group};
}

}  // namespace

void enter(Run& run, const Node& node, int thread) {
  if (run.counter != nullptr) run.counter->enter(node.node_number, thread);
}

bool wait_for_ranks(Run& run, const Place& place, int lane, int phase) {
  if (run.failed()) return false;
  const int64_t begin = lane == 0 ? now_ns() : 0;
  const uint64_t n = run.collective(place);
  const progress::Waiting waiting(run.team.progress(), lane);
  const ring::Status status = run.ring->wait_for_all(lane, n, phase);
  if (lane == 0) {
    run.all_reduce_ns += now_ns() - begin;
    if (status == ring::Status::ok) run.ring->note_all_left(n);
  }
  if (status != ring::Status::ok) run.fail(status);
  return status == ring::Status::ok;
}

bool meet(Run& run, const Place& place, int thread, int phase) {
  if (thread >= run.lanes()) return false;
  if (run.ring == nullptr) return true;
  if (run.failed()) return false;
  run.ring->arrive(thread, run.collective(place), phase);
  return wait_for_ranks(run, place, thread, phase);
}

void leave(Run& run, const Place& place, int thread) {
  if (run.ring == nullptr || thread >= run.lanes()) return;
  run.ring->done(thread, run.collective(place));
  if (thread != 0 || run.failed()) return;
  const progress::Waiting waiting(run.team.progress(), thread);
  const ring::Status status = run.ring->acquire(0, run.collective(place) + 1);
  if (status != ring::Status::ok) run.fail(status);
}

void EmbedNode::run(Run& run, int thread) const {
  run.table.embed({.indices = indices,
                   .table = reinterpret_cast<const bf16*>(table.data()),
                   .k_tiles = table.depth() / kTileK,
                   .first_row = first_row,
                   .num_rows = table.n(),
                   .scale = scale,
                   .accumulate = accumulate,
                   .out = run.at<float>(out),
                   .ld = out.ld,
                   .rows = rows(run)},
                  thread, run.team.size());
}

// `out` has as many rows as the largest step has tokens, or rows of logits, so with few rows each thread has space for
// a copy.
bool RowsNode::joins_next(const Run& run) const {
  const int64_t rows = this->rows(run), threads = run.team.size();
  return has_product && rows <= kJoinedRows && (rows - ceil_div(rows, threads)) * columns() <= kJoinedColumns &&
         rows * threads + kPad <= run.step.max_rows(narrow);
}

void NormNode::run(Run& run, int thread) const { norm(run, 0, thread, run.team.size(), thread); }

int64_t NormNode::run_alone(Run& run, int thread) const {
  const int64_t first_row = thread * rows(run);
  norm(run, first_row, 0, 1, thread);
  return first_row;
}

void NormNode::norm(Run& run, int64_t first_row, int part, int parts, int thread) const {
  const NormArgs args{.x = run.at<float>(x),
                      .ldx = x.ld,
                      .weight = weight,
                      .out = run.at<bf16>(out) + first_row * out.ld,
                      .ldo = out.ld,
                      .written = beside ? cols : out.ld,
                      .rows = rows(run),
                      .cols = cols,
                      .eps = eps,
                      .tiled = read_alone && !quantized && are_tiled(run, narrow)};
  if (!quantized) return run.table.rms_norm(args, part, parts);
  QuantizeArgs codes = quantize_args(run, out, *quantized, args.rows);
  codes.x = args.out;
  codes.out += first_row * codes.ldo;
  codes.tiled = read_alone && are_tiled(run, narrow);
  run.table.rms_norm_quantize(args, codes, run.scratch<void>(thread), part, parts);
}

bool are_tiled(const Run& run, bool narrow) {
  const int64_t few = std::max(kStreamedRows, run.blocking.few_rows);
  return run.table.takes_tiled_rows && run.step.num_rows(narrow) > few;
}

LinearNode::LinearNode(std::string node_name, Place x_in, const PackedMatrix& weight_in, Place out_in)
    : Node(std::move(node_name)), x(x_in), weight(weight_in), out(out_in) {
  bytes = weight.bytes();
}

GemmArgs LinearNode::arguments(const Run& run) const {
  PackedWeights packed = weight.view();
  if (widened) packed.depth = round_up(weight.k(), kTileK);
  const bool rounded = activation != Activation::kNone, in_ring = run.ring != nullptr && out.collective >= 0;
  const int64_t m = run.step.num_rows(logits || narrow);
  const auto bytes_of_value = static_cast<int64_t>(rounded ? sizeof(bf16) : sizeof(float));
  return {.a = run.at<std::byte>(x),
          .lda = x.ld,
          .b = packed,
          .widened = widened,
          .blocking = run.blocking,
          .m = m,
          .bias = bias,
          .activation = activation,
          .accumulate = accumulate,
          .out_f32 = rounded ? nullptr : run.at<float>(out),
          .out_bf16 = rounded ? run.at<bf16>(out) : nullptr,
          .ldo = out.ld,
          .result_bytes = in_ring ? 0 : m * out.ld * bytes_of_value,
          .tiled_rows = reads_alone && are_tiled(run, narrow),
          .tiled_results = read_alone && are_tiled(run, narrow),
          .expand = expansion(run)};
}

ExpandArgs LinearNode::expansion(const Run& run) const {
  if (adapters == nullptr || run.step.adapters(false).empty()) return {};
  return {.table = adapters->table(),
          .adapters = run.step.adapters(narrow).data(),
          .shrunk = run.at<float>(shrunk),
          .ld = shrunk.ld,
          .fetches_ahead = run.step.num_rows(narrow) <= kStreamedRows};
}

// With few rows, a thread's share of the panels is contiguous. Where k is divided, the pieces are about as large.
std::span<const std::byte> LinearNode::reads_first(const Run& run, int thread, int64_t index) const {
  const GemmArgs args = arguments(run);
  if (index > 0 || args.m == 0 || args.m > kStreamedRows) return {};
  const int threads = run.team.size();
  const int64_t pairs = args.b.n_panels / 2;
  const int64_t pieces = divides_k(args, threads) ? pairs * args.b.k_parts : pairs;
  const Range mine = split(pieces, threads, thread);
  const int64_t unit = weight.bytes() / std::max<int64_t>(pieces, 1);
  return {args.b.data + mine.begin * unit, static_cast<size_t>((mine.end - mine.begin) * unit)};
}

bool LinearNode::joins_next(const Run& run) const { return sum != nullptr && sum->overlaps(run); }

void LinearNode::run(Run& run, int thread) const {
  GemmArgs args = arguments(run);
  if (before != nullptr && before->joins_next(run)) {
    const int64_t item_bytes = takes_int8(weight.format()) && !widened ? 1 : static_cast<int64_t>(sizeof(bf16));
    args.a = run.at<std::byte>(x) + before->run_alone(run, thread) * x.ld * item_bytes;
  }
  const int threads = run.team.size();
  if (!divides_k(args, threads)) return run.table.gemm(args, run.scratch<void>(thread), thread, threads);
  run.table.gemm_parts(args, run.part_sums, run.scratch<void>(thread), thread, threads);
  run.team.barrier(thread);
  run.table.gemm_finish(args, run.part_sums, thread, threads);
}

Cost LinearNode::cost(const Step& step) const {
  const Step::Totals& done = step.totals;
  const bool few = logits || narrow;
  return {.bytes = bytes * (few ? done.last_steps : done.steps),
          .flops = 2 * weight.n() * weight.k() * (few ? done.logit_rows + done.pooled + done.merged : done.tokens),
          .format = widened ? WeightFormat::kBf16 : weight.format()};
}

void LayerNormNode::run(Run& run, int thread) const {
  run.table.layer_norm({.x = run.at<float>(x),
                        .ldx = x.ld,
                        .weight = weight,
                        .bias = bias,
                        .out_f32 = rounded ? nullptr : run.at<float>(out),
                        .out_bf16 = rounded ? run.at<bf16>(out) : nullptr,
                        .ldo = out.ld,
                        .rows = rows(run),
                        .cols = cols,
                        .eps = eps},
                       thread, run.team.size());
}

QuantizeArgs QuantizeNode::arguments(const Run& run) const {
  const int64_t tokens = run.step.num_rows(logits || narrow);
  QuantizeArgs args = quantize_args(run, x, quantized, tokens * rows_per_token * heads);
  args.heads = heads;
  args.x_stride = x_stride;
  args.out_stride = out_stride;
  args.tiled = read_alone && are_tiled(run, narrow);
  return args;
}

void QuantizeNode::run(Run& run, int thread) const { run.table.quantize(arguments(run), thread, run.team.size()); }

int64_t QuantizeNode::run_alone(Run& run, int thread) const {
  const int64_t first_row = thread * rows(run);
  QuantizeArgs args = arguments(run);
  args.out += first_row * args.ldo;
  run.table.quantize(args, 0, 1);
  return first_row;
}

bool RopeStoreNode::joins_next(const Run& run) const {
  return attention >= 0 && run.step.batch(narrow).work(attention).can_store;
}

RopeStoreArgs RopeStoreNode::arguments(const Run& run) const {
  const std::vector<PageRun>& runs = run.step.batch(narrow).tables[table].runs;
  const int64_t half = rot_dim / 2;
  return {.qkv = run.at<float>(qkv),
          .ld = qkv.ld,
          .q_heads = heads.q_heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .head_tiles = heads.head_tiles(),
          .value_dim = heads.values(),
          .value_tiles = heads.value_tiles(),
          .cos = rope_rows ? run.at<float>(*rope_rows) : cos,
          .sin = rope_rows ? run.at<float>(*rope_rows) + half : sin,
          .ld_rope = rope_rows ? rope_rows->ld : half,
          .by_row = rope_rows.has_value(),
          .rot_dim = rot_dim,
          .distance = distance,
          .q_scale = q_scale,
          .source = source,
          .norm = norm,
          .q_norm = q_norm,
          .k_norm = k_norm,
          .norm_values = norm_values,
          .eps = eps,
          .q = run.at<bf16>(q),
          .kv = kv,
          .runs = runs.data(),
          .num_runs = static_cast<int64_t>(runs.size())};
}

void RopeStoreNode::run(Run& run, int thread) const { run.table.rope_store(arguments(run), thread, run.team.size()); }

void GatherNode::run(Run& run, int thread) const {
  const std::vector<LogitRow>& rows = run.step.logit_rows;
  const Range mine = split(static_cast<int64_t>(rows.size()), run.team.size(), thread);
  for (int64_t i = mine.begin; i < mine.end; ++i)
    run.table.copy(run.at<bf16>(x) + rows[static_cast<size_t>(i)].row * x.ld, run.at<bf16>(out) + i * out.ld,
                   x.ld * static_cast<int64_t>(sizeof(bf16)));
}

void PoolNode::run(Run& run, int thread) const {
  run.table.pool({.x = run.at<float>(x),
                  .ldx = x.ld,
                  .sequences = run.step.pooled_rows.data(),
                  .num_sequences = static_cast<int64_t>(run.step.pooled_rows.size()),
                  .pooling = pooling,
                  .weight = weight,
                  .out = run.at<float>(out),
                  .ldo = out.ld,
                  .cols = cols,
                  .eps = eps},
                 thread, run.team.size());
}

}  // namespace numaserve
