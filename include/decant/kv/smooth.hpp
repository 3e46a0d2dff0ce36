// decant: smoothers, the stage that pools scores along tokens, so that a token is kept for what its neighbours are
// worth (SnapKV, Li et al., arXiv 2404.14469). Direct taps in fp32, no sliding sum: it would drift. The average divides
// by the pool size also at the ends when the padding is zero, as kvpress does.
#ifndef DECANT_KV_SMOOTH_HPP
#define DECANT_KV_SMOOTH_HPP

#include "../core/cpu.hpp"
#include "stages.hpp"

namespace decant::kv {

/// What stands beyond the ends of a row: nothing (0 for the average, -inf for the maximum), the end's own value, or the
/// row mirrored about its end (without repeating it).
enum class Padding : std::uint8_t { zero, replicate, reflect };

/// Scores as they are.
struct NoSmoothing {
  bool operator==(const NoSmoothing&) const = default;
};

/// The mean of `size` neighbouring scores, centred; size odd, 1 to 31.
struct AvgPool {
  index_t size = 5;
  Padding padding = Padding::zero;
  bool operator==(const AvgPool&) const = default;
};

/// The maximum of `size` neighbouring scores, centred; size odd, 1 to 31. It makes plateaus: ties go to the lower
/// token.
struct MaxPool {
  index_t size = 7;
  Padding padding = Padding::zero;
  bool operator==(const MaxPool&) const = default;
};

namespace detail {

inline void validate_pool(index_t size, const char* where) {
  require(size >= 1 && size <= 31 && size % 2 == 1, where, "size", "an odd number from 1 to 31", size);
}

/// The index that stands for i in a row of n; -1 where there is nothing.
DECANT_HD constexpr index_t padded_index(index_t i, index_t n, Padding padding) {
  if (i >= 0 && i < n) return i;
  if (padding == Padding::zero || n == 0) return -1;
  if (padding == Padding::replicate) return i < 0 ? 0 : n - 1;
  if (n == 1) return 0;
  const index_t period = 2 * (n - 1);
  i = (i % period + period) % period;
  return i < n ? i : period - i;
}

/// Writes the row with `half` padded entries on either side.
inline void pad_row(const ScoredLayer& layer, index_t h, index_t half, Padding padding, float nothing, float* out) {
  const index_t n = layer.length(h);
  for (index_t i = -half; i < n + half; ++i) {
    const index_t from = padded_index(i, n, padding);
    *out++ = from < 0 ? nothing : layer.scores(h, from);
  }
}

/// Pools every row; Max: maximum, else mean.
template <bool Max>
void pool(Cpu& cpu, index_t size, Padding padding, const ScoredLayer& layer) {
  if (size == 1) return;
  const index_t half = size / 2;
  const index_t row = layer.scores.extent(1) + 2 * half;
  constexpr float nothing = Max ? -__builtin_huge_valf() : 0.0f;
  const float inverse = 1.0f / static_cast<float>(size);
  Workspace::Scope scope(cpu.workspace());
  float* const scratch = cpu.workspace().take<float>(cpu.parts(layer.kv_heads(), 1) * row);
  cpu.parallel_ranges(layer.kv_heads(), 1, [&](index_t first, index_t last, index_t part) {
    float* const in = scratch + part * row;
    for (index_t h = first; h < last; ++h) {
      pad_row(layer, h, half, padding, nothing, in);
      for (index_t t = 0; t < layer.length(h); ++t) {
        float v = in[t];
        for (index_t k = 1; k < size; ++k) v = Max ? (in[t + k] > v ? in[t + k] : v) : v + in[t + k];
        layer.scores(h, t) = Max ? v : v * inverse;
      }
    }
  });
}

}  // namespace detail

inline void validate(const NoSmoothing&) {}
inline void validate(const AvgPool& s) { detail::validate_pool(s.size, "kv::AvgPool"); }
inline void validate(const MaxPool& s) { detail::validate_pool(s.size, "kv::MaxPool"); }

inline void smooth(Cpu&, const NoSmoothing&, const ScoredLayer&) {}

/// O(kv_heads * n * size).
inline void smooth(Cpu& cpu, const AvgPool& s, const ScoredLayer& layer) {
  validate(s);
  detail::pool<false>(cpu, s.size, s.padding, layer);
}
inline void smooth(Cpu& cpu, const MaxPool& s, const ScoredLayer& layer) {
  validate(s);
  detail::pool<true>(cpu, s.size, s.padding, layer);
}

static_assert(Smoother<NoSmoothing, Cpu> && Smoother<AvgPool, Cpu> && Smoother<MaxPool, Cpu>);

}  // namespace decant::kv

#endif
