// The pages of the KV cache that random traffic gives to its requests and takes back, in each page table.
#pragma once

#include <array>
#include <vector>

#include "tests/kernels/random_program.h"

namespace numaserve::testing {

class RandomPages {
 public:
  // The pages of a request in a page table, of which it has given back the first ones.
  struct Held {
    std::vector<int32_t> pages;
    int64_t first = 0;
  };
  using Tables = std::array<Held, 2>;

  explicit RandomPages(RankProgram& rank) : rank_(rank), window_{rank.model().shape.window} {
    const Model& model = rank.model();
    const std::array<int64_t, 2> counts{model.limits.num_pages, model.shape.window_pages};
    for (size_t table = 0; table < free_.size(); ++table)
      for (int64_t page = counts[table] - 1; page >= 0; --page) free_[table].push_back(static_cast<int32_t>(page));
    window_.aligned = model.shape.chunked;
  }

  // Gives a slot pages for its tokens up to `end`, and takes back what tokens from `start` on do not read: in the same
  // step others may have it. Returns false if there are too few.
  bool reach(int64_t slot, Tables& held, int64_t start, int64_t end) {
    if (!append(0, held, end, [&](auto pages) { slots().append_pages(slot, pages); })) return false;
    if (rank_.model().shape.window_pages == 0) return true;
    Held& own = held[1];
    const int64_t first = window_.first(static_cast<int32_t>(start)) / kAttentionBlock * kBlockPages;
    for (; own.first < first; ++own.first) give_back(1, own.pages[static_cast<size_t>(own.first)]);
    return append(1, held, end, [&](auto pages) { slots().advance_window(slot, 0, first, pages); });
  }

  void release(Tables& held) {
    for (size_t table = 0; table < held.size(); ++table) {
      for (size_t i = static_cast<size_t>(held[table].first); i < held[table].pages.size(); ++i)
        give_back(table, held[table].pages[i]);
      held[table] = {};
    }
  }

 private:
  SlotTable& slots() const { return rank_.program().slots(); }

  void give_back(size_t table, int32_t page) {
    rank_.hold_page(table, page, false);
    free_[table].push_back(page);
  }

  // Appends pages until those before `end` are there, all with one call.
  bool append(size_t table, Tables& held, int64_t end, auto&& to_slot) {
    std::vector<int32_t>& own = held[table].pages;
    const auto had = static_cast<std::ptrdiff_t>(own.size());
    while (static_cast<int64_t>(own.size()) * kPageTokens < end) {
      if (free_[table].empty()) return false;
      own.push_back(free_[table].back());
      free_[table].pop_back();
      rank_.hold_page(table, own.back(), true);
    }
    to_slot(std::span(own.begin() + had, own.end()));
    return true;
  }

  RankProgram& rank_;
  Window window_;
  std::array<std::vector<int32_t>, 2> free_;  // of each table
};

}  // namespace numaserve::testing
