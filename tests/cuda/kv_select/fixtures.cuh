// What the tests of selection share: scores that are given, scored layers and caches on both sides.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "decant/core/random.hpp"
#include "decant/kv/dense_kv.hpp"
#include "decant/kv/eviction.cuh"
#include "decant/kv/ragged_kv.hpp"
#include "device_memory.cuh"

/// A scorer as a user would add one: scores that came from elsewhere.
namespace users_engine {

template <class X>
__global__ void copy_given(const X x, decant::View<const float, 2> from, decant::View<float, 2> to) {
  const std::int64_t t = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (t < x.length(blockIdx.y) && t < to.extent(1)) to(blockIdx.y, t) = from(blockIdx.y, t);
}

struct Given {
  decant::View<const float, 2> scores;  // of the host for Cpu, of the device for Cuda
};
template <class X>
void score(decant::Cpu&, const Given& s, const X& x, decant::View<float, 2> scores) {
  for (std::int64_t h = 0; h < x.kv_heads(); ++h) {
    for (std::int64_t t = 0; t < x.length(h); ++t) scores(h, t) = s.scores(h, t);
  }
}
template <class X>
void score(decant::Cuda& cuda, const Given& s, const X& x, decant::View<float, 2> scores) {
  launch(cuda, "users_engine::Given", copy_given<X>,
         decant::CudaGrid{dim3(decant::cuda_blocks(scores.extent(1), 64), static_cast<unsigned>(x.kv_heads())),
                          dim3(64)},
         x, s.scores, scores);
}

}  // namespace users_engine

namespace cuda_test {

namespace kv = decant::kv;
using decant::View;
using users_engine::Given;

inline constexpr float inf = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// kind 0: continuous, 1: few values, infinities and both zeros, 2: all equal, 3: any finite bits.
inline float draw_score(std::uint32_t word, int kind) {
  constexpr float special[] = {0.0f, -0.0f, inf, -inf, 1.0f, -1.0f, 1e-42f, 2.0f};
  if (kind == 0) return decant::Philox::to_unit(word);
  if (kind == 1) return special[word % 8];
  if (kind == 2) return 0.25f;
  const float any = decant::bit_cast<float>(word);
  return any - any == 0 ? any : 0.0f;
}

/// Scores and protection of one layer, on the host; lengths differ between heads when `ragged`.
struct Scored {
  index_t heads, n, layer = 0, layers = 1;
  std::vector<float> scores;
  std::vector<std::uint8_t> keep;
  std::vector<std::int32_t> lengths;

  Scored(index_t h, index_t length, std::uint64_t seed, int kind = 0, bool ragged = false) : heads(h), n(length) {
    const decant::Philox rng{seed};
    for (index_t i = 0; i < h * length; ++i) {
      scores.push_back(draw_score(rng(static_cast<std::uint32_t>(i)).word[0], kind));
      keep.push_back(0);
    }
    for (index_t i = 0; i < h; ++i) {
      const std::uint32_t word = rng(static_cast<std::uint32_t>(i), 1).word[0];
      lengths.push_back(static_cast<std::int32_t>(ragged && i > 0 ? word % (length + 1) : length));
    }
  }
  void protect_some(std::uint64_t seed, std::uint32_t one_in) {
    for (std::size_t i = 0; i < keep.size(); ++i) {
      keep[i] = decant::Philox{seed}(static_cast<std::uint32_t>(i)).word[0] % one_in == 0 ? 1 : 0;
    }
  }
  kv::ScoredLayer view() {
    return {View<float, 2>(scores.data(), heads, n), View<std::uint8_t, 2>(keep.data(), heads, n), lengths, layer,
            layers};
  }
};

/// The same on the device.
struct DeviceScored {
  index_t heads, n, layer, layers;
  DeviceBuffer<float> scores;
  DeviceBuffer<std::uint8_t> keep;
  DeviceBuffer<std::int32_t> lengths;

  explicit DeviceScored(const Scored& s)
      : heads(s.heads), n(s.n), layer(s.layer), layers(s.layers), scores(s.scores), keep(s.keep), lengths(s.lengths) {}
  kv::ScoredLayer view() const {
    return {scores.view(heads, n), keep.view(heads, n), lengths.view(heads), layer, layers};
  }
};

/// A KeptView in device memory.
struct DeviceKept {
  index_t heads, capacity;
  DeviceBuffer<std::int32_t> indices, counts;

  DeviceKept(index_t h, index_t n)
      : heads(h),
        capacity(n),
        indices(std::vector<std::int32_t>(static_cast<std::size_t>(h * n), -7)),
        counts(std::vector<std::int32_t>(static_cast<std::size_t>(h), -7)) {}
  kv::KeptView view() const { return {indices.view(heads, capacity), counts.view(heads)}; }

  bool untouched() const {
    for (const std::int32_t i : indices.download()) {
      if (i != -7) return false;
    }
    for (const std::int32_t c : counts.download()) {
      if (c != -7) return false;
    }
    return true;
  }
  /// The kept tokens of every head.
  std::vector<std::vector<index_t>> tokens() const {
    const auto c = counts.download();
    const auto i = indices.download();
    std::vector<std::vector<index_t>> all;
    for (index_t h = 0; h < heads; ++h) {
      const auto first = i.begin() + h * capacity;
      all.emplace_back(first, first + c[static_cast<std::size_t>(h)]);
    }
    return all;
  }
};

inline std::vector<std::vector<index_t>> tokens(const kv::Kept& kept) {
  std::vector<std::vector<index_t>> all;
  for (index_t h = 0; h < kept.kv_heads(); ++h) {
    all.emplace_back();
    for (index_t i = 0; i < kept.count(h); ++i) all.back().push_back(kept.token(h, i));
  }
  return all;
}

/// A dense or a ragged cache of float rows with dims 4 and 2, on both sides; lengths as in `s`.
struct Layers {
  Scored& s;
  std::vector<float> keys, values;
  std::vector<index_t> offsets{0};
  std::vector<std::int32_t> length;  // of the dense cache's one sequence
  DeviceBuffer<float> d_keys, d_values, d_scores;
  DeviceBuffer<index_t> d_offsets;
  DeviceBuffer<std::int32_t> d_lengths, d_length;

  explicit Layers(Scored& scored)
      : s(scored),
        keys(static_cast<std::size_t>(s.heads * s.n * 4), 0.5f),
        values(static_cast<std::size_t>(s.heads * s.n * 2), 0.25f),
        length{s.lengths[0]},
        d_keys(keys),
        d_values(values),
        d_scores(s.scores),
        d_offsets(s.heads + 1),
        d_lengths(s.lengths),
        d_length(length) {
    for (index_t h = 0; h < s.heads; ++h) offsets.push_back((h + 1) * s.n);
    d_offsets.upload(offsets);
  }
  void upload() {
    d_keys.upload(keys);
    d_values.upload(values);
    d_scores.upload(s.scores);
    d_lengths.upload(s.lengths);
    d_length.upload(length);
  }
  template <class Cache>
  kv::LayerView<Cache> view(const Cache& cache) const {
    kv::LayerView<Cache> x{cache};
    x.layer = s.layer;
    x.layers = s.layers;
    return x;
  }
  auto dense() {
    return view(kv::DenseKV<float>{View<float, 4>(keys.data(), 1, s.heads, s.n, 4),
                                   View<float, 4>(values.data(), 1, s.heads, s.n, 2), length});
  }
  auto device_dense() const {
    return view(kv::DenseKV<float>{d_keys.view(1, s.heads, s.n, 4), d_values.view(1, s.heads, s.n, 2),
                                   d_length.view(1)});
  }
  auto ragged() {
    return view(kv::RaggedKV<float>{View<float, 2>(keys.data(), s.heads * s.n, 4),
                                    View<float, 2>(values.data(), s.heads * s.n, 2), offsets, s.lengths, s.heads});
  }
  auto device_ragged() const {
    auto x = view(kv::RaggedKV<float>{d_keys.view(s.heads * s.n, 4), d_values.view(s.heads * s.n, 2),
                                      d_offsets.view(s.heads + 1), d_lengths.view(s.heads), s.heads});
    x.longest = s.n;
    return x;
  }
  Given given() { return {View<const float, 2>(s.scores.data(), s.heads, s.n)}; }
  Given device_given() const { return {d_scores.view(s.heads, s.n)}; }
};

}  // namespace cuda_test
