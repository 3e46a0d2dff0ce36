// decant: the concept of a verifier, and which compositions are lossless.
#ifndef DECANT_SPECULATIVE_POLICY_HPP
#define DECANT_SPECULATIVE_POLICY_HPP

#include <concepts>

#include "accepted.hpp"
#include "drafter.hpp"
#include "keys.hpp"
#include "law.hpp"
#include "tree.hpp"

namespace decant::speculative {

/// lossless: whether the emitted tokens have the target's law wherever accepts(law) holds for every node's law.
/// verify(): for every tree of the batch, from target rows and draft rows, what is emitted. ArgumentError, before
/// anything is written, for shapes; what only a request's data can show is its status, and leaves the others alone.
template <class V, class Ctx>
concept Verifier = std::copyable<V> && std::equality_comparable<V> &&
                   requires(Ctx& ctx, const V& v, const ForestView& trees, const ProbabilityRows& p,
                            const ProbabilityRows& q, const DrawKeys& keys, const Accepted& out, Law law) {
                     { V::lossless } -> std::convertible_to<bool>;
                     { V::accepts(law) } -> std::same_as<bool>;
                     validate(v);
                     verify(ctx, v, trees, p, q, keys, out);
                   };

/// Says that a composition is meant although its output does not have the target's law.
struct Lossy {};

/// Whether what verifier V makes of drafts by law L has the target's law.
template <class V, Law L>
inline constexpr bool lossless_for = V::lossless && V::accepts(L);

/// Compiles only for a verifier that is lossless for the drafter's law, or with Lossy as the third argument.
template <class D, class V, class Tag = void>
constexpr void require_lossless() {
  static_assert(V::lossless || std::same_as<Tag, Lossy>,
                "decant::speculative: this verifier changes the law of the output; name speculative::Lossy if that is "
                "meant");
  static_assert(V::accepts(D::law) || std::same_as<Tag, Lossy>,
                "decant::speculative: this verifier is not lossless for the drafter's law; choose one that accepts it, "
                "as speculative::UniVer");
}

}  // namespace decant::speculative

#endif
