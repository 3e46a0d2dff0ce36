// Policies that are chosen when the program runs: variants of decant's policy values, which are policies themselves by
// visiting what they hold. Parsed from text such as "speed:0.75" and "capkv:0.25" or "streaming:256t".
#pragma once

#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <decant/attention/dense.hpp>
#include <decant/kv/policies.hpp>
#include <decant/kv/visibility.hpp>
#include <decant/stack.hpp>

#include "config.hpp"

namespace runtime {

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

// --- a composition
// -----------------------------------------------------------------------------------------------------

/// decant::Stack with its first parts chosen at run time.
struct AnyStack {
  AnyVisibility visibility;
  AnyEviction eviction;
  decant::attention::Dense attention;
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
/// "visibility=speed:0.75 evict=capkv:0.25".
struct Composition {
  std::string text;
  AnyStack stack;
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

/// "full" or parts visibility=... and evict=..., separated by spaces or commas.
inline Composition parse_composition(const std::string& text, const Config& config) {
  std::string visibility = "full";
  std::string eviction = "full";
  for (const std::string& part : detail::split(text, " ,")) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    if (part == "full") continue;
    if (equals == std::string::npos || (key != "visibility" && key != "evict")) {
      detail::refuse("composition", "full, or parts visibility=POLICY and evict=POLICY:BUDGET", part);
    }
    (key == "visibility" ? visibility : eviction) = part.substr(equals + 1);
  }
  Composition c;
  c.stack.visibility = parse_visibility(visibility, config);
  std::tie(c.stack.eviction, c.stack.budget) = parse_eviction(eviction);
  validate(c.stack, config.layers);
  if (visibility != "full") c.text = "visibility=" + visibility;
  if (eviction != "full") c.text += (c.text.empty() ? "evict=" : " evict=") + eviction;
  if (c.text.empty()) c.text = "full";
  return c;
}

inline std::string visibility_help() {
  return "Which tokens exist in which layer: full, speed[:DEPTH[:transient|keep]]";
}
inline std::string eviction_help() {
  return "Which KV rows stay after the prompt, as NAME:BUDGET: " + eviction_names();
}

}  // namespace runtime
