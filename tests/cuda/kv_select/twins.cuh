// The caches of the conformance suite, copied to the device byte for byte, unused rows and all.
#pragma once

#include <cstring>

#include "conformance/cache_fixtures.hpp"
#include "device_memory.cuh"

namespace cuda_test {

namespace kv = decant::kv;
using decant::View;

/// The same view over memory elsewhere.
template <class T, int Rank>
View<T, Rank> moved(const View<T, Rank>& view, const T* from, T* to) {
  index_t extents[Rank], strides[Rank];
  for (int r = 0; r < Rank; ++r) {
    extents[r] = view.extent(r);
    strides[r] = view.stride(r);
  }
  return View<T, Rank>(to + (view.data() - from), extents, strides);
}

template <class T>
std::vector<std::remove_const_t<T>> values_of(const View<T, 1>& view) {
  return {view.data(), view.data() + view.extent(0)};
}

/// A fixture's cache on the device, and the bytes of all of it.
template <class Fixture>
class Twin {
 public:
  using Cache = decltype(std::declval<Fixture&>().cache());
  using T = typename Cache::value_type;

  explicit Twin(Fixture& fixture)
      : host_(fixture.cache()),
        memory_(fixture.memory()),
        keys_(copy(memory_.first)),
        values_(copy(memory_.second)),
        tables_(tables(host_)) {
    for (const auto& table : tables_) device_tables_.emplace_back(table);
    if constexpr (requires { host_.offsets; }) offsets_.emplace_back(values_of(host_.offsets));
  }

  Cache cache() const {
    Cache c = host_;
    c.keys = moved(host_.keys, memory_.first.first, keys_.data());
    c.values = moved(host_.values, memory_.second.first, values_.data());
    if constexpr (requires { c.indptr; }) {
      c.indptr = table(0);
      c.indices = table(1);
      c.last_page_len = table(2);
    } else {
      c.lengths = table(0);
      if constexpr (requires { c.offsets; }) c.offsets = offsets_[0].view(offsets_[0].size());
    }
    return c;
  }
  void set_table(int which, const std::vector<std::int32_t>& values) {
    device_tables_[static_cast<std::size_t>(which)].upload(values);
  }

  std::vector<T> keys() const { return keys_.download(); }

  /// Every byte of the pools, and the lengths or tables.
  bool equals(const Fixture& fixture_now) const {
    Fixture& fixture = const_cast<Fixture&>(fixture_now);
    const auto memory = fixture.memory();
    const auto expected = tables(fixture.cache());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      auto got = device_tables_[i].download();
      got.resize(std::min(got.size(), expected[i].size()));  // a cut table's rest has no meaning
      if (got != expected[i]) return false;
    }
    return same(keys_, memory.first) && same(values_, memory.second);
  }

 private:
  using Memory = decltype(std::declval<Fixture&>().memory());

  static DeviceBuffer<T> copy(const std::pair<T*, index_t>& pool) {
    return DeviceBuffer<T>(std::vector<T>(pool.first, pool.first + pool.second));
  }
  static bool same(const DeviceBuffer<T>& device, const std::pair<T*, index_t>& host) {
    const auto got = device.download();
    return std::memcmp(got.data(), host.first, got.size() * sizeof(T)) == 0;
  }
  static std::vector<std::vector<std::int32_t>> tables(const Cache& c) {
    if constexpr (requires { c.indptr; }) {
      auto indices = values_of(c.indices);
      indices.resize(static_cast<std::size_t>(c.indptr[c.sequences()]));
      return {values_of(c.indptr), indices, values_of(c.last_page_len)};
    } else {
      return {values_of(c.lengths)};
    }
  }
  View<std::int32_t, 1> table(std::size_t which) const {
    return device_tables_[which].view(device_tables_[which].size());
  }

  Cache host_;
  Memory memory_;
  DeviceBuffer<T> keys_, values_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<DeviceBuffer<std::int32_t>> device_tables_;
  std::vector<DeviceBuffer<index_t>> offsets_;
};

/// Kept tokens on both sides; indices have room for `room` tokens.
struct KeptLists {
  index_t heads, room;
  std::vector<std::int32_t> indices, counts;
  DeviceBuffer<std::int32_t> d_indices, d_counts;

  KeptLists(const std::vector<std::vector<std::int32_t>>& lists, index_t capacity)
      : heads(static_cast<index_t>(lists.size())),
        room(capacity),
        indices(static_cast<std::size_t>(heads * room), 0),
        d_indices(heads * room),
        d_counts(heads) {
    for (std::size_t h = 0; h < lists.size(); ++h) {
      std::copy(lists[h].begin(), lists[h].end(), indices.begin() + static_cast<std::ptrdiff_t>(h) * room);
      counts.push_back(static_cast<std::int32_t>(lists[h].size()));
    }
    d_indices.upload(indices);
    d_counts.upload(counts);
  }
  kv::KeptView host() { return {View<std::int32_t, 2>(indices.data(), heads, room), counts}; }
  kv::KeptView device() const { return {d_indices.view(heads, room), d_counts.view(heads)}; }
};

/// About a share of the tokens of each head; `keep_start`: the first tokens stay; equal: as many of each head.
inline std::vector<std::vector<std::int32_t>> draw_lists(const std::vector<index_t>& lengths, double share,
                                                         index_t keep_start, bool equal, std::uint64_t seed) {
  std::vector<std::vector<std::int32_t>> lists;
  for (std::size_t h = 0; h < lengths.size(); ++h) {
    lists.emplace_back();
    for (index_t t = 0; t < lengths[h]; ++t) {
      const auto words = decant::Philox{seed}(static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(h));
      if (t < keep_start || decant::Philox::to_unit(words.word[0]) < share) {
        lists[h].push_back(static_cast<std::int32_t>(t));
      }
    }
  }
  if (equal) {
    std::size_t least = lists[0].size();
    for (const auto& list : lists) least = std::min(least, list.size());
    for (auto& list : lists) list.resize(least);
  }
  return lists;
}

}  // namespace cuda_test
