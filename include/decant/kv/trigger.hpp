// decant: triggers, when an engine should compress: after the prefill, every so many steps, or when a sequence outgrows
// its room. Plain values that an engine asks once per step; they keep no state.
#ifndef DECANT_KV_TRIGGER_HPP
#define DECANT_KV_TRIGGER_HPP

#include <concepts>

#include "../core/error.hpp"

namespace decant::kv {

/// Where a sequence stands. step 0 is the end of the prefill, step i > 0 the i-th decoded token.
struct Step {
  index_t step = 0;
  index_t cached = 0;  // tokens per head now
};

/// Whether to compress now.
template <class T>
concept Trigger = requires(const T& t, const Step& s) {
  { fires(t, s) } -> std::same_as<bool>;
};

struct OncePerPrefill {
  bool operator==(const OncePerPrefill&) const = default;
};

/// After the prefill and then every `steps` decoded tokens (CapKV: 512).
struct EverySteps {
  index_t steps = 512;
  bool operator==(const EverySteps&) const = default;
};

/// Whenever more than `tokens` are cached.
struct AboveCapacity {
  index_t tokens = 4096;
  bool operator==(const AboveCapacity&) const = default;
};

inline void validate(const OncePerPrefill&) {}
inline void validate(const EverySteps& t) { require(t.steps >= 1, "kv::EverySteps", "steps", "at least 1", t.steps); }
inline void validate(const AboveCapacity& t) {
  require(t.tokens >= 1, "kv::AboveCapacity", "tokens", "at least 1", t.tokens);
}

constexpr bool fires(const OncePerPrefill&, const Step& s) { return s.step == 0; }
constexpr bool fires(const EverySteps& t, const Step& s) { return s.step % t.steps == 0; }
constexpr bool fires(const AboveCapacity& t, const Step& s) { return s.cached > t.tokens; }

static_assert(Trigger<OncePerPrefill> && Trigger<EverySteps> && Trigger<AboveCapacity>);

}  // namespace decant::kv

#endif
