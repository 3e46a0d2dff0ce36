// decant: a doubly linked list through the elements of an array, by their numbers: which of them was unused for longest.
// One element is the list's two ends, linked to itself while the list is empty; what follows it goes first.
#ifndef DECANT_SCHEDULING_DETAIL_USE_LIST_HPP
#define DECANT_SCHEDULING_DETAIL_USE_LIST_HPP

#include <cstdint>
#include <vector>

namespace decant::scheduling::detail {

/// Entry has the members `previous` and `next`.
template <class Entry>
void link_before(std::vector<Entry>& list, std::uint32_t at, std::uint32_t which) {
  const std::uint32_t previous = list[at].previous;
  list[which].previous = previous;
  list[which].next = at;
  list[previous].next = list[at].previous = which;
}

template <class Entry>
void unlink(std::vector<Entry>& list, std::uint32_t which) {
  list[list[which].previous].next = list[which].next;
  list[list[which].next].previous = list[which].previous;
}

}  // namespace decant::scheduling::detail

#endif
