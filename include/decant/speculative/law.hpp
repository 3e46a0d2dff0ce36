// decant: what a draft was drawn from. A verifier is lossless only if it knows the law of the drafted tokens: a drafter
// that takes the likeliest token draws from a point mass, whatever its softmax says.
#ifndef DECANT_SPECULATIVE_LAW_HPP
#define DECANT_SPECULATIVE_LAW_HPP

#include <cstdint>

#include "../config.hpp"

namespace decant::speculative {

/// The law of the children of one node, given q, the draft distribution there.
enum class Law : std::uint8_t {
  chain,                ///< one child, drawn from q
  iid,                  ///< independent draws from q; the same token may come twice
  without_replacement,  ///< each drawn from q without the tokens before it, renormalised; stored in the order drawn
  greedy_plus_one,      ///< first a draw from q without its top K - 1 tokens, then those tokens, the likeliest first
  deterministic,        ///< no draw: top-k, n-grams, argmax
};

inline constexpr int laws = 5;

constexpr const char* name(Law law) {
  constexpr const char* names[] = {"chain", "iid", "without_replacement", "greedy_plus_one", "deterministic"};
  return names[static_cast<int>(law)];
}

/// Whether child i of a node is drawn at random, and not a point mass.
DECANT_HD constexpr bool sampled_child(Law law, std::int32_t i) {
  return law != Law::deterministic && (law != Law::greedy_plus_one || i == 0);
}

/// What became of one request. Anything but ok: nothing was emitted for it, and other requests are not affected.
enum class Status : std::int32_t {
  ok,
  bad_row,        ///< a NaN or an infinity among the values that were read, or a drafted token's chance below 0
  empty_support,  ///< a row without any mass
  wrong_law,      ///< a node's law that the verifier is not made for
  bad_tree,       ///< arrays that are no tree, tokens outside the vocabulary, rows outside the matrix
};

constexpr const char* name(Status status) {
  constexpr const char* names[] = {"ok", "bad_row", "empty_support", "wrong_law", "bad_tree"};
  return names[static_cast<int>(status)];
}

/// The last coordinate of Philox's counter: what a random number is for.
enum class Stream : std::uint32_t { draft, accept, emit, resample, mixture, gumbel };

}  // namespace decant::speculative

#endif
