// decant: Stack, one value per family: what an engine holds, checked to fit together. The first thing it checks is at
// compile time, in words; what depends on numbers it checks in validate(stack, ...), which an engine calls once per model.
// Families that an engine does not use stay at their plain member.
#ifndef DECANT_STACK_HPP
#define DECANT_STACK_HPP

#include <cmath>

#include "attention/dense.hpp"
#include "attention/policy.hpp"
#include "codec/policy.hpp"
#include "kv/eviction.hpp"
#include "kv/full.hpp"
#include "kv/visibility.hpp"
#include "scheduling/scheduler.hpp"
#include "speculative/policy.hpp"
#include "speculative/verifiers.hpp"

namespace decant {

/// KV rows are moved as the cache's element type says.
struct NoCodec {
  bool operator==(const NoCodec&) const = default;
};
/// Weights are used as the checkpoint stores them (quant::Plain).
struct AsStored {
  bool operator==(const AsStored&) const = default;
};
/// One token per step: nothing is drafted, verified, or given a draft length.
struct NoDrafter {
  bool operator==(const NoDrafter&) const = default;
};
struct NoVerifier {
  bool operator==(const NoVerifier&) const = default;
};
struct NoController {
  bool operator==(const NoController&) const = default;
};
/// Requests run one after another.
struct NoScheduler {
  bool operator==(const NoScheduler&) const = default;
};

namespace detail {

/// Whether what the verifier makes of the drafter's drafts has the target's law.
template <class Drafter, class Verifier>
constexpr bool fits_drafter() {
  if constexpr (std::same_as<Drafter, NoDrafter> || std::same_as<Verifier, NoVerifier>) {
    return true;
  } else {
    return speculative::lossless_for<Verifier, Drafter::law>;
  }
}

}  // namespace detail

/// Stack{kv::Speed{.depth = 0.75f}, kv::CapKV{}} names as many parts as are wanted, from the left; the rest is plain.
template <class Visibility = kv::FullVisibility, class Eviction = kv::Full, class Attention = attention::Dense,
          class Codec = NoCodec, class Weights = AsStored, class Drafter = NoDrafter, class Verifier = NoVerifier,
          class Controller = NoController, class Scheduler = NoScheduler>
struct Stack {
  static_assert(kv::VisibilityPolicy<Visibility>,
                "decant::Stack: the first part must be a visibility policy, as kv::FullVisibility or kv::Speed");
  static_assert(kv::KVEvictionPolicy<Eviction, Cpu>,
                "decant::Stack: the second part must be an eviction policy, as kv::Full, kv::SnapKV or kv::CapKV");
  static_assert(attention::AttentionPolicy<Attention, Cpu>,
                "decant::Stack: the third part must be an attention policy, as attention::Dense or attention::Santa");
  static_assert(std::same_as<Codec, NoCodec> || codec::KVCodec<Codec, Cpu>,
                "decant::Stack: the fourth part must be a KV codec, as codec::SplitZip<bf16>, or NoCodec");
  static_assert(std::same_as<Drafter, NoDrafter> || speculative::Drafter<Drafter>,
                "decant::Stack: the sixth part must be a drafter, as speculative::Ngram, or NoDrafter");
  static_assert(std::same_as<Drafter, NoDrafter> == std::same_as<Verifier, NoVerifier>,
                "decant::Stack: a drafter needs a verifier, and a verifier a drafter");
  static_assert(std::same_as<Controller, NoController> || speculative::DraftLengthController<Controller>,
                "decant::Stack: the eighth part must be a draft-length controller, as speculative::FixedLength, or "
                "NoController");
  static_assert(std::same_as<Scheduler, NoScheduler> || scheduling::Scheduler<Scheduler>,
                "decant::Stack: the ninth part must be a scheduler, as scheduling::Fcfs, or NoScheduler");
  static_assert(detail::fits_drafter<Drafter, Verifier>(),
                "decant::Stack: the verifier is not lossless for the drafter's law; a stack's output is the target's");

  Visibility visibility{};
  Eviction eviction{};
  Attention attention{};
  Codec codec{};
  Weights weights{};
  Drafter drafter{};
  Verifier verifier{};
  Controller controller{};
  Scheduler scheduler{};
  /// What the eviction policy may keep of every prompt.
  kv::Budget budget = kv::Budget::keep(1.0);
};

template <class V = kv::FullVisibility, class E = kv::Full, class A = attention::Dense, class C = NoCodec,
          class W = AsStored, class D = NoDrafter, class R = NoVerifier, class L = NoController, class S = NoScheduler>
Stack(V = {}, E = {}, A = {}, C = {}, W = {}, D = {}, R = {}, L = {}, S = {}, kv::Budget = kv::Budget::keep(1.0))
    -> Stack<V, E, A, C, W, D, R, L, S>;

/// Raises ArgumentError, naming the part, when a parameter makes no sense for a model of `layers` layers: SPEED's depth
/// must fall on a whole layer, since it is part of what identifies a cached prefix.
template <class V, class E, class A, class C, class W, class D, class R, class L, class S>
void validate(const Stack<V, E, A, C, W, D, R, L, S>& stack, index_t layers) {
  require(layers >= 1, "Stack", "layers", "at least 1", layers);
  validate(stack.visibility);
  if constexpr (requires { stack.visibility.depth; }) {
    const double lower = static_cast<double>(stack.visibility.depth) * static_cast<double>(layers);
    require(std::abs(lower - std::round(lower)) < 1e-4, "Stack", "visibility.depth",
            "a share that is a whole number of " + std::to_string(layers) + " layers", stack.visibility.depth);
  }
  validate(stack.attention);
  if constexpr (requires { validate(stack.codec); }) validate(stack.codec);
  validate(stack.budget);
}

}  // namespace decant

#endif
