// decant: pages that stand in a table more than once. Rows are moved within pages of one sequence alone.
#ifndef DECANT_KV_DETAIL_SHARED_PAGES_HPP
#define DECANT_KV_DETAIL_SHARED_PAGES_HPP

#include <cstdint>
#include <cstring>

#include "../../core/cpu.hpp"
#include "../../core/error.hpp"
#include "../paged_kv.hpp"

namespace decant::kv::detail {

/// How often each page stands in the table, 2 for more than once, in the workspace's open scope. O(pages + table).
template <class T>
const std::uint8_t* count_pages(Workspace& workspace, const PagedKV<T>& cache) {
  std::uint8_t* const seen = workspace.take<std::uint8_t>(cache.pages());
  if (cache.pages() > 0) std::memset(seen, 0, static_cast<std::size_t>(cache.pages()));
  for (index_t i = 0; i < cache.indptr[cache.sequences()]; ++i) {
    std::uint8_t& count = seen[cache.indices[i]];
    count = count == 0 ? std::uint8_t{1} : std::uint8_t{2};
  }
  return seen;
}

/// Raises ArgumentError when another place in the table refers to one of pages [first, last) of the sequence.
template <class T>
void require_unshared(const PagedKV<T>& cache, const std::uint8_t* seen, index_t sequence, index_t first, index_t last,
                      const char* where) {
  for (index_t i = cache.indptr[sequence] + first; i < cache.indptr[sequence] + last; ++i) {
    require(seen[cache.indices[i]] == 1, where, "cache",
            "pages that stand in the table once (copy a shared prefix first)",
            [&] { return "page " + std::to_string(cache.indices[i]) + " more than once"; });
  }
}

/// All pages of the sequence.
template <class T>
void require_unshared(Cpu& cpu, const PagedKV<T>& cache, index_t sequence, const char* where) {
  Workspace::Scope scope(cpu.workspace());
  require_unshared(cache, count_pages(cpu.workspace(), cache), sequence, 0,
                   cache.indptr[sequence + 1] - cache.indptr[sequence], where);
}

}  // namespace decant::kv::detail

#endif
