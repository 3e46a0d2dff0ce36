// decant: kv::PagedKV, a cache in pages with a CSR page table, the layout of FlashInfer and vLLM: pages are handed out
// by the engine, a page may be shared by several sequences.
#ifndef DECANT_KV_PAGED_KV_HPP
#define DECANT_KV_PAGED_KV_HPP

#include <cstdint>

#include "cache_view.hpp"

namespace decant::kv {

/// keys [pages, kv_heads, page_size, key_dim], values likewise, in any strides with contiguous rows: HND is row-major,
/// NHD ([page, slot, head, dim]) is a permutation of strides, and both may be slices of one pool [pages, 2, ...].
/// Sequence s owns the pages indices[indptr[s]] ... indices[indptr[s + 1] - 1], all full but the last, which holds
/// last_page_len[s] tokens (1 ... page_size). A sequence without pages is empty; its last_page_len is not read.
template <class T>
struct PagedKV {
  using value_type = std::remove_const_t<T>;
  using table_type = detail::length_of<T>;

  View<T, 4> keys;
  View<T, 4> values;
  View<table_type, 1> indptr;         // [sequences + 1]
  View<table_type, 1> indices;        // [at least indptr[sequences]]
  View<table_type, 1> last_page_len;  // [sequences]

  DECANT_HD index_t sequences() const { return last_page_len.extent(0); }
  DECANT_HD index_t kv_heads() const { return keys.extent(1); }
  DECANT_HD index_t pages() const { return keys.extent(0); }
  DECANT_HD index_t page_size() const { return keys.extent(2); }
  DECANT_HD index_t key_dim() const { return keys.extent(3); }
  DECANT_HD index_t value_dim() const { return values.extent(3); }

  DECANT_HD index_t length(index_t s, index_t) const {
    const index_t used = indptr[s + 1] - indptr[s];
    return used == 0 ? 0 : (used - 1) * page_size() + last_page_len[s];
  }
  DECANT_HD T* key(index_t s, index_t h, index_t t) const {
    return &keys(page(s, t), h, t % page_size(), index_t{0});
  }
  DECANT_HD T* value(index_t s, index_t h, index_t t) const {
    return &values(page(s, t), h, t % page_size(), index_t{0});
  }
  DECANT_HD index_t run(index_t s, index_t h, index_t t) const {
    const index_t in_page = page_size() - t % page_size();
    const index_t left = length(s, h) - t;
    return in_page < left ? in_page : left;
  }
  DECANT_HD index_t key_stride() const { return keys.stride(2); }
  DECANT_HD index_t value_stride() const { return values.stride(2); }

 private:
  DECANT_HD index_t page(index_t s, index_t t) const { return indices[indptr[s] + t / page_size()]; }
};

template <class T>
void validate(const PagedKV<T>& c) {
  constexpr const char* where = "kv::PagedKV";
  detail::validate_storage(c.keys, c.values, where);
  require(c.page_size() >= 1, where, "keys", "a page size of at least 1", c.page_size());
  require_equal(c.indptr.extent(0), c.sequences() + 1, where, "indptr");
  require(c.indptr[0] == 0, where, "indptr", "0 at its beginning", c.indptr[0]);
  for (index_t s = 0; s < c.sequences(); ++s) {
    const index_t used = index_t{c.indptr[s + 1]} - c.indptr[s];
    require(used >= 0, where, "indptr", "values that never decrease", used);
    require(used == 0 || (c.last_page_len[s] >= 1 && c.last_page_len[s] <= c.page_size()), where, "last_page_len",
            [&] { return "1 to the page size of " + std::to_string(c.page_size()); }, c.last_page_len[s]);
  }
  const index_t total = c.indptr[c.sequences()];
  require(total <= c.indices.extent(0), where, "indices",
          [&] { return "at least indptr's last value, " + std::to_string(total); }, c.indices.extent(0));
  for (index_t i = 0; i < total; ++i) {
    require(c.indices[i] >= 0 && c.indices[i] < c.pages(), where, "indices",
            [&] { return "page ids below " + std::to_string(c.pages()); }, c.indices[i]);
  }
}

static_assert(CacheView<PagedKV<float>> && CacheView<PagedKV<const bf16>>);

}  // namespace decant::kv

#endif
