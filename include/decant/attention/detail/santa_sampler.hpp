// decant: SANTA's draws for the query heads of one KV head, from their weights over the keys to a list of value rows,
// ascending, with a weight for each head. Which keys are drawn how often is integer arithmetic (santa_draws.hpp).
#ifndef DECANT_ATTENTION_DETAIL_SANTA_SAMPLER_HPP
#define DECANT_ATTENTION_DETAIL_SANTA_SAMPLER_HPP

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "../../core/random.hpp"
#include "../../core/view.hpp"
#include "../santa_types.hpp"
#include "../state.hpp"
#include "santa_kernels.hpp"

namespace decant::attention::detail {

/// The keys that are sampled, and what their random numbers depend on beside Santa's own fields and the head.
struct SantaKeys {
  index_t first;   // a multiple of 64 and of the tile
  index_t blocks;  // of 64 keys
  index_t tile;
  std::uint32_t step;
  std::uint32_t request;
  std::uint32_t query_head;  // the group's first
};

/// One query head.
struct SantaHead {
  float reference;           // the largest logit
  bool nan;                  // a logit is NaN or +inf
  bool tiled;                // tiles are sampled one by one
  float limit;               // weights from here on are taken as they are
  std::uint64_t heavy;       // of the block at work: the keys from the limit on
  std::uint64_t drawn;       // and those that were drawn
  std::int64_t mass;         // the sum of all weights
  std::int64_t prefix;       // of the weights before the span at work that are sampled
  std::int64_t target;       // the next threshold, or none
  std::int64_t base;         // what the grid counts from
  index_t left;              // thresholds after target
  double unit[santa_spans];  // the weight of one draw in each span of the block at work
  SantaGrid grid;
  std::uint32_t stream;
  Philox4 words;
};

/// Memory for `group` heads over `blocks` blocks.
struct SantaMemory {
  float* w;               // [blocks][group][64], in: exp(logit - the block's largest), 0 where masked or past the end
  float* top;             // [blocks][group], in: the block's largest logit; NaN where one is NaN or +inf
  std::int32_t* counts;   // [group][64], of the block at work
  SantaHead* heads;       // [group]
  std::int64_t* sums;     // [group][spans]
  std::int64_t* tiles;    // [group][tiles]
  std::int64_t* rests;    // [tiles]
  std::int64_t* sorted;   // [tiles]
  std::int64_t* plain;    // [group][samples], plain only
  std::int32_t* budgets;  // [group][tiles]

  /// Bytes for one worker; `assign` null only counts.
  static index_t layout(const Santa& a, index_t group, index_t blocks, index_t tile, std::byte* memory,
                        SantaMemory* assign) {
    const index_t spans = blocks * santa_spans;
    const index_t tiles = (blocks * dense_block + tile - 1) / tile;
    index_t used = 0;
    const auto take = [&]<class T>(T*& to, index_t n) {
      if (assign) to = reinterpret_cast<T*>(memory + used);
      used += (n * index_t{sizeof(T)} + 63) / 64 * 64;
    };
    SantaMemory m{};
    take(m.w, blocks * group * dense_block);
    take(m.top, blocks * group);
    take(m.counts, group * dense_block);
    take(m.heads, group);
    take(m.sums, group * spans);
    take(m.tiles, group * tiles);
    take(m.rests, tiles);
    take(m.sorted, tiles);
    take(m.plain, a.scheme == SantaScheme::plain ? group * a.samples : 0);
    take(m.budgets, group * tiles);
    if (assign) *assign = m;
    return used;
  }
};

/// The tile length for a sequence of so many keys.
DECANT_HD constexpr index_t santa_tile(const Santa& a, index_t keys) {
  if (a.tile > 0) return a.tile;
  return keys <= 1536 ? 32 : keys <= 3072 ? 64 : 256;
}

/// The smallest float that is not below x, for 0 < x <= 2^62.
inline float float_from(std::int64_t x) {
  const auto nearest = static_cast<float>(x);
  constexpr float up = (std::numeric_limits<float>::max)();
  return static_cast<std::int64_t>(nearest) < x ? std::nextafter(nearest, up) : nearest;
}

class SantaSampler {
 public:
  SantaSampler(const Santa& a, Isa isa, index_t group) : a_(a), kernels_(santa_kernels(isa)), group_(group) {}

  /// Turns the blocks' exponentials into weights, and deals the samples out.
  void begin(const SantaMemory& memory, const SantaKeys& keys) {
    m_ = memory;
    keys_ = keys;
    spans_ = keys.blocks * santa_spans;
    tile_spans_ = keys.tile / santa_span;
    tiles_ = (spans_ + tile_spans_ - 1) / tile_spans_;
    for (index_t g = 0; g < group_; ++g) {
      SantaHead& h = m_.heads[g];
      h.prefix = 0;
      h.target = none;
      h.left = 0;
      h.tiled = false;
      h.limit = std::numeric_limits<float>::infinity();
      set_unit(h, 0, a_.samples > 0 ? 1.0 / static_cast<double>(a_.samples) : 0.0);
      const auto leader = keys.query_head + (a_.couple_group ? 0 : static_cast<std::uint32_t>(g));
      h.stream = a_.layer << 16 | leader;
      weigh(g);
      if (a_.samples > 0 && h.mass > 0) deal(g);
    }
  }

  /// rows.add(g, key, weight) for each row that head g has drawn, each head's in ascending order.
  template <class Rows>
  void each(Rows& rows) {
    for (index_t i = 0; i < group_ * dense_block; ++i) m_.counts[i] = 0;
    for (index_t b = 0; b < keys_.blocks; ++b) {
      for (index_t g = 0; g < group_; ++g) {
        pick(g, b);
        const SantaHead& h = m_.heads[g];
        for (std::uint64_t left = h.drawn | h.heavy; left != 0; left &= left - 1) {
          const int j = std::countr_zero(left);
          std::int32_t& count = m_.counts[g * dense_block + j];
          float weight = static_cast<float>(static_cast<double>(count) * h.unit[j / santa_span]);
          count = 0;
          if (h.heavy != 0 && ((h.heavy >> j) & 1) != 0) weight = heavy_weight(h, weights(b, g)[j]);
          rows.add(g, keys_.first + b * dense_block + j, weight);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t none = (std::numeric_limits<std::int64_t>::max)();

  float* weights(index_t b, index_t g) const { return m_.w + (b * group_ + g) * dense_block; }
  std::int64_t* sums(index_t g) const { return m_.sums + g * spans_; }

  std::uint32_t word(const SantaHead& h, index_t draw) const {
    return Philox{a_.seed}(static_cast<std::uint32_t>(draw), keys_.step, keys_.request, h.stream).word[0];
  }
  /// Where draws are many: four words of each block of numbers. Asked for s = 0, 1, 2 ...
  std::uint32_t next_word(SantaHead& h, index_t s) const {
    if (s % 4 == 0) h.words = Philox{a_.seed}(static_cast<std::uint32_t>(s / 4), keys_.step, keys_.request, h.stream);
    return h.words.word[s % 4];
  }

  void weigh(index_t g) {
    SantaHead& h = m_.heads[g];
    h.reference = empty_lse;
    h.mass = 0;
    h.nan = false;
    for (index_t b = 0; b < keys_.blocks; ++b) {
      const float top = m_.top[b * group_ + g];
      h.nan = h.nan || top != top;
      h.reference = merge_reference(h.reference, top);
    }
    if (h.nan) return;
    for (index_t b = 0; b < keys_.blocks; ++b) {
      const float top = m_.top[b * group_ + g];
      const float factor = top == empty_lse ? 0.0f : exp_portable(top - h.reference) * santa_one;
      std::int64_t* const to = sums(g) + b * santa_spans;
      kernels_.scale(weights(b, g), factor, to);
      for (int k = 0; k < santa_spans; ++k) h.mass += to[k];
    }
  }

  void deal(index_t g) {
    SantaHead& h = m_.heads[g];
    switch (a_.scheme) {
      case SantaScheme::plain: {
        std::int64_t* const all = m_.plain + g * a_.samples;
        for (index_t s = 0; s < a_.samples; ++s) all[s] = SantaGrid::first(next_word(h, s), h.mass, 1).at;
        heap_sort(all, a_.samples);
        h.left = a_.samples - 1;
        h.target = all[0];
        return;
      }
      case SantaScheme::stratified:
        h.grid = SantaGrid::first(0, h.mass, a_.samples);
        h.left = a_.samples - 1;
        h.target = stratum(h);
        return;
      case SantaScheme::systematic:
        start(h, word(h, 0), h.mass, a_.samples);
        return;
      case SantaScheme::flash:
      case SantaScheme::prop:
      case SantaScheme::prop_exact:
        deal_tiles(g);
        return;
      case SantaScheme::threshold_systematic:
        deal_light(g);
        return;
    }
  }

  /// The thresholds of `samples` samples over a mass from here on.
  void start(SantaHead& h, std::uint32_t offset, std::int64_t mass, index_t samples) const {
    h.grid = SantaGrid::first(offset, mass, samples);
    h.base = h.prefix;
    h.left = samples - 1;
    h.target = h.base + h.grid.at;
  }

  /// The threshold of stratum s = samples - 1 - left, whose lower end the grid stands at.
  std::int64_t stratum(SantaHead& h) const {
    const SantaGrid inside = SantaGrid::first(next_word(h, a_.samples - 1 - h.left), h.mass, a_.samples);
    return h.grid.at + inside.at + (h.grid.rest + inside.rest >= h.grid.unit ? 1 : 0);
  }

  void next(index_t g) const {
    SantaHead& h = m_.heads[g];
    if (h.left == 0) {
      h.target = none;
      return;
    }
    --h.left;
    if (a_.scheme == SantaScheme::plain) {
      h.target = m_.plain[(g + 1) * a_.samples - 1 - h.left];
      return;
    }
    h.grid.next();
    h.target = a_.scheme == SantaScheme::stratified ? stratum(h) : h.base + h.grid.at;
  }

  void deal_tiles(index_t g) {
    SantaHead& h = m_.heads[g];
    std::int64_t* const mass = m_.tiles + g * tiles_;
    std::int32_t* const budgets = m_.budgets + g * tiles_;
    index_t weighty = 0;
    for (index_t t = 0; t < tiles_; ++t) {
      const index_t end = (t + 1) * tile_spans_ < spans_ ? (t + 1) * tile_spans_ : spans_;
      mass[t] = 0;
      for (index_t i = t * tile_spans_; i < end; ++i) mass[t] += sums(g)[i];
      weighty += mass[t] > 0;
      budgets[t] = 0;
    }
    if (a_.scheme == SantaScheme::prop_exact && a_.samples < weighty) {
      start(h, word(h, 0), h.mass, a_.samples);
      return;
    }
    h.tiled = true;
    if (a_.scheme == SantaScheme::flash) {
      const index_t each = a_.samples > weighty ? a_.samples / weighty : 1;
      for (index_t t = 0; t < tiles_; ++t) budgets[t] = mass[t] > 0 ? static_cast<std::int32_t>(each) : 0;
      return;
    }
    index_t shared = a_.samples;
    if (a_.scheme == SantaScheme::prop_exact) {
      shared -= weighty;
      for (index_t t = 0; t < tiles_; ++t) budgets[t] = mass[t] > 0 ? 1 : 0;
    }
    santa_allot(shared, mass, h.mass, tiles_, budgets, m_.rests, m_.sorted);
  }

  static void set_unit(SantaHead& h, int first, double unit) {
    for (int k = first; k < santa_spans; ++k) h.unit[k] = unit;
  }

  /// Tile t, which begins at span k of the block at work.
  void enter_tile(index_t g, index_t t, int k) const {
    SantaHead& h = m_.heads[g];
    const index_t budget = m_.budgets[g * tiles_ + t];
    if (budget == 0) return;
    const std::int64_t mass = m_.tiles[g * tiles_ + t];
    start(h, word(h, keys_.first / keys_.tile + t), mass, budget);
    if (a_.scheme != SantaScheme::prop)
      set_unit(h, k, static_cast<double>(mass) / (static_cast<double>(h.mass) * static_cast<double>(budget)));
  }

  /// Finds the heavy keys: as long as a key has at least the mass per sample of those that are sampled, it is taken out
  /// of them, which lowers that mass. Then every sampled key is drawn at most once.
  void deal_light(index_t g) {
    SantaHead& h = m_.heads[g];
    std::int64_t light = h.mass;
    index_t heavy = 0;
    while (light > 0) {
      h.limit = float_from((light - 1) / (a_.samples - heavy) + 1);
      std::int64_t rest = 0;
      index_t found = 0;
      for (index_t b = 0; b < keys_.blocks; ++b) {
        std::int64_t* const to = sums(g) + b * santa_spans;
        found += std::popcount(kernels_.split(weights(b, g), h.limit, to));
        for (int k = 0; k < santa_spans; ++k) rest += to[k];
      }
      if (found == heavy) break;
      heavy = found;
      light = rest;
    }
    if (light == 0) return;
    const index_t samples = a_.samples - heavy;
    set_unit(h, 0, static_cast<double>(light) / (static_cast<double>(h.mass) * static_cast<double>(samples)));
    start(h, word(h, 0), light, samples);
  }

  static float heavy_weight(const SantaHead& h, float w) {
    return static_cast<float>(static_cast<double>(static_cast<std::int64_t>(w)) / static_cast<double>(h.mass));
  }

  /// The draws of a head in a block. As few branches as possible depend on where thresholds fall: they could not be
  /// predicted.
  void pick(index_t g, index_t b) {
    SantaHead& h = m_.heads[g];
    h.heavy = 0;
    h.drawn = 0;
    if (h.mass == 0) return;
    if (h.limit != std::numeric_limits<float>::infinity()) {
      std::int64_t unused[santa_spans];
      h.heavy = kernels_.split(weights(b, g), h.limit, unused);
    }
    const index_t span = b * santa_spans;
    if (!h.tiled) {
      pick_spans(g, b, 0, santa_spans);
    } else if (tile_spans_ % santa_spans == 0) {
      if (span % tile_spans_ == 0) enter_tile(g, span / tile_spans_, 0);
      pick_spans(g, b, 0, santa_spans);
    } else {
      set_unit(h, 0, h.unit[santa_spans - 1]);  // of the tile that reaches into this block
      for (int k = 0; k < santa_spans; ++k) {
        if ((span + k) % tile_spans_ == 0) enter_tile(g, (span + k) / tile_spans_, k);
        pick_spans(g, b, k, k + 1);
      }
    }
  }

  void pick_spans(index_t g, index_t b, int first, int last) {
    SantaHead& h = m_.heads[g];
    const float* const w = weights(b, g);
    if (a_.samples >= keys_.blocks * dense_block) {  // about one draw for each key: they are passed one by one
      for (int j = first * santa_span; j < last * santa_span; ++j) {
        h.prefix += w[j] >= h.limit ? 0 : static_cast<std::int64_t>(w[j]);
        if (h.target >= h.prefix) continue;
        h.drawn |= std::uint64_t{1} << j;
        for (; h.target < h.prefix; next(g)) ++m_.counts[g * dense_block + j];
      }
      return;
    }
    const std::int64_t* const sum = sums(g) + b * santa_spans;
    std::int64_t before[santa_spans] = {none, none, none, none};
    std::int64_t end = h.prefix;
    for (int k = first; k < last; ++k) {
      before[k] = end;
      end += sum[k];
    }
    while (h.target < end) {
      int k = first;
      for (int i = 1; i < santa_spans; ++i) k += i > first && h.target >= before[i];
      const int j = k * santa_span + kernels_.find(w + k * santa_span, h.limit, h.target - before[k]);
      ++m_.counts[g * dense_block + j];
      h.drawn |= std::uint64_t{1} << j;
      next(g);
    }
    h.prefix = end;
  }

  const Santa& a_;
  const SantaKernels& kernels_;
  SantaMemory m_{};
  index_t group_;
  SantaKeys keys_{};
  index_t spans_ = 0;
  index_t tile_spans_ = 0;
  index_t tiles_ = 0;
};

}  // namespace decant::attention::detail

#endif
