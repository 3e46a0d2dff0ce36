// decant: the attention state (o, lse): what attention over some of the keys gives, in a form that can be joined with
// what it gives over the rest. States under merge() form a commutative monoid with the identity (0, -inf); split-KV,
// shared prefixes, tree attention and context parallelism are all merges. The algebra is that of online softmax
// (Milakov and Gimelshein, arXiv 1805.02867). lse is the natural logarithm of the sum of exp(logit), everywhere.
// Exact: identities and swapping the two sides change no bit. Sums are formed in double and rounded once.
#ifndef DECANT_ATTENTION_STATE_HPP
#define DECANT_ATTENTION_STATE_HPP

#include <cmath>
#include <limits>

#include "../core/cpu.hpp"
#include "../core/view.hpp"

namespace decant::attention {

/// The lse of no keys at all.
inline constexpr float empty_lse = -std::numeric_limits<float>::infinity();

/// States of a batch, as attend() writes them: o [queries, heads, value_dim], already normalised, lse [queries, heads].
template <class T>
struct State {
  View<T, 3> o;
  View<T, 2> lse;
};

/// The largest lse among parts, from which their weights are counted; start from empty_lse. NaN is passed over here and
/// comes out through merge_weight.
DECANT_HD inline float merge_reference(float reference, float lse) { return lse > reference ? lse : reference; }

/// The weight of a part with this lse, 1 at the reference. 0 means an empty part: its o must not be read into the sum.
DECANT_HD inline double merge_weight(float lse, float reference) {
  return lse == empty_lse ? 0.0 : std::exp(static_cast<double>(lse) - static_cast<double>(reference));
}

/// The lse of the whole from the sum of weights; empty_lse if all parts were empty.
DECANT_HD inline float merge_lse(double sum_of_weights, float reference) {
  if (sum_of_weights == 0) return empty_lse;
  return static_cast<float>(static_cast<double>(reference) + std::log(sum_of_weights));
}

namespace detail {

inline void validate_merge(View<const State<const float>, 1> parts, const State<float>& out) {
  constexpr const char* where = "attention::merge";
  for (int r = 0; r < 2; ++r) require_equal(out.lse.extent(r), out.o.extent(r), where, "out.lse");
  for (index_t p = 0; p < parts.extent(0); ++p) {
    for (int r = 0; r < 3; ++r) require_equal(parts[p].o.extent(r), out.o.extent(r), where, "parts");
    for (int r = 0; r < 2; ++r) require_equal(parts[p].lse.extent(r), out.lse.extent(r), where, "parts");
  }
}

}  // namespace detail

/// Joins any number of states over disjoint sets of keys: out = parts[0] + parts[1] + ... . No parts give the identity.
/// Shapes: all equal. `out` may be one of the parts, elsewhere they must not overlap. ArgumentError on unequal shapes.
/// Swapping two of two parts changes no bit; for more, the order changes the result by rounding (below 2e-7 relative).
/// A NaN in one (query, head) stays there. O(parts * queries * heads * value_dim); no workspace.
inline void merge(Cpu& cpu, View<const State<const float>, 1> parts, const State<float>& out) {
  detail::validate_merge(parts, out);
  const index_t queries = out.o.extent(0);
  const index_t heads = out.o.extent(1);
  const index_t dim = out.o.extent(2);
  const index_t rows = queries * heads;
  const index_t grain = 1 + 4096 / (1 + dim * parts.extent(0));
  auto work = [&](index_t first, index_t last, index_t) {
    for (index_t row = first; row < last; ++row) {
      const index_t q = row / heads;
      const index_t h = row % heads;
      float reference = empty_lse;
      for (index_t p = 0; p < parts.extent(0); ++p) reference = merge_reference(reference, parts[p].lse(q, h));
      double total = 0;
      for (index_t p = 0; p < parts.extent(0); ++p) total += merge_weight(parts[p].lse(q, h), reference);
      for (index_t d = 0; d < dim; ++d) {
        double sum = -0.0;  // the true identity of addition: -0 + x has the bits of x
        for (index_t p = 0; p < parts.extent(0); ++p) {
          const double w = merge_weight(parts[p].lse(q, h), reference);
          if (w != 0) sum += w * static_cast<double>(parts[p].o(q, h, d));
        }
        out.o(q, h, d) = total == 0 ? 0.0f : static_cast<float>(sum / total);
      }
      out.lse(q, h) = merge_lse(total, reference);
    }
  };
  cpu.parallel_ranges(rows, grain, work);
}

/// Joins two states.
inline void merge(Cpu& cpu, const State<const float>& a, const State<const float>& b, const State<float>& out) {
  const State<const float> parts[] = {a, b};
  merge(cpu, View<const State<const float>, 1>(parts, 2), out);
}

}  // namespace decant::attention

#endif
