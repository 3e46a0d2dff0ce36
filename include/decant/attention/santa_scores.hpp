// decant: attention::BernoulliQuery, scores q.k from a query that is rounded at random to few integer levels, so that
// features rounded to 0 need not be read (the score stage of SANTA, arXiv 2605.01910). Unbiased scores; softmax weights
// made of them are not, since exp is convex. Saves bytes only where a key feature's tokens lie together, hence a layout
// of its own. [ours] B stratified Bernoulli draws of a feature are one stochastic rounding; coupled group draws.
// A study object for decode: the paper loses accuracy below 4 draws on ternary models, below 8 on others.
#ifndef DECANT_ATTENTION_SANTA_SCORES_HPP
#define DECANT_ATTENTION_SANTA_SCORES_HPP

#include <cmath>
#include <cstdint>
#include <limits>

#include "../core/cpu.hpp"
#include "../core/detail/rounded.hpp"
#include "../core/detail/task_counter.hpp"
#include "../core/random.hpp"
#include "detail/dense_kernels.hpp"

namespace decant::attention {

/// How the query heads of a KV head share their draws: they read the union of their features.
enum class GroupDraws : unsigned char {
  mean_group,   // [paper] one draw for all heads, from the mean of |q|; heads scale it by their own q
  independent,  // [paper] each head by itself
  coupled,      // [ours] as independent, with one random number per feature: integer multiples of one step per head
};

struct BernoulliQuery {
  /// B: a feature is rounded to a multiple of norm / B, norm the largest |q| (of the mean, for mean_group).
  int draws = 8;
  /// true: one draw in each of B equal strata, the error falls as 1 / B. false: B independent draws, as 1 / sqrt(B).
  bool strata = true;
  GroupDraws group = GroupDraws::mean_group;
  /// What q.k is multiplied with; 0: 1 / sqrt(key_dim).
  float scale = 0;
  /// As in Santa; the random numbers are others.
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t layer = 0;

  bool operator==(const BernoulliQuery&) const = default;
};

inline void validate(const BernoulliQuery& a) {
  constexpr const char* where = "attention::BernoulliQuery";
  require(a.draws >= 1 && a.draws <= 65536, where, "draws", "1 to 65536", a.draws);
  require(a.group <= GroupDraws::coupled, where, "group", "one of GroupDraws", static_cast<int>(a.group));
  require(a.scale >= 0 && std::isfinite(a.scale), where, "scale", "a finite number of at least 0", a.scale);
  require(a.layer < 65536, where, "layer", "at most 65535", a.layer);
}

/// Keys in pages with the tokens of a feature together: keys [pages, kv_heads, key_dim, page_size], tokens at stride 1.
/// Sequence s owns the pages indices[indptr[s]] ... indices[indptr[s + 1] - 1], as in kv::PagedKV.
template <Storage T>
struct FeatureMajorKeys {
  View<const T, 4> keys;
  View<const std::int32_t, 1> indptr;         // [sequences + 1]
  View<const std::int32_t, 1> indices;        // [at least indptr[sequences]]
  View<const std::int32_t, 1> last_page_len;  // [sequences]

  DECANT_HD index_t sequences() const { return last_page_len.extent(0); }
  DECANT_HD index_t kv_heads() const { return keys.extent(1); }
  DECANT_HD index_t key_dim() const { return keys.extent(2); }
  DECANT_HD index_t page_size() const { return keys.extent(3); }
  DECANT_HD index_t pages(index_t s) const { return index_t{indptr[s + 1]} - indptr[s]; }
  DECANT_HD index_t length(index_t s) const {
    return pages(s) == 0 ? 0 : (pages(s) - 1) * page_size() + last_page_len[s];
  }
};

namespace detail {

/// What can be told without reading tables, which may be a device's.
template <class T>
void validate_shapes(const FeatureMajorKeys<T>& c) {
  constexpr const char* where = "attention::FeatureMajorKeys";
  require(c.kv_heads() >= 1 && c.key_dim() >= 1 && c.page_size() >= 1, where, "keys",
          "at least one head, feature, token", 0);
  require(c.keys.stride(3) == 1 || c.page_size() == 1, where, "keys", "stride 1 along the tokens", c.keys.stride(3));
  require_equal(c.indptr.extent(0), c.sequences() + 1, where, "indptr");
}

}  // namespace detail

template <class T>
void validate(const FeatureMajorKeys<T>& c) {
  constexpr const char* where = "attention::FeatureMajorKeys";
  detail::validate_shapes(c);
  require(c.indptr[0] == 0, where, "indptr", "0 at its beginning", c.indptr[0]);
  for (index_t s = 0; s < c.sequences(); ++s) {
    require(c.pages(s) >= 0, where, "indptr", "values that never decrease", c.pages(s));
    require(c.pages(s) == 0 || (c.last_page_len[s] >= 1 && c.last_page_len[s] <= c.page_size()), where, "last_page_len",
            "1 to the page size", c.last_page_len[s]);
  }
  require(c.indptr[c.sequences()] <= c.indices.extent(0), where, "indices", "as many as indptr says",
          c.indices.extent(0));
  for (index_t i = 0; i < c.indptr[c.sequences()]; ++i)
    require(c.indices[i] >= 0 && c.indices[i] < c.keys.extent(0), where, "indices", "page ids that exist",
            c.indices[i]);
}

namespace detail {

/// Not the numbers that Santa draws values with.
DECANT_HD inline Philox bernoulli_random(const BernoulliQuery& a) { return {a.seed ^ 0x426572'6e6f756cu}; }

/// How often a feature of probability pi is drawn in `draws` draws. words: of this feature's random numbers.
DECANT_HD inline int bernoulli_count(int draws, bool strata, double pi, Philox random, std::uint32_t feature,
                                     std::uint32_t step, std::uint32_t request, std::uint32_t stream) {
  if (strata) {
    const double expected = ::decant::detail::rounded_product(draws, pi);
    const double whole = std::floor(expected);
    const double u = random(feature, step, request, stream).word[0] * 0x1p-32;
    return static_cast<int>(whole) + (u < expected - whole ? 1 : 0);
  }
  int count = 0;
  for (int r = 0; r < draws; ++r) {
    const auto draw = feature | static_cast<std::uint32_t>(r) << 15;
    count += random(draw, step, request, stream).word[0] * 0x1p-32 < pi;
  }
  return count;
}

/// The factors of one group's features, [dim][group], with the scale in them; returns false where a query is not
/// finite.
template <class Q>
bool bernoulli_factors(const BernoulliQuery& a, float scale, const View<const Q, 3>& q, index_t sequence,
                       index_t first_head, index_t group, std::uint32_t step, std::uint32_t request, float* factors) {
  const Philox random = bernoulli_random(a);
  const index_t dim = q.extent(2);
  const auto at = [&](index_t g, index_t d) {
    return static_cast<double>(static_cast<float>(q(sequence, first_head + g, d)));
  };
  bool finite = true;
  for (index_t g = 0; g < group; ++g)
    for (index_t d = 0; d < dim; ++d) finite = finite && std::isfinite(at(g, d));
  if (!finite) return false;

  const bool mean = a.group == GroupDraws::mean_group;
  for (index_t g = 0; g < (mean ? 1 : group); ++g) {
    const auto size = [&](index_t d) {
      double sum = std::abs(at(g, d));
      for (index_t i = 1; mean && i < group; ++i) sum += std::abs(at(i, d));
      return mean ? sum / static_cast<double>(group) : sum;
    };
    double norm = 0;
    for (index_t d = 0; d < dim; ++d) norm = size(d) > norm ? size(d) : norm;
    const index_t leader = first_head + (a.group == GroupDraws::independent ? g : 0);
    const auto stream = a.layer << 16 | static_cast<std::uint32_t>(leader);
    for (index_t d = 0; d < dim; ++d) {
      const int count = norm == 0 ? 0
                                  : bernoulli_count(a.draws, a.strata, size(d) / norm, random,
                                                    static_cast<std::uint32_t>(d), step, request, stream);
      const double step_size = norm * count / a.draws;  // what |q| was rounded to
      if (mean) {
        for (index_t i = 0; i < group; ++i)
          factors[d * group + i] =
              count == 0 ? 0.0f : static_cast<float>(static_cast<double>(scale) * at(i, d) * (step_size / size(d)));
      } else {
        factors[d * group + g] = static_cast<float>(static_cast<double>(scale) * std::copysign(step_size, at(g, d)));
      }
    }
  }
  return true;
}

template <class Q, class T>
void validate_bernoulli_shapes(const View<Q, 3>& q, const FeatureMajorKeys<T>& keys, const View<float, 3>& out,
                               const View<const std::uint32_t, 1>& requests, const View<std::int32_t, 2>& features) {
  constexpr const char* where = "attention::bernoulli_scores";
  const index_t heads = keys.kv_heads(), dim = keys.key_dim(), sequences = keys.sequences();
  const index_t query_heads = q.extent(1);
  require_equal(q.extent(0), sequences, where, "q");
  require(
      query_heads >= heads && query_heads % heads == 0 && query_heads <= 65536, where, "q",
      [&] { return "a number of query heads that is a multiple of kv_heads = " + std::to_string(heads); }, query_heads);
  require_equal(q.extent(2), dim, where, "q");
  require(dim <= 32768, where, "q", "at most 32768 features", dim);
  require_equal(out.extent(0), sequences, where, "out");
  require_equal(out.extent(1), query_heads, where, "out");
  require(out.stride(2) == 1 || out.extent(2) <= 1, where, "out", "stride 1 along the tokens", out.stride(2));
  if (requests.data() != nullptr || requests.extent(0) != 0)
    require_equal(requests.extent(0), sequences, where, "requests");
  if (features.data() != nullptr || features.extent(0) != 0) {
    require_equal(features.extent(0), sequences, where, "features");
    require_equal(features.extent(1), heads, where, "features");
  }
}

}  // namespace detail

/// out[s, h, t] = an unbiased estimate of scale * q[s, h] . k_t for every token t of sequence s; what lies beyond is
/// left as it is. q: [sequences, query_heads, key_dim]; out: [sequences, query_heads, at least the longest length],
/// stride 1 along tokens. requests as for Santa. features: [sequences, kv_heads] or nothing: how many features were
/// read. A group with a NaN or an infinity in its queries gets NaN. The same bits for any batch, page size and number
/// of threads. Errors: ArgumentError on unequal shapes and whatever validate(keys) raises, before anything is written.
/// O(features read * length * group) for each KV head.
template <class Q, Storage T>
  requires Storage<Q>
void bernoulli_scores(Cpu& cpu, const BernoulliQuery& a, View<Q, 3> q, const FeatureMajorKeys<T>& keys,
                      View<float, 3> out, View<const std::uint32_t, 1> requests = {},
                      View<std::int32_t, 2> features = {}) {
  using namespace detail;
  constexpr const char* where = "attention::bernoulli_scores";
  validate(a);
  validate(keys);
  validate_bernoulli_shapes(q, keys, out, requests, features);
  const index_t heads = keys.kv_heads(), dim = keys.key_dim(), sequences = keys.sequences();
  const index_t query_heads = q.extent(1);
  for (index_t s = 0; s < sequences; ++s)
    require(keys.length(s) <= out.extent(2), where, "out", "room for every token", out.extent(2));

  const index_t group = query_heads / heads, page_size = keys.page_size();
  const index_t o_stride = (page_size + 15) / 16 * 16;
  const float scale = a.scale > 0 ? a.scale : 1.0f / std::sqrt(static_cast<float>(dim));
  const index_t tasks = sequences * heads;
  const index_t workers = cpu.parts(tasks, 1);
  const index_t blocks = (dim + dense_block - 1) / dense_block;
  const index_t floats = dim * group + blocks * dense_block * group + group * o_stride + group;
  Workspace::Scope scope(cpu.workspace());
  float* const all_floats = cpu.workspace().take<float>(workers * floats);
  index_t* const all_used = cpu.workspace().take<index_t>(workers * dim);
  const DenseKernels<T>& kernels = dense_kernels<T>(cpu.isa());
  decant::detail::TaskCounter next;
  cpu.parallel_for(workers, [&](index_t part) {
    float* const factors = all_floats + part * floats;        // [dim][group]
    float* const weights = factors + dim * group;             // [blocks][group][64], of the features that are read
    float* const o = weights + blocks * dense_block * group;  // [group][o_stride]
    float* const ones = o + group * o_stride;                 // [group]
    index_t* const used = all_used + part * dim;
    for (index_t g = 0; g < group; ++g) ones[g] = 1;
    for (index_t task = next.take(); task < tasks; task = next.take()) {
      const index_t s = task / heads, h = task % heads;
      const index_t length = keys.length(s);
      const std::uint32_t request = requests.empty() ? 0 : requests[s];
      const auto step = static_cast<std::uint32_t>(length) + a.step;
      const View<const Q, 3> queries = q;
      const bool finite = bernoulli_factors(a, scale, queries, s, h * group, group, step, request, factors);
      index_t count = 0;
      for (index_t d = 0; finite && d < dim; ++d) {
        bool any = false;
        for (index_t g = 0; g < group; ++g) any = any || factors[d * group + g] != 0;
        if (!any) continue;
        for (index_t g = 0; g < group; ++g)
          weights[(count / dense_block * group + g) * dense_block + count % dense_block] = factors[d * group + g];
        used[count++] = d;
      }
      if (features.data() != nullptr) features(s, h) = static_cast<std::int32_t>(count);
      for (index_t page = 0; page < keys.pages(s); ++page) {
        const index_t id = keys.indices[keys.indptr[s] + page];
        const index_t tokens = length - page * page_size < page_size ? length - page * page_size : page_size;
        for (index_t i = 0; i < group * o_stride; ++i) o[i] = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
        for (index_t first = 0; first < count; first += dense_block) {
          const T* rows[dense_block];
          const index_t some = count - first < dense_block ? count - first : dense_block;
          for (index_t j = 0; j < some; ++j) rows[j] = &keys.keys(id, h, used[first + j], index_t{0});
          kernels.values(weights + first * group, ones, group, rows, some, tokens, o, o_stride, {});
        }
        for (index_t g = 0; g < group; ++g)
          for (index_t t = 0; t < tokens; ++t) out(s, h * group + g, page * page_size + t) = o[g * o_stride + t];
      }
    }
  });
}

}  // namespace decant::attention

#endif
