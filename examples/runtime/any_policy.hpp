// Policies that are chosen when the program runs: variants of decant's policy values, which are policies themselves by
// visiting what they hold. Parsed from text such as "speed:0.75", "capkv:0.25", "streaming:256t" or "santa:n/16".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <decant/attention/dense.hpp>
#include <decant/attention/santa.hpp>
#include <decant/kv/policies.hpp>
#include <decant/kv/visibility.hpp>
#include <decant/stack.hpp>

#include "config.hpp"

namespace runtime {

namespace attention = decant::attention;
namespace kv = decant::kv;
using decant::View;

// --- visibility
// --------------------------------------------------------------------------------------------------------

struct AnyVisibility {
  std::variant<kv::FullVisibility, kv::Speed> policy;
  bool operator==(const AnyVisibility&) const = default;
};

inline void validate(const AnyVisibility& v) {
  std::visit([](const auto& p) { validate(p); }, v.policy);
}
inline bool visible(const AnyVisibility& v, index_t layer, index_t layers, index_t token, index_t prompt) {
  return std::visit([&](const auto& p) { return visible(p, layer, layers, token, prompt); }, v.policy);
}
inline bool computed(const AnyVisibility& v, index_t layer, index_t layers, index_t token, index_t prompt) {
  return std::visit([&](const auto& p) { return computed(p, layer, layers, token, prompt); }, v.policy);
}
inline index_t kv_length(const AnyVisibility& v, index_t layer, index_t layers, index_t prompt, index_t decoded) {
  return std::visit([&](const auto& p) { return kv_length(p, layer, layers, prompt, decoded); }, v.policy);
}
static_assert(kv::VisibilityPolicy<AnyVisibility>);

// --- eviction
// ----------------------------------------------------------------------------------------------------------

struct AnyEviction {
  std::variant<kv::Full, kv::StreamingLLM, kv::H2O, kv::SnapKV, kv::TOVA, kv::KNorm, kv::KeyDiff, kv::ExpectedAttention,
               kv::PyramidKV, kv::AdaKV, kv::CapKV, kv::Random>
      policy;
};

template <class C, class Q>
void select(decant::Cpu& cpu, const AnyEviction& e, const kv::LayerView<C, Q>& layer, const kv::Budget& budget,
            kv::KeptView kept) {
  std::visit([&](const auto& p) { kv::select(cpu, p, layer, budget, kept); }, e.policy);
}
template <class C, class Q>
void select(decant::Cpu& cpu, const AnyEviction& e, View<const kv::LayerView<C, Q>, 1> layers, const kv::Budget& budget,
            View<kv::KeptView, 1> kept) {
  std::visit([&](const auto& p) { kv::select(cpu, p, layers, budget, kept); }, e.policy);
}
inline bool needs_whole_model(const AnyEviction& e) {
  return std::visit([]<class P>(const P&) { return kv::scope_of<P> == kv::Scope::model; }, e.policy);
}

/// The eviction policies by the names that command lines give them.
inline const std::vector<std::pair<std::string, AnyEviction>>& known_evictions() {
  static const std::vector<std::pair<std::string, AnyEviction>> known = {
      {"full", {kv::Full{}}},         {"streaming", {kv::StreamingLLM{}}},
      {"h2o", {kv::H2O{}}},           {"snapkv", {kv::SnapKV{}}},
      {"tova", {kv::TOVA{}}},         {"knorm", {kv::KNorm{}}},
      {"keydiff", {kv::KeyDiff{}}},   {"expected", {kv::ExpectedAttention{}}},
      {"pyramid", {kv::PyramidKV{}}}, {"ada", {kv::AdaKV{}}},
      {"capkv", {kv::CapKV{}}},       {"random", {kv::Random{}}},
  };
  return known;
}

// --- attention
// ---------------------------------------------------------------------------------------------------------

/// SANTA with a number of samples, or one that grows with the keys.
struct SampledAttention {
  attention::Santa santa;
  double per_key = 0;  // above 0: that many samples for each key of the longest head, rounded up, instead of santa's
  bool operator==(const SampledAttention&) const = default;
};

struct AnyAttention {
  std::variant<attention::Dense, SampledAttention> policy;

  static constexpr double error_bound = attention::Santa::error_bound;  // the largest of its alternatives'
  bool operator==(const AnyAttention&) const = default;
};

namespace detail {

/// The policy of decant's that attends to `cache`.
template <class C>
const attention::Dense& over(const attention::Dense& a, const C&) {
  return a;
}
template <class C>
attention::Santa over(const SampledAttention& a, const C& cache) {
  attention::Santa santa = a.santa;
  if (a.per_key > 0) {
    index_t keys = 0;
    for (index_t s = 0; s < cache.sequences(); ++s) keys = std::max(keys, kv::max_length(cache, s));
    // Less what rounding may have added, so that n/49 of 98 keys is 2.
    santa.samples = static_cast<index_t>(std::ceil(a.per_key * static_cast<double>(keys) * (1 - 1e-12)));
  }
  return santa;
}

}  // namespace detail

inline void validate(const SampledAttention& a) {
  validate(a.santa);
}
inline void validate(const AnyAttention& a) {
  std::visit([](const auto& p) { validate(p); }, a.policy);
}
template <class Q, kv::CacheView C, class... Rest>
void attend(decant::Cpu& cpu, const AnyAttention& a, const Q& q, const C& cache, View<float, 3> out,
            const Rest&... rest) {
  std::visit([&](const auto& p) { attend(cpu, detail::over(p, cache), q, cache, out, rest...); }, a.policy);
}
/// For Llama: Dense computes prompts, too; others decode only.
inline attention::Dense for_prompts(const AnyAttention& a) {
  if (const auto* dense = std::get_if<attention::Dense>(&a.policy)) return *dense;
  const attention::Santa& santa = std::get<SampledAttention>(a.policy).santa;
  return {.scale = santa.scale, .soft_cap = santa.soft_cap};
}
/// For Llama: random numbers differ from layer to layer; from token to token they do by themselves.
inline AnyAttention in_layer(AnyAttention a, index_t layer) {
  if (auto* sampled = std::get_if<SampledAttention>(&a.policy)) {
    sampled->santa.layer = static_cast<std::uint32_t>(layer);
  }
  return a;
}
static_assert(attention::AttentionPolicy<AnyAttention, decant::Cpu>);

// --- a composition
// -----------------------------------------------------------------------------------------------------

/// decant::Stack with its first parts chosen at run time.
struct AnyStack {
  AnyVisibility visibility;
  AnyEviction eviction;
  AnyAttention attention;
  kv::Budget budget = kv::Budget::keep(1);
};

inline void validate(const AnyStack& stack, index_t layers) {
  // Stack's own checks, with the visibility that is held.
  std::visit(
      [&](const auto& v) {
        validate(decant::Stack{v, kv::Full{}, stack.attention}, layers);
      },
      stack.visibility.policy);
  validate(stack.budget);
}

/// A stack and the text that it came from, in one spelling: "full", "evict=capkv:0.25",
/// "visibility=speed:0.75 evict=capkv:0.25 attention=santa:n/16".
struct Composition {
  std::string text;
  AnyStack stack;
  std::string weights = "stored";  // or how they are packed: a name that find_recipe() knows, or a search for widths
};

namespace detail {

inline std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text + separators[0]) {
    if (std::string(separators).find(c) == std::string::npos)
      part += c;
    else if (!part.empty())
      parts.push_back(std::exchange(part, {}));
  }
  return parts;
}

/// ArgumentError: what `text` should have been.
[[noreturn]] inline void refuse(const char* what, const std::string& expected, const std::string& text) {
  throw decant::ArgumentError(decant::detail::describe("runtime", what, expected, "\"" + text + "\""));
}

/// The whole text as a number of at least 0; ArgumentError naming `what` otherwise.
inline double parse_number(const std::string& text, const char* what, const std::string& expected) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool ok = !text.empty() && end == text.c_str() + text.size() && value >= 0 && value < 1e15 &&
                  text.find_first_not_of("0123456789.eE+-") == std::string::npos;
  if (!ok) refuse(what, expected, text);
  return value;
}

}  // namespace detail

/// "full", or "speed" with a share of layers and, where the checkpoint does not say, what becomes of the pivot:
/// "speed:0.75", "speed:0.75:keep". Anchors and pivot are what the checkpoint was tuned with.
inline AnyVisibility parse_visibility(const std::string& text, const Config& config) {
  const std::vector<std::string> parts = detail::split(text, ":");
  const std::string name = parts.empty() ? "" : parts[0];
  if (name == "full" && parts.size() == 1) return {kv::FullVisibility{}};
  if (name != "speed" || parts.size() > 3) {
    detail::refuse("visibility", "one of: full, speed[:DEPTH[:transient|keep]]", text);
  }
  kv::Speed speed;
  if (!config.speed.pivot.empty()) {
    speed.depth = static_cast<float>(config.speed.depth);
    speed.anchors = config.speed.anchors;
    speed.pivot = config.speed.pivot == "keep" ? kv::Pivot::keep : kv::Pivot::transient;
  }
  if (parts.size() > 1) {
    speed.depth = static_cast<float>(detail::parse_number(parts[1], "visibility", "a share of layers, as speed:0.75"));
  }
  if (parts.size() > 2) {
    if (parts[2] != "transient" && parts[2] != "keep") {
      detail::refuse("visibility", "a pivot that is transient or keep", text);
    }
    if (!config.speed.pivot.empty() && config.speed.pivot != parts[2]) {
      detail::refuse("visibility", "the pivot that the checkpoint was tuned with, " + config.speed.pivot, text);
    }
    speed.pivot = parts[2] == "keep" ? kv::Pivot::keep : kv::Pivot::transient;
  }
  return {speed};
}

/// What is kept: "0.25" is a share of the prompt, "256t" that many tokens per head.
inline kv::Budget parse_budget(const std::string& text) {
  const char* expected = "a share from 0 to 1, or a number of tokens such as 256t";
  if (!text.empty() && text.back() == 't') {
    const double tokens = detail::parse_number(text.substr(0, text.size() - 1), "budget", expected);
    if (tokens != static_cast<double>(static_cast<index_t>(tokens))) detail::refuse("budget", expected, text);
    return kv::Budget::tokens(static_cast<index_t>(tokens));
  }
  const double share = detail::parse_number(text, "budget", expected);
  if (share > 1) detail::refuse("budget", expected, text);
  return kv::Budget::keep(share);
}

inline std::string eviction_names() {
  std::string names;
  for (const auto& [name, policy] : known_evictions()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

/// "full", or a name and a budget: "capkv:0.25".
inline std::pair<AnyEviction, kv::Budget> parse_eviction(const std::string& text) {
  const std::vector<std::string> parts = detail::split(text, ":");
  for (const auto& [name, policy] : known_evictions()) {
    if (parts.empty() || parts[0] != name) continue;
    if (name == "full") {
      if (parts.size() > 1) detail::refuse("evict", "full, which has no budget", text);
      return {policy, kv::Budget::keep(1)};
    }
    if (parts.size() != 2) detail::refuse("evict", name + ":BUDGET, as " + name + ":0.25 or " + name + ":256t", text);
    return {policy, parse_budget(parts[1])};
  }
  detail::refuse("evict", "one of: " + eviction_names() + ", with a budget as in streaming:0.25", text);
}

/// Samples of SANTA: "128" of them, or as many for each key as "n/16", "n" or "64n" say of n keys.
inline SampledAttention parse_samples(const std::string& text) {
  const char* expected = "a whole number of samples from 1 to 1048576, or one for n keys as n/16, n or 64n";
  const std::size_t n = text.find('n');
  const auto above_zero = [&](const std::string& part) {
    const double value = detail::parse_number(part, "attention", expected);
    if (!(value > 0)) detail::refuse("attention", expected, text);
    return value;
  };
  SampledAttention a;
  if (n == std::string::npos) {
    const double samples = above_zero(text);
    if (samples != std::floor(samples) || samples > 1 << 20) detail::refuse("attention", expected, text);
    a.santa.samples = static_cast<index_t>(samples);
    return a;
  }
  const std::string before = text.substr(0, n);
  const std::string after = text.substr(n + 1);
  if ((!after.empty() && after[0] != '/') || (!before.empty() && !after.empty()))
    detail::refuse("attention", expected, text);
  a.per_key = !before.empty() ? above_zero(before) : after.empty() ? 1 : 1 / above_zero(after.substr(1));
  if (a.per_key > 1 << 20) detail::refuse("attention", expected, text);
  return a;
}

/// SANTA's schemes, called on command lines as name() calls them.
inline constexpr attention::SantaScheme known_schemes[] = {
    attention::SantaScheme::plain,      attention::SantaScheme::stratified,
    attention::SantaScheme::systematic, attention::SantaScheme::flash,
    attention::SantaScheme::prop,       attention::SantaScheme::prop_exact,
    attention::SantaScheme::threshold_systematic};

inline std::string scheme_names() {
  std::string names;
  for (const auto scheme : known_schemes) names += (names.empty() ? "" : ", ") + std::string(name(scheme));
  return names;
}

/// "dense", or "santa:SAMPLES" with the default scheme or another, as "santa:128" or "santa:n/16,stratified". seed: of
/// its random numbers.
inline AnyAttention parse_attention(const std::string& text, std::uint64_t seed = 0) {
  if (text == "dense") return {};
  const std::string santa = "santa:";
  if (text.compare(0, santa.size(), santa) != 0)
    detail::refuse("attention", "dense, or santa:SAMPLES[,SCHEME] as santa:128 or santa:n/16,stratified", text);
  const std::size_t comma = text.find(',');
  SampledAttention a = parse_samples(text.substr(santa.size(), comma - santa.size()));
  a.santa.seed = seed;
  if (comma == std::string::npos) return {a};
  for (const auto scheme : known_schemes) {
    if (text.substr(comma + 1) != name(scheme)) continue;
    a.santa.scheme = scheme;
    return {a};
  }
  detail::refuse("attention", "one of the schemes " + scheme_names(), text);
}

/// "full" or parts visibility=..., evict=..., attention=... and weights=..., separated by spaces or commas. seed: of
/// random numbers in attention. The name of the weights is not looked up.
inline Composition parse_composition(const std::string& text, const Config& config, std::uint64_t seed = 0) {
  std::pair<std::string, std::string> parts[] = {
      {"visibility", "full"}, {"evict", "full"}, {"attention", "dense"}, {"weights", "stored"}};
  std::string* last = nullptr;
  for (const std::string& part : detail::split(text, " ,")) {
    const std::size_t equals = part.find('=');
    if (part == "full") continue;
    if (equals == std::string::npos && last == &parts[2].second) {  // a scheme behind its comma
      *last += "," + part;
      continue;
    }
    last = nullptr;
    for (auto& [key, value] : parts) {
      if (equals != std::string::npos && part.substr(0, equals) == key) last = &value;
    }
    if (!last)
      detail::refuse("composition",
                     "full, or parts visibility=POLICY, evict=POLICY:BUDGET, attention=POLICY and weights=NAME", part);
    *last = part.substr(equals + 1);
  }
  Composition c;
  c.stack.visibility = parse_visibility(parts[0].second, config);
  std::tie(c.stack.eviction, c.stack.budget) = parse_eviction(parts[1].second);
  c.stack.attention = parse_attention(parts[2].second, seed);
  c.weights = parts[3].second;
  validate(c.stack, config.layers);
  for (const auto& [key, value] : parts) {
    if (value != "full" && value != "dense" && value != "stored")
      c.text += (c.text.empty() ? "" : " ") + key + "=" + value;
  }
  if (c.text.empty()) c.text = "full";
  return c;
}

inline std::string visibility_help() {
  return "Which tokens exist in which layer: full, speed[:DEPTH[:transient|keep]]";
}
inline std::string eviction_help() {
  return "Which KV rows stay after the prompt, as NAME:BUDGET: " + eviction_names();
}
inline std::string attention_help() {
  return "How decoded tokens attend (prompts always do exactly): dense, or santa:SAMPLES[,SCHEME], which reads the "
         "values of sampled keys only. SAMPLES for each query head: a number, or n/16, n or 64n of n keys; SCHEME: " +
         scheme_names();
}

}  // namespace runtime
