// The KV rows of one layer of one sequence, in each of decant's three layouts. The memory is this file's, the views of
// it are decant's; the three classes look alike to Llama.
#pragma once

#include <cstdint>
#include <vector>

#include <decant/core/cpu.hpp>
#include <decant/kv/compact.hpp>
#include <decant/kv/write.hpp>
#include <decant/speculative/keep_path.hpp>

#include "config.hpp"

namespace runtime {

using decant::View;

struct CacheOptions {
  index_t page_size = 16;  // of paged caches
};

namespace detail {

/// Rows of keys and of values.
template <class T>
struct Rows {
  Rows(index_t count, index_t dim)
      : keys(static_cast<std::size_t>(count * dim)), values(static_cast<std::size_t>(count * dim)) {}
  std::vector<T> keys;
  std::vector<T> values;
};

/// Bytes of the rows in use, keys and values of all heads.
template <class Cache>
index_t bytes_in_use(const Cache& view) {
  index_t rows = 0;
  for (index_t h = 0; h < view.kv_heads(); ++h) rows += view.length(0, h);
  return rows * (view.key_dim() + view.value_dim()) * static_cast<index_t>(sizeof(typename Cache::value_type));
}

}  // namespace detail

/// Every head in one block [kv_heads, capacity, head_dim].
template <class T>
class DenseCache {
 public:
  DenseCache(const Config& c, index_t capacity, const CacheOptions&)
      : heads_(c.kv_heads), capacity_(capacity), dim_(c.head_dim), rows_(heads_ * capacity, dim_) {}

  decant::kv::DenseKV<T> view() {
    return {View<T, 4>(rows_.keys.data(), 1, heads_, capacity_, dim_),
            View<T, 4>(rows_.values.data(), 1, heads_, capacity_, dim_), View<std::int32_t, 1>(&length_, 1)};
  }
  void append(decant::Cpu& cpu, View<float, 3> keys, View<float, 3> values) {
    decant::kv::append(cpu, view(), 0, keys, values);
  }
  void compact(decant::Cpu& cpu, decant::kv::KeptView kept) { decant::kv::compact(cpu, view(), kept); }
  void keep_path(decant::Cpu& cpu, const decant::speculative::AcceptedPaths& paths) {
    decant::speculative::keep_path(cpu, view(), paths);
  }
  index_t bytes_in_use() { return detail::bytes_in_use(view()); }

 private:
  index_t heads_, capacity_, dim_;
  detail::Rows<T> rows_;
  std::int32_t length_ = 0;
};

/// Pages [kv_heads, page_size, head_dim], handed out by a page table.
template <class T>
class PagedCache {
 public:
  PagedCache(const Config& c, index_t capacity, const CacheOptions& options)
      : heads_(c.kv_heads),
        dim_(c.head_dim),
        table_((capacity + options.page_size - 1) / options.page_size, options.page_size, 1),
        rows_(table_.pages() * heads_ * table_.page_size(), dim_) {}

  decant::kv::PagedKV<T> view() { return table_.attach(keys(), values()); }
  void append(decant::Cpu& cpu, View<float, 3> k, View<float, 3> v) {
    decant::kv::append(cpu, table_, keys(), values(), 0, k, v);
  }
  void compact(decant::Cpu& cpu, decant::kv::KeptView kept) {
    decant::kv::compact(cpu, table_, keys(), values(), kept);
  }
  void keep_path(decant::Cpu& cpu, const decant::speculative::AcceptedPaths& paths) {
    decant::speculative::keep_path(cpu, table_, keys(), values(), paths);
  }
  index_t bytes_in_use() { return detail::bytes_in_use(view()); }

 private:
  View<T, 4> keys() { return pool(rows_.keys); }
  View<T, 4> values() { return pool(rows_.values); }
  View<T, 4> pool(std::vector<T>& rows) {
    return View<T, 4>(rows.data(), table_.pages(), heads_, table_.page_size(), dim_);
  }

  index_t heads_, dim_;
  decant::kv::PageTable table_;
  detail::Rows<T> rows_;
};

/// A segment of rows for each head, which may hold different numbers of tokens.
template <class T>
class RaggedCache {
 public:
  RaggedCache(const Config& c, index_t capacity, const CacheOptions&)
      : dim_(c.head_dim), lengths_(static_cast<std::size_t>(c.kv_heads)), rows_(c.kv_heads * capacity, dim_) {
    for (index_t h = 0; h <= c.kv_heads; ++h) offsets_.push_back(h * capacity);
  }

  decant::kv::RaggedKV<T> view() {
    const auto heads = static_cast<index_t>(lengths_.size());
    return {View<T, 2>(rows_.keys.data(), offsets_.back(), dim_),
            View<T, 2>(rows_.values.data(), offsets_.back(), dim_), offsets_, lengths_, heads};
  }
  void append(decant::Cpu& cpu, View<float, 3> keys, View<float, 3> values) {
    decant::kv::append(cpu, view(), 0, keys, values);
  }
  void compact(decant::Cpu& cpu, decant::kv::KeptView kept) { decant::kv::compact(cpu, view(), kept); }
  void keep_path(decant::Cpu& cpu, const decant::speculative::AcceptedPaths& paths) {
    decant::speculative::keep_path(cpu, view(), paths);
  }
  index_t bytes_in_use() { return detail::bytes_in_use(view()); }

 private:
  index_t dim_;
  std::vector<index_t> offsets_;
  std::vector<std::int32_t> lengths_;
  detail::Rows<T> rows_;
};

}  // namespace runtime
