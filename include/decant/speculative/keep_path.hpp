// decant: after verification, the KV rows of the accepted path. A step has appended a row for every node of its tree,
// in the tree's order; the root's and those of accepted nodes stay, moved together, the others go. Node j of the path
// is never before its new place, so that rows are copied in place in order. [ours]
#ifndef DECANT_SPECULATIVE_KEEP_PATH_HPP
#define DECANT_SPECULATIVE_KEEP_PATH_HPP

#include <cstdint>
#include <cstring>

#include "../core/cpu.hpp"
#include "../kv/dense_kv.hpp"
#include "../kv/detail/shared_pages.hpp"
#include "../kv/page_table.hpp"
#include "../kv/paged_kv.hpp"
#include "../kv/ragged_kv.hpp"
#include "accepted.hpp"
#include "tree.hpp"

namespace decant::speculative {

/// What verify() said of a batch: nodes [B, D], length [B]; and offsets [B + 1] of the trees that were run.
struct AcceptedPaths {
  View<const std::int32_t, 1> offsets{};
  View<const std::int32_t, 2> nodes{};
  View<const std::int32_t, 1> length{};

  DECANT_HD index_t rows(index_t b) const { return offsets[b + 1] - offsets[b]; }
  /// Rows that stay: the root and the path; a request that failed keeps none, so that its step can be made again.
  DECANT_HD index_t kept(index_t b) const { return length[b] + 1; }
  /// The row of the tree that becomes the i-th.
  DECANT_HD index_t source(index_t b, index_t i) const { return i == 0 ? 0 : nodes(b, i - 1); }
  /// The first row that comes from another place, as do all after it; kept(): none.
  DECANT_HD index_t first_moved(index_t b) const {
    index_t i = 0;
    while (i < kept(b) && source(b, i) == i) ++i;
    return i;
  }
};

namespace detail {

/// Whether request b's path ascends within its tree, which its sequence has rows for.
DECANT_HD inline bool path_fits(const AcceptedPaths& paths, index_t b, index_t rows_there) {
  const index_t rows = paths.rows(b);
  const index_t kept = paths.kept(b);
  if (rows < 0 || rows > rows_there || kept < 0 || kept > rows || kept > paths.nodes.extent(1) + 1) return false;
  for (index_t i = 1; i < kept; ++i) {
    if (paths.source(b, i) <= paths.source(b, i - 1) || paths.source(b, i) >= rows) return false;
  }
  return true;
}

template <class Cache>
void require_paths(const Cache& cache, const AcceptedPaths& paths, const char* where) {
  const index_t requests = cache.sequences();
  require_equal(paths.offsets.extent(0), requests + 1, where, "paths.offsets");
  require_equal(paths.nodes.extent(0), requests, where, "paths.nodes");
  require_equal(paths.length.extent(0), requests, where, "paths.length");
}

template <class Cache>
void require_each_path(const Cache& cache, const AcceptedPaths& paths, const char* where) {
  validate(cache);
  require_paths(cache, paths, where);
  for (index_t b = 0; b < cache.sequences(); ++b) {
    for (index_t h = 0; h < cache.kv_heads(); ++h) {
      require(path_fits(paths, b, cache.length(b, h)), where, "paths",
              "ascending nodes of a tree that the sequence has rows for",
              [&] { return "another path for request " + std::to_string(b); });
    }
  }
}

/// The pages of a sequence, first to last, that rows are moved to.
struct MovedPages {
  index_t first;
  index_t last;

  template <class T>
  DECANT_HD static MovedPages of(const kv::PagedKV<T>& cache, const AcceptedPaths& paths, index_t b) {
    const index_t base = cache.length(b, 0) - paths.rows(b);
    const index_t first = paths.first_moved(b);
    if (first == paths.kept(b)) return {0, 0};
    return {(base + first) / cache.page_size(), (base + paths.kept(b) - 1) / cache.page_size() + 1};
  }
};

template <class Cache>
void move_path_rows(Cpu& cpu, const Cache& cache, const AcceptedPaths& paths) {
  const std::size_t key_bytes = static_cast<std::size_t>(cache.key_dim()) * sizeof(typename Cache::value_type);
  const std::size_t value_bytes = static_cast<std::size_t>(cache.value_dim()) * sizeof(typename Cache::value_type);
  cpu.parallel_for(cache.sequences() * cache.kv_heads(), [&](index_t task) {
    const index_t b = task / cache.kv_heads();
    const index_t h = task % cache.kv_heads();
    const index_t base = cache.length(b, h) - paths.rows(b);
    for (index_t i = paths.first_moved(b); i < paths.kept(b); ++i) {
      const index_t from = base + paths.source(b, i);
      std::memcpy(cache.key(b, h, base + i), cache.key(b, h, from), key_bytes);
      std::memcpy(cache.value(b, h, base + i), cache.value(b, h, from), value_bytes);
    }
  });
}

}  // namespace detail

/// Sequence b of the cache is request b, and its last rows, as many as its tree has nodes, are the tree's. Keeps those of
/// the root and the accepted path, and sets lengths. ArgumentError, and nothing changed, for paths that do not fit.
/// O(accepted rows).
template <class T>
  requires(!std::is_const_v<T>)
void keep_path(Cpu& cpu, const kv::DenseKV<T>& cache, const AcceptedPaths& paths) {
  detail::require_each_path(cache, paths, "speculative::keep_path");
  detail::move_path_rows(cpu, cache, paths);
  for (index_t b = 0; b < cache.sequences(); ++b) {
    cache.lengths[b] += static_cast<std::int32_t>(paths.kept(b) - paths.rows(b));
  }
}
template <class T>
  requires(!std::is_const_v<T>)
void keep_path(Cpu& cpu, const kv::RaggedKV<T>& cache, const AcceptedPaths& paths) {
  detail::require_each_path(cache, paths, "speculative::keep_path");
  detail::move_path_rows(cpu, cache, paths);
  for (index_t i = 0; i < cache.sequences() * cache.kv_heads(); ++i) {
    const index_t b = i / cache.kv_heads();
    cache.lengths[i] += static_cast<std::int32_t>(paths.kept(b) - paths.rows(b));
  }
}
/// The moves alone, for layers that share a page table; cut the table after the last layer. Pages that rows are moved
/// to and that the table names more than once are refused. O(pages + table) more.
template <class T>
  requires(!std::is_const_v<T>)
void keep_path_rows(Cpu& cpu, const kv::PagedKV<T>& cache, const AcceptedPaths& paths) {
  constexpr const char* where = "speculative::keep_path";
  detail::require_each_path(cache, paths, where);
  Workspace::Scope scope(cpu.workspace());
  const std::uint8_t* const seen = kv::detail::count_pages(cpu.workspace(), cache);
  for (index_t b = 0; b < cache.sequences() && cache.kv_heads() > 0; ++b) {
    const auto moved = detail::MovedPages::of(cache, paths, b);
    kv::detail::require_unshared(cache, seen, b, moved.first, moved.last, where);
  }
  detail::move_path_rows(cpu, cache, paths);
}
/// The same with a table of the cache's own, which takes emptied pages back.
template <class T>
void keep_path(Cpu& cpu, kv::PageTable& table, View<T, 4> keys, View<T, 4> values, const AcceptedPaths& paths) {
  keep_path_rows(cpu, table.attach(keys, values), paths);
  for (index_t b = 0; b < table.sequences(); ++b) {
    table.truncate(b, table.length(b) + paths.kept(b) - paths.rows(b));
  }
}

}  // namespace decant::speculative

#endif
