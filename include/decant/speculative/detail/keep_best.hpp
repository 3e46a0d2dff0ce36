// decant: the best k of a list of node ids, in the order of ids. Nodes are numbered as they are created, a parent before
// its children: where scores do not rise downwards and the earlier of equal ones is the better, parents are kept with
// their children, and come before them.
#ifndef DECANT_SPECULATIVE_DETAIL_KEEP_BEST_HPP
#define DECANT_SPECULATIVE_DETAIL_KEEP_BEST_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace decant::speculative::detail {

/// Leaves the best k, or all, in ascending order. better(a, b): a strict order of ids without ties. O(n + k log k).
template <class Better>
void keep_best(std::vector<std::int32_t>& ids, std::int32_t k, const Better& better) {
  if (static_cast<std::ptrdiff_t>(ids.size()) > k) {
    std::nth_element(ids.begin(), ids.begin() + k, ids.end(), better);
    ids.resize(static_cast<std::size_t>(k));
  }
  std::sort(ids.begin(), ids.end());
}

/// The same, the best first.
template <class Better>
void best_first(std::vector<std::int32_t>& ids, std::int32_t k, const Better& better) {
  keep_best(ids, k, better);
  std::sort(ids.begin(), ids.end(), better);
}

}  // namespace decant::speculative::detail

#endif
