// decant: DrawKeys, where the random numbers of a batch come from: Philox at (node or position, step, request, stream),
// so that a request's numbers depend on nothing else in its batch, and are the same on every context.
#ifndef DECANT_SPECULATIVE_KEYS_HPP
#define DECANT_SPECULATIVE_KEYS_HPP

#include <cstdint>

#include "../core/random.hpp"
#include "../core/view.hpp"
#include "law.hpp"

namespace decant::speculative {

/// The numbers of one request in one step.
struct DrawKey {
  Philox random{};
  std::uint32_t request = 0;
  std::uint32_t step = 0;

  /// Uniform on [0, 1), 53 bits.
  DECANT_HD double uniform(std::uint32_t draw, Stream stream) const {
    return random.uniform_double(draw, step, request, static_cast<std::uint32_t>(stream));
  }
};

/// Of a batch. On a device both views are read there, so that a captured graph draws anew in every step.
struct DrawKeys {
  Philox random{};
  View<const std::uint32_t, 1> requests{};  ///< [trees]; empty: 0, 1, 2 ...
  View<const std::uint32_t, 1> steps{};     ///< [trees], or [1] for all; empty: 0. A step must not be used twice.

  DECANT_HD DrawKey at(index_t b) const {
    return {random, requests.empty() ? static_cast<std::uint32_t>(b) : requests[b],
            steps.empty() ? 0u : steps[steps.extent(0) == 1 ? 0 : b]};
  }
};

}  // namespace decant::speculative

#endif
