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

/// What is left to do with a head's sums.
struct SantaEnd {
  float lse;
  double factor;  // of the output, below 1 where a sink has a part
};

/// mass: of all keys, counted from the logit `reference`. sinks: one logit per head, of a key more whose value is 0, or
/// nothing.
DECANT_HD inline SantaEnd santa_end(std::int64_t mass, float reference, const View<const float, 1>& sinks,
                                    index_t head) {
  if (mass == 0) reference = empty_lse;
  double total = static_cast<double>(mass) / static_cast<double>(santa_one);
  double factor = 1;
  if (sinks.data() != nullptr) {
    const float high = merge_reference(merge_reference(empty_lse, reference), sinks[head]);
    const double seen = total * merge_weight(reference, high);
    total = seen + merge_weight(sinks[head], high);
    factor = seen == total ? 1 : seen / total;
    reference = high;
  }
  return {merge_lse(total, reference), factor};
}

/// One query head.
struct SantaHead {
  float reference;           // the largest logit
  bool nan;                  // a logit is NaN or +inf
  bool tiled;                // tiles are sampled one by one
  float limit;               // weights from here on are taken as they are
  std::int64_t mass;         // the sum of all weights
  std::int64_t prefix;       // of the weights before the spans at work that are sampled
  std::int64_t target;       // the next threshold, or none
  std::int64_t base;         // what the grid counts from
  index_t left;              // thresholds after target
  double unit;               // the weight of one draw
  SantaGrid grid;
  std::uint32_t stream;
  Philox4 words;
};

/// Memory for `group` heads over `blocks` blocks.
struct SantaMemory {
  float* w;               // [blocks][group][64], in: exp(logit - the block's largest), 0 where masked or past the end
  float* top;             // [blocks][group], in: the block's largest logit; NaN where one is NaN or +inf. Then factors
  SantaHead* heads;       // [group]
  float* references;      // [group + 15]
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
    take(m.heads, group);
    take(m.references, group + 15);
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

/// Thresholds whose keys are looked for at a time.
inline constexpr int santa_batch = 64;

class SantaSampler {
 public:
  SantaSampler(const Santa& a, Isa isa, index_t group) : a_(a), kernels_(santa_kernels(isa)), group_(group) {}

  /// Finds what turns the blocks' exponentials into weights, and deals the samples out.
  void begin(const SantaMemory& memory, const SantaKeys& keys) {
    m_ = memory;
    keys_ = keys;
    spans_ = keys.blocks * santa_spans;
    tile_spans_ = keys.tile / santa_span;
    tiles_ = (spans_ + tile_spans_ - 1) / tile_spans_;
    for (index_t g = 0; g < group_; ++g) find_reference(g);
    for (index_t i = 0; i < group_ + 15; ++i) m_.references[i] = m_.heads[i % group_].reference;
    kernels_.factors(m_.top, keys.blocks * group_, m_.references, group_);
    for (index_t g = 0; g < group_; ++g) {
      SantaHead& h = m_.heads[g];
      h.prefix = 0;
      h.target = none;
      h.left = 0;
      h.tiled = false;
      h.limit = std::numeric_limits<float>::infinity();
      h.unit = a_.samples > 0 ? 1.0 / static_cast<double>(a_.samples) : 0.0;
      const auto leader = keys.query_head + (a_.couple_group ? 0 : static_cast<std::uint32_t>(g));
      h.stream = a_.layer << 16 | leader;
      h.mass = 0;
      if (!h.nan) weigh(g);
      if (a_.samples > 0 && h.mass > 0) deal(g);
    }
  }

  /// rows.add(g, key, weight) for each row that head g has drawn, each head's in ascending order.
  template <class Rows>
  void each(Rows& rows) {
    for (index_t first = 0; first < spans_; first += santa_stretch) {
      const index_t last = first + santa_stretch < spans_ ? first + santa_stretch : spans_;
      for (index_t g = 0; g < group_; ++g) {
        SantaHead& h = m_.heads[g];
        if (h.mass == 0) continue;
        for (index_t begin = first; begin < last;) {
          index_t end = last;
          if (h.tiled) {
            if (begin % tile_spans_ == 0) enter_tile(g, begin / tile_spans_);
            const index_t tile_end = (begin / tile_spans_ + 1) * tile_spans_;
            end = tile_end < last ? tile_end : last;
          }
          if (a_.samples >= keys_.blocks * dense_block) draw_by_keys(g, begin, end, rows);
          else draw(g, begin, end, rows);
          begin = end;
        }
      }
    }
  }

 private:
  static constexpr std::int64_t none = (std::numeric_limits<std::int64_t>::max)();

  const float* exponentials(index_t b, index_t g) const { return m_.w + (b * group_ + g) * dense_block; }
  float factor(index_t b, index_t g) const { return m_.top[b * group_ + g]; }
  std::int64_t* sums(index_t g) const { return m_.sums + g * spans_; }

  std::uint32_t word(const SantaHead& h, index_t draw) const {
    return Philox{a_.seed}(static_cast<std::uint32_t>(draw), keys_.step, keys_.request, h.stream).word[0];
  }
  /// Where draws are many: four words of each block of numbers. Asked for s = 0, 1, 2 ...
  std::uint32_t next_word(SantaHead& h, index_t s) const {
    if (s % 4 == 0) h.words = Philox{a_.seed}(static_cast<std::uint32_t>(s / 4), keys_.step, keys_.request, h.stream);
    return h.words.word[s % 4];
  }

  void find_reference(index_t g) {
    SantaHead& h = m_.heads[g];
    h.reference = empty_lse;
    h.nan = false;
    for (index_t b = 0; b < keys_.blocks; ++b) {
      const float top = m_.top[b * group_ + g];
      h.nan = h.nan || top != top;
      h.reference = merge_reference(h.reference, top);
    }
  }

  void weigh(index_t g) {
    SantaHead& h = m_.heads[g];
    for (index_t b = 0; b < keys_.blocks; ++b) {
      std::int64_t* const to = sums(g) + b * santa_spans;
      kernels_.weigh(exponentials(b, g), factor(b, g), to);
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

  /// The next thresholds below `end`, at most santa_batch, counted from the head's prefix; returns how many.
  int take(index_t g, std::int64_t end, std::int64_t* targets) const {
    SantaHead& h = m_.heads[g];
    int n = 0;
    if (a_.scheme == SantaScheme::plain || a_.scheme == SantaScheme::stratified) {
      for (; h.target < end && n < santa_batch; next(g)) targets[n++] = h.target - h.prefix;
      return n;
    }
    SantaGrid grid = h.grid;  // in registers: each threshold waits for the one before
    index_t left = h.left;
    std::int64_t target = h.target;
    for (; target < end && n < santa_batch; --left) {
      targets[n++] = target - h.prefix;
      grid.next();
      target = left == 0 ? none : h.base + grid.at;
    }
    h.grid = grid;
    h.left = left;
    h.target = target;
    return n;
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

  void enter_tile(index_t g, index_t t) const {
    SantaHead& h = m_.heads[g];
    const index_t budget = m_.budgets[g * tiles_ + t];
    if (budget == 0) return;
    const std::int64_t mass = m_.tiles[g * tiles_ + t];
    start(h, word(h, keys_.first / keys_.tile + t), mass, budget);
    if (a_.scheme != SantaScheme::prop)
      h.unit = static_cast<double>(mass) / (static_cast<double>(h.mass) * static_cast<double>(budget));
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
        found += std::popcount(kernels_.split(exponentials(b, g), factor(b, g), h.limit, to));
        for (int k = 0; k < santa_spans; ++k) rest += to[k];
      }
      if (found == heavy) break;
      heavy = found;
      light = rest;
    }
    if (light == 0) return;
    const index_t samples = a_.samples - heavy;
    h.unit = static_cast<double>(light) / (static_cast<double>(h.mass) * static_cast<double>(samples));
    start(h, word(h, 0), light, samples);
  }

  /// Names a head's rows, those that are taken as they are between those that were drawn.
  template <class Rows>
  struct Named {
    SantaSampler& sampler;
    Rows& rows;
    index_t g;
    index_t begin, end;        // keys
    index_t heavy;             // the next that is taken as it is, or end
    index_t block;             // of `bits`
    std::uint64_t bits;        // the block's heavy keys from there on

    Named(SantaSampler& of, index_t head, index_t first, index_t last, Rows& to)
        : sampler(of), rows(to), g(head), begin(first * santa_span), end(last * santa_span), heavy(end),
          block(first / santa_spans), bits(0) {
      if (limited()) find_heavy();
    }
    bool limited() const { return sampler.m_.heads[g].limit != std::numeric_limits<float>::infinity(); }

    void find_heavy() {
      const SantaHead& h = sampler.m_.heads[g];
      std::int64_t unused[santa_spans];
      for (; block * dense_block < end; ++block) {
        bits = sampler.kernels_.split(sampler.exponentials(block, g), sampler.factor(block, g), h.limit, unused);
        if (bits != 0) return set_heavy();
      }
      heavy = end;
    }
    void set_heavy() { heavy = block * dense_block + std::countr_zero(bits); }

    void add_heavy() {
      const SantaHead& h = sampler.m_.heads[g];
      const std::int64_t w =
          santa_weight(sampler.exponentials(block, g)[heavy % dense_block], sampler.factor(block, g));
      rows.add(g, sampler.keys_.first + heavy, static_cast<float>(static_cast<double>(w) / static_cast<double>(h.mass)));
      bits &= bits - 1;
      if (bits != 0) return set_heavy();
      ++block;
      find_heavy();
    }

    DECANT_INLINE void add(index_t key, std::int32_t count) {
      while (heavy < key) add_heavy();
      rows.add(g, sampler.keys_.first + key,
               static_cast<float>(static_cast<double>(count) * sampler.m_.heads[g].unit));
    }
    void finish() {
      while (heavy < end) add_heavy();
    }
  };

  /// The draws of a head in spans [first, last), of one tile if tiles are sampled one by one. Thresholds first, then
  /// their keys, so that as few branches as possible depend on where they fall: those cannot be predicted.
  template <class Rows>
  void draw(index_t g, index_t first, index_t last, Rows& rows) {
    SantaHead& h = m_.heads[g];
    Named<Rows> named(*this, g, first, last, rows);
    std::int64_t end = h.prefix;
    for (index_t i = first; i < last; ++i) end += sums(g)[i];
    const SantaStretch stretch{exponentials(0, g), group_ * dense_block, m_.top + g,   group_,
                               sums(g),            first,                last - first, h.limit};
    index_t key = none;
    std::int32_t count = 0;
    while (h.target < end) {
      std::int64_t targets[santa_batch];
      std::int32_t keys[santa_batch];
      const int n = take(g, end, targets);
      kernels_.locate(stretch, targets, n, keys);
      for (int i = 0; i < n; ++i, ++count) {
        if (keys[i] == key) continue;
        if (count > 0) named.add(first * santa_span + key, count);
        key = keys[i];
        count = 0;
      }
    }
    if (count > 0) named.add(first * santa_span + key, count);
    named.finish();
    h.prefix = end;
  }

  /// The same where there is about one draw for each key: keys are passed one by one.
  template <class Rows>
  void draw_by_keys(index_t g, index_t first, index_t last, Rows& rows) {
    SantaHead& h = m_.heads[g];
    Named<Rows> named(*this, g, first, last, rows);
    for (index_t key = first * santa_span; key < last * santa_span; ++key) {
      const index_t b = key / dense_block;
      const float w = santa_product(exponentials(b, g)[key % dense_block], factor(b, g));
      h.prefix += w >= h.limit ? 0 : static_cast<std::int64_t>(w);
      std::int32_t count = 0;
      for (; h.target < h.prefix; next(g)) ++count;
      if (count > 0) named.add(key, count);
    }
    named.finish();
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
