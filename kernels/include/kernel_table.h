// The interface between the runtime and an instruction set: one table of functions.
//
// All threads of a team call each function with (thread, threads), and each thread does its own part. The caller puts
// barriers between calls. No function allocates.
#pragma once

#include "kernels/include/adapter_args.h"
#include "kernels/include/attention_args.h"
#include "kernels/include/dense_args.h"
#include "kernels/include/moe_args.h"
#include "kernels/include/recurrent_args.h"
#include "kernels/include/sampling_args.h"
#include "kernels/include/types.h"

namespace numaserve {

// The operands of a measured peak: equal ones in registers, or random ones that are loaded from the first level.
enum class PeakOperands : int32_t { kEqual, kRandom };

// The memory of a measured nest. Each pair of panels has weights of its own, and 16 pairs in turn the same sums.
inline constexpr int64_t kNestBlockTiles = 13, kNestBlocks = 5, kNestRows = 256, kNestSums = 16;
inline constexpr int64_t kNestPairBytes = kNestBlocks * kNestBlockTiles * 2 * kTileBytes;
inline constexpr int64_t kNestRowBytes = kNestRows * kNestBlocks * kNestBlockTiles * kLineBytes;
inline constexpr int64_t kNestSumBytes = kNestSums * kNestRows * 32 * 4;
struct NestMemory {
  const std::byte* rows;     // kNestRowBytes: activations, in the order in which they are read
  const std::byte* weights;  // kNestPairBytes for each of `pairs`
  std::byte* sums;           // kNestSumBytes
  int64_t pairs;
};

struct KernelTable {
  const char* name;
  void (*gemm)(const GemmArgs&, void* scratch, int thread, int threads);
  void (*gemm_share)(const GemmArgs&, const GemmShare&, void* scratch);
  // The same for up to kStreamedRows rows, with the parts of k divided among threads too. `sums` has space for
  // kPartSums, and a barrier lies between the two functions.
  void (*gemm_parts)(const GemmArgs&, void* sums, void* scratch, int thread, int threads);
  void (*gemm_finish)(const GemmArgs&, void* sums, int thread, int threads);
  FirstLevelUse first_level;
  bool takes_tiled_rows;  // whether products read and write many rows in the order of tiles; see GemmArgs
  int64_t gemm_scratch;   // bytes of scratch a thread needs, on a cache line boundary
  ShrinkTile shrink_tile;
  void (*shrink)(const ShrinkArgs&, int thread, int threads);
  void (*quantize)(const QuantizeArgs&, int thread, int threads);
  void (*rms_norm)(const NormArgs&, int thread, int threads);
  // Computes a norm and quantizes its result; `scratch` holds a row.
  void (*rms_norm_quantize)(const NormArgs&, const QuantizeArgs&, void* scratch, int thread, int threads);
  void (*layer_norm)(const LayerNormArgs&, int thread, int threads);
  void (*divided_norm_sums)(const DividedNormArgs&, int thread, int threads);
  void (*divided_norm_scale)(const DividedNormArgs&, int thread, int threads);
  void (*pool)(const PoolArgs&, int thread, int threads);
  void (*reduce_add)(const ReduceArgs&, Range values);  // of rows * ld, in whole units of 16
  void (*post_norm_add)(const ReduceArgs&, int thread, int threads);
  void (*embed)(const EmbedArgs&, int thread, int threads);
  void (*layer_inputs)(const LayerInputsArgs&, int thread, int threads);
  void (*multiply)(const MultiplyArgs&, int thread, int threads);
  void (*copy)(const void* from, void* to, int64_t bytes);
  // For one token: writes top_k distinct experts, for any logits, the first-ranked first, and their weights.
  void (*route)(const RouteArgs&, int64_t token, int32_t* experts, float* weights);
  float (*sigmoid)(float);
  // Writes a row of `columns`, a multiple of 16, times a weight.
  void (*weigh_row)(const bf16* x, float weight, int64_t columns, bf16* out);
  void (*combine)(const CombineArgs&, int thread, int threads);
  // The same in parts, for some columns.
  void (*clear_columns)(float* out, int64_t ldo, int64_t rows, Range columns);
  void (*add_weighted_rows)(const WeightedRowsArgs&, Range columns);
  void (*move_sums)(const MoveSumsArgs&, Range columns);
  void (*rope_store)(const RopeStoreArgs&, int thread, int threads);
  // `next`: the item that the thread will probably compute next, for prefetching; or null.
  void (*attention_item)(const AttentionArgs&, const AttentionItem&, const AttentionItem* next, void* scratch);
  void (*attention_merge)(const AttentionArgs&, const AttentionItem&, int num_blocks, int64_t block_stride);
  int64_t attention_scratch;  // bytes of scratch a thread needs
  // The same over a latent cache, and the function that runs before it.
  void (*latent_store)(const LatentStoreArgs&, int thread, int threads);
  void (*latent_attention_item)(const AttentionArgs&, const AttentionItem&, const AttentionItem* next, void* scratch);
  int64_t latent_attention_scratch;
  void (*latent_attention_merge)(const AttentionArgs&, const AttentionItem&, int num_blocks, int64_t block_stride);
  void (*latent_groups_merge)(const LatentGroupsArgs&, int thread, int threads);
  void (*causal_conv)(const ConvArgs&, int thread, int threads);
  void (*gated_delta)(const DeltaArgs&, DeltaItem, void* scratch);
  void (*state_space)(const DeltaArgs&, DeltaItem, void* scratch);
  void (*key_decays)(const KeyDecaysArgs&, int thread, int threads);
  void (*key_delta)(const DeltaArgs&, DeltaItem, void* scratch);
  void (*gated_norm)(const GatedNormArgs&, int thread, int threads);
  void (*sigmoid_gate)(const SigmoidGateArgs&, int thread, int threads);
  void (*softcap)(float* x, int64_t count, float cap);
  void (*sample_begin)(const SampleArgs&, Range blocks);
  void (*sample_weigh)(const SampleArgs&, Range blocks);
  void (*sample)(const SampleArgs&, SampledRow*);
  void (*token_logprobs)(const float* logits, int64_t vocab, int32_t token, int num_top, SampledRow*);
  // For benchmarks: runs only multiply-adds of a format; returns the number of operations.
  int64_t (*peak)(WeightFormat, PeakOperands, int64_t rounds);
  int64_t (*peak_fp32)(int64_t rounds);  // of registers, without tiles
  // The same for the nest of a large product; null without tile registers. See nest_amx.inl.
  int64_t (*nest)(WeightFormat, const NestMemory&);
  // For benchmarks: reads memory, a multiple of 256 bytes; may prefetch a short distance ahead.
  void (*read)(const std::byte* data, int64_t bytes, bool fetch_ahead);
};

extern const KernelTable kPortableTable;
extern const KernelTable kAvx512Table;
extern const KernelTable kAmxTable;
extern const KernelTable kAmxEmulatedTable;  // the amx sources over tiles emulated in software; for tests only

}  // namespace numaserve
