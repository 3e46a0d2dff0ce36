// decant: rotary position embedding (Su et al., arXiv 2104.09864) as a value: pair f of a row is turned by the angle
// position * frequency(f). Angles are formed in double: at positions around 1e5 a float angle is off by 5e-3.
#ifndef DECANT_KV_ROPE_HPP
#define DECANT_KV_ROPE_HPP

#include <cmath>

#include "../core/view.hpp"

namespace decant::kv {

struct Rope {
  double theta = 10000.0;
  /// How many leading dims are rotated; 0: the whole head dim.
  index_t dim = 0;
  /// false: pair f is dims (f, f + dim / 2), the "rotate half" layout of Hugging Face; true: (2f, 2f + 1).
  bool interleaved = false;
  /// Frequencies per pair, when they are not theta^(-2f/dim): scaled RoPE variants. [dim / 2]
  View<const double, 1> frequencies{};

  DECANT_HD index_t rotary_dim(index_t head_dim) const { return dim == 0 ? head_dim : dim; }
  DECANT_HD double frequency(index_t pair, index_t head_dim) const {
    if (!frequencies.empty()) return frequencies[pair];
    return std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim(head_dim)));
  }
  /// Where the two members of a pair stand in the row.
  DECANT_HD index_t first(index_t pair) const { return interleaved ? 2 * pair : pair; }
  DECANT_HD index_t second(index_t pair, index_t head_dim) const {
    return interleaved ? 2 * pair + 1 : pair + rotary_dim(head_dim) / 2;
  }
};

inline void validate(const Rope& rope, index_t head_dim) {
  const index_t d = rope.rotary_dim(head_dim);
  require(d >= 0 && d <= head_dim && d % 2 == 0, "kv::Rope", "dim", "an even number up to the head dim", d);
  require(rope.theta > 0, "kv::Rope", "theta", "a positive number", rope.theta);
  require(rope.frequencies.empty() || rope.frequencies.extent(0) == d / 2, "kv::Rope", "frequencies",
          "one per pair", rope.frequencies.extent(0));
}

}  // namespace decant::kv

#endif
