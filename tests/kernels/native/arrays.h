// Arrays, which the files of the module share; see module.cc.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "kernels/cpu_features.h"
#include "kernels/include/kernel_table.h"

namespace numaserve {

// Adds single AMX instructions.
void bind_amx(nanobind::module_& ops);

// Adds the plan of a step's attention.
void bind_attention_plan(nanobind::module_& ops);

// Adds sample, token_logprobs and what tells whether a row of logits is usable.
void bind_sampling(nanobind::module_& ops);

template <class T, int kDims>
using Array = nanobind::ndarray<T, nanobind::ndim<kDims>, nanobind::c_contig, nanobind::device::cpu>;
template <class T, int kDims>
using Maybe = std::optional<Array<T, kDims>>;

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class A>
int64_t size(const A& array, size_t dim) {
  return static_cast<int64_t>(array.shape(dim));
}

template <class A>
auto data_or_null(const std::optional<A>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}

template <class Body>
void play_threads(int threads, Body body) {
  require(threads >= 1, "a team has at least one thread");
  for (int thread = 0; thread < threads; ++thread) body(thread);
}

}  // namespace numaserve
