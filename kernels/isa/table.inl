// All functions of an instruction set but the matrix products, and its table.
#pragma once

#include "kernels/gemm/scratch.inl"
#include "kernels/gemm/tiles/tile.h"
#include "kernels/include/kernel_table.h"
#include "kernels/isa/products.h"
#include "kernels/ops/attention.inl"
#include "kernels/ops/causal_conv.inl"
#include "kernels/ops/divided_norm.inl"
#include "kernels/ops/embed.inl"
#include "kernels/ops/gated_delta.inl"
#include "kernels/ops/gated_norm.inl"
#include "kernels/ops/key_delta.inl"
#include "kernels/ops/latent_attention.inl"
#include "kernels/ops/layer_inputs.inl"
#include "kernels/ops/layer_norm.inl"
#include "kernels/ops/moe.inl"
#include "kernels/ops/multiply.inl"
#include "kernels/ops/norm.inl"
#include "kernels/ops/pool.inl"
#include "kernels/ops/quantize.inl"
#include "kernels/ops/rope_store.inl"
#include "kernels/ops/sampling.inl"
#include "kernels/ops/shrink.inl"
#include "kernels/ops/state_space.inl"
#include "kernels/ops/store_latent.inl"
#include "kernels/simd/f32x16.h"
#include "kernels/simd/functions.h"
#include "kernels/simd/prefetch.h"

#if defined(NUMASERVE_TILES_HEADER)
#include "kernels/gemm/nest_amx.inl"
#endif

#define NUMASERVE_TEXT(x) #x
#define NUMASERVE_NAME_OF(x) NUMASERVE_TEXT(x)

namespace numaserve {
namespace {

inline void softcap(float* x, int64_t count, float cap) {
  for (int64_t i = 0; i < count; i += 16) {
    const int valid = static_cast<int>(count - i < 16 ? count - i : 16);
    (tanh(F32x16::load_head(x + i, valid) / F32x16::set1(cap)) * F32x16::set1(cap)).store_head(x + i, valid);
  }
}

inline void copy(const void* from, void* to, int64_t bytes) { __builtin_memcpy(to, from, static_cast<size_t>(bytes)); }

inline int64_t fp32_peak(int64_t rounds) {
#if defined(__AVX512F__)
  constexpr int kSums = 12;  // so that none waits for itself
#else
  constexpr int kSums = 5;  // of two registers each
#endif
  F32x16 sums[kSums];
  for (F32x16& sum : sums) sum = F32x16::zero();
  float x = 1.0f;
  for (int64_t i = 0; i < rounds; ++i) {
    const F32x16 factor = F32x16::set1(x);
    for (F32x16& sum : sums) sum = F32x16::fma(factor, factor, sum);
    __asm__ volatile("" : "+x"(x));
  }
  float total = 0.0f;
  for (const F32x16& sum : sums) total += sum.sum();
  __asm__ volatile("" ::"x"(total));
  return rounds * kSums * 2 * 16;
}

inline void read_memory(const std::byte* data, int64_t bytes, bool fetch_ahead) {
  constexpr int64_t kAhead = 512;  // bytes: the best of 256 to 16384 with AMX, a sixth more than without
  const auto* values = reinterpret_cast<const float*>(data);
  F32x16 sum[4] = {F32x16::zero(), F32x16::zero(), F32x16::zero(), F32x16::zero()};
  for (int64_t i = 0; i < bytes / 4; i += 64)
    for (int j = 0; j < 4; ++j) {
      if (fetch_ahead) prefetch_first(values + i + 16 * j + kAhead / 4);
      sum[j] = sum[j] + F32x16::load(values + i + 16 * j);
      __asm__ volatile("" ::: "memory");  // in the order of memory: a tenth is lost with AMX where gcc changes it
    }
  const float total = (sum[0] + sum[1] + (sum[2] + sum[3])).sum();
  __asm__ volatile("" ::"x"(total));
}

}  // namespace

const KernelTable NUMASERVE_ISA_TABLE = {
    .name = NUMASERVE_NAME_OF(NUMASERVE_ISA),
    .gemm = NUMASERVE_ISA::gemm,
    .gemm_share = NUMASERVE_ISA::gemm_share,
    .gemm_parts = NUMASERVE_ISA::gemm_parts,
    .gemm_finish = NUMASERVE_ISA::gemm_finish,
    .first_level = kFirstLevelUse,
    .takes_tiled_rows = kPacksTiles,
    .gemm_scratch = sizeof(GemmScratch),
    .shrink_tile = kShrinkTile,
    .shrink = shrink,
    .quantize = quantize,
    .rms_norm = rms_norm,
    .rms_norm_quantize = rms_norm_quantize,
    .layer_norm = layer_norm,
    .divided_norm_sums = divided_norm_sums,
    .divided_norm_scale = divided_norm_scale,
    .pool = pool,
    .reduce_add = reduce_add,
    .post_norm_add = post_norm_add,
    .embed = embed,
    .layer_inputs = layer_inputs,
    .multiply = multiply,
    .copy = copy,
    .route = route,
    .sigmoid = sigmoid,
    .weigh_row = weigh_row,
    .combine = combine,
    .clear_columns = clear_columns,
    .add_weighted_rows = add_weighted_rows,
    .move_sums = move_sums,
    .rope_store = rope_store,
    .attention_item = attention_item,
    .attention_merge = attention_merge,
    .attention_scratch = sizeof(AttentionScratch),
    .latent_store = latent_store,
    .latent_attention_item = latent_attention_item,
    .latent_attention_scratch = sizeof(LatentScratch),
    .latent_attention_merge = latent_attention_merge,
    .latent_groups_merge = latent_groups_merge,
    .causal_conv = causal_conv,
    .gated_delta = gated_delta,
    .state_space = state_space,
    .key_decays = key_decays,
    .key_delta = key_delta,
    .gated_norm = gated_norm,
    .sigmoid_gate = sigmoid_gate,
    .softcap = softcap,
    .sample_begin = sample_begin,
    .sample_weigh = sample_weigh,
    .sample = sample,
    .token_logprobs = token_logprobs,
    .peak = NUMASERVE_ISA::peak,
    .peak_fp32 = fp32_peak,
#if defined(NUMASERVE_TILES_HEADER)
    .nest = nest,
#else
    .nest = nullptr,
#endif
    .read = read_memory,
};

}  // namespace numaserve
