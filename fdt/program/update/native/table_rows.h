// Updates all rows of a table, given values for some of them, perhaps several for one row.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "entries.h"
#include "rows.h"
#include "runs.h"

namespace fdt {
namespace {

// Updates the rows from `begin` to `end`.
//
// `gradients`: for each of the formula's gradients the values, of `width` entries each, that `groups` orders by row.
// `none`: the gradient of rows for which no value came, `kRun` zeros.
template <typename T>
void UpdateRows(const Formula& formula, const Held<T>& held, const std::vector<const T*>& gradients, const Groups& groups,
                int64_t width, int64_t begin, int64_t end, const T* none) {
  // Holds the sums over one row's values.
  std::vector<T> sums(kMostGradients * width);
  const std::vector<int64_t>& found = groups.rows();
  int64_t group = std::lower_bound(found.begin(), found.end(), begin) - found.begin();
  for (int64_t row = begin; row < end; ++row, ++group) {
    const int64_t come = group < groups.size() ? std::min(end, found[group]) : end;
    for (int64_t place = row * width; place < come * width; place += kRun) {
      Entries<T> entries = held.From(place);
      entries.gradients[0] = entries.gradients[1] = none;
      entries.length = std::min(kRun, come * width - place);
      Apply(formula, entries);
    }
    row = come;
    if (row == end) break;
    Entries<T> entries = held.From(row * width);
    for (size_t k = 0; k < gradients.size(); ++k) {
      const T* all = gradients[k];
      entries.gradients[k] = all + groups.place(group, 0) * width;
      if (groups.length(group) > 1) {
        T* sum = sums.data() + k * width;
        std::fill_n(sum, width, T(0));
        for (int64_t each = 0; each < groups.length(group); ++each) {
          const T* value = all + groups.place(group, each) * width;
          for (int64_t i = 0; i < width; ++i) sum[i] += value[i];
        }
        entries.gradients[k] = sum;
      }
    }
    if (gradients.size() == 1) entries.gradients[1] = entries.gradients[0];
    entries.length = width;
    Apply(formula, entries);
  }
}

}  // namespace
}  // namespace fdt
