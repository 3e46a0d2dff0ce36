// decant: the choices of a walk (walk.hpp) as production makes them: Philox, keyed by node, so that they do not depend
// on the order in which nodes are visited, nor on what else is in the batch.
#ifndef DECANT_SPECULATIVE_DETAIL_PHILOX_CHOICES_HPP
#define DECANT_SPECULATIVE_DETAIL_PHILOX_CHOICES_HPP

#include <cstdint>

#include "../keys.hpp"
#include "residual.hpp"

namespace decant::speculative::detail {

struct PhiloxChoices {
  DrawKey key{};

  DECANT_HD bool accept(double chance, std::int32_t node) const {
    return chance >= 1 || key.uniform(static_cast<std::uint32_t>(node), Stream::accept) < chance;
  }
  /// A token with the chance of its A; -1 where A has no mass.
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD std::int32_t emit(Rows& rows, const Residual<double>& residual, std::int32_t node) const {
    return rows.draw(residual, key.uniform(static_cast<std::uint32_t>(node), Stream::emit));
  }

  /// What plain decoding, a step per token, would draw `depth` steps later.
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD std::int32_t emit_next(Rows& rows, const Residual<double>& target, std::int32_t depth) const {
    DrawKey later = key;
    later.step += static_cast<std::uint32_t>(depth);
    return rows.draw(target, later.uniform(0, Stream::emit));
  }
};

/// The target's tokens by the race of Gumbel coupling, keyed by the step and the token alone.
struct RaceChoices : PhiloxChoices {
  DECANT_HD_AS_ARGUMENTS
  template <class Rows>
  DECANT_HD std::int32_t emit_next(Rows& rows, const Residual<double>& target, std::int32_t depth) const {
    DrawKey later = key;
    later.step += static_cast<std::uint32_t>(depth);
    return rows.race(target.node, later);
  }
};

}  // namespace decant::speculative::detail

#endif
