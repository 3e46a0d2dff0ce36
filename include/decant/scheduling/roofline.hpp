// decant: Roofline, the time of a step from the model's shape and two rates, in integers alone so that it is the same on
// every machine: t0 + max(flops / F, bytes / W), or their sum. Activations and norms are left out; rates are effective
// ones, not the data sheet's. Our model; the sum predicts published service rates within 6 %, the maximum does not
// (see stability.hpp), and is the bound.
#ifndef DECANT_SCHEDULING_ROOFLINE_HPP
#define DECANT_SCHEDULING_ROOFLINE_HPP

#include <cstdint>

#include "../core/error.hpp"
#include "step_cost.hpp"

namespace decant::scheduling {

/// A transformer; the LM head is counted once, the embedding is a lookup. With experts, `ffn` is the width of one, and
/// routers, which are small, are left out.
struct ModelShape {
  std::uint32_t layers = 32, hidden = 4096, ffn = 14336, q_heads = 32, kv_heads = 8, head_dim = 128, vocab = 128256;
  std::uint32_t weight_bits = 16, kv_bits = 16;
  std::uint32_t experts = 0, active_experts = 0;  ///< of a layer, and of those the ones that a token takes; 0: dense
  bool operator==(const ModelShape&) const = default;

  static constexpr ModelShape llama3_8b() { return {}; }

  /// In memory, and those that a token is multiplied with.
  constexpr std::uint64_t parameters() const { return shared_parameters() + (experts > 0 ? experts : 1) * ffn_parameters(); }
  constexpr std::uint64_t active_parameters() const {
    return shared_parameters() + (experts > 0 ? active_experts : 1) * ffn_parameters();
  }
  constexpr std::uint64_t weight_bytes() const { return parameters() * weight_bits / 8; }
  /// What a step of `tokens` tokens reads: of E experts, k of which each token takes evenly, E (1 - (1 - k / E)^tokens)
  /// are expected to be asked for. Fixed point, 2^-32.
  constexpr std::uint64_t weight_bytes_read(std::uint64_t tokens) const {
    if (experts == 0) return weight_bytes();
    constexpr std::uint64_t one = std::uint64_t{1} << 32;
    std::uint64_t missed = one, factor = (experts - active_experts) * one / experts;
    for (; tokens > 0; tokens /= 2, factor = factor * factor >> 32) {
      if (tokens % 2 == 1) missed = missed * factor >> 32;
    }
    const std::uint64_t whole = ffn_parameters() * experts * weight_bits / 8;
    const std::uint64_t read = (whole >> 32) * (one - missed) + ((whole & (one - 1)) * (one - missed) >> 32);
    return shared_parameters() * weight_bits / 8 + read;
  }
  constexpr std::uint64_t kv_bytes_per_token() const {
    return std::uint64_t{2} * layers * kv_heads * head_dim * kv_bits / 8;
  }

 private:
  constexpr std::uint64_t shared_parameters() const {
    const std::uint64_t d = hidden, q = q_heads, kv = kv_heads, e = head_dim;
    return layers * (d * (q + 2 * kv) * e + q * e * d) + vocab * d;
  }
  constexpr std::uint64_t ffn_parameters() const { return std::uint64_t{3} * layers * hidden * ffn; }
};

/// Effective rates of a device.
struct DeviceRates {
  std::uint64_t flops_per_ns = 187'200;     ///< F
  std::uint64_t bytes_per_ns = 1'631;       ///< W
  std::uint64_t l2_bytes = 40u << 20;       ///< that a kernel really keeps
  Nanoseconds launch = 2'000'000;           ///< t0, of a step
  bool operator==(const DeviceRates&) const = default;

  static constexpr DeviceRates a100() { return {}; }
  static constexpr DeviceRates rtx_6000_ada() { return {218'400, 768, 96u << 20, 2'000'000}; }
  static constexpr DeviceRates h200() { return {474'000, 3'840, 50u << 20, 2'000'000}; }
};

/// What reading one prefix for many requests of a step saves.
enum class L2Rule : std::uint8_t {
  groups,   ///< all groups, if a layer's worth of the longest prefix of each fits in L2; else nothing
  tip,      ///< only what all requests of the step have in common
  cascade,  ///< all groups, always: a kernel that reads a shared prefix once
};

struct RooflineOptions {
  bool additive = false;        ///< flops / F + bytes / W instead of the larger of the two
  bool head_last_only = false;  ///< the LM head only for rows that a token is sampled from: one per request
  L2Rule l2_rule = L2Rule::groups;
  /// kappa: shared bytes cost gain_denominator / gain_numerator of others; a denominator of 0: nothing.
  std::uint32_t gain_numerator = 1, gain_denominator = 0;
  std::uint32_t tensor_parallel = 1;  ///< devices; adds two all-reduces a layer
  Nanoseconds link_latency = 10'000;
  std::uint64_t link_bytes_per_ns = 300;
  bool operator==(const RooflineOptions&) const = default;
};

/// What a step computes and moves, before anything is shared.
struct StepWork {
  __extension__ typedef unsigned __int128 Wide;  // nvcc takes __extension__ before a typedef alone

  Wide flops = 0, bytes = 0;
  std::uint64_t tokens = 0;
};

/// O(requests). head_last_only: see RooflineOptions.
inline StepWork step_work(const ModelShape& model, View<const StepShape, 1> shapes, bool head_last_only = false) {
  using Wide = StepWork::Wide;
  Wide pairs = 0;
  std::uint64_t tokens = 0, read = 0, rows = 0;
  for (index_t i = 0; i < shapes.extent(0); ++i) {
    const std::uint64_t n = shapes[i].tokens, c = shapes[i].context;
    tokens += n;
    pairs += Wide{n} * c + Wide{n} * (n + 1) / 2;
    read += c + n;
    rows += n > 0;
  }
  const Wide head = Wide{model.vocab} * model.hidden;
  StepWork work;
  work.tokens = tokens;
  work.flops = 2 * (Wide{model.active_parameters()} - head) * tokens + 2 * head * (head_last_only ? rows : tokens) +
               Wide{4} * model.layers * model.q_heads * model.head_dim * pairs;
  work.bytes = model.weight_bytes_read(tokens) + Wide{model.kv_bytes_per_token()} * (read + tokens);
  return work;
}

class Roofline {
 public:
  Roofline() = default;
  /// ArgumentError: a rate or number of devices of 0, or a gain below 1.
  explicit Roofline(const ModelShape& model, const DeviceRates& device = {}, const RooflineOptions& options = {})
      : model_(model), device_(device), options_(options) {
    constexpr auto where = "scheduling::Roofline";
    require(device.flops_per_ns > 0, where, "device.flops_per_ns", "at least 1", device.flops_per_ns);
    require(device.bytes_per_ns > 0, where, "device.bytes_per_ns", "at least 1", device.bytes_per_ns);
    require(options.tensor_parallel > 0, where, "options.tensor_parallel", "at least 1", options.tensor_parallel);
    require(options.tensor_parallel == 1 || options.link_bytes_per_ns > 0, where, "options.link_bytes_per_ns",
            "at least 1", options.link_bytes_per_ns);
    require(model.active_experts <= model.experts, where, "model.active_experts", "at most the experts",
            model.active_experts);
    require(options.gain_numerator > 0 && options.gain_numerator >= options.gain_denominator, where,
            "options.gain_numerator", "a gain of 1 or more", options.gain_numerator);
  }

  /// O(requests). 0 tokens: 0.
  Nanoseconds step_ns(View<const StepShape, 1> shapes, const PrefixSharing& sharing = {}) const {
    const StepWork work = step_work(model_, shapes, options_.head_last_only);
    if (work.tokens == 0) return 0;
    const Wide shared = Wide{model_.kv_bytes_per_token()} * shared_tokens(sharing);
    const Wide bytes = work.bytes - shared + divide_up(shared * options_.gain_denominator, options_.gain_numerator);
    const std::uint64_t p = options_.tensor_parallel;
    const Wide compute = divide_up(divide_up(work.flops, p), device_.flops_per_ns);
    const Wide transfer = divide_up(divide_up(bytes, p), device_.bytes_per_ns);
    Wide time = options_.additive ? compute + transfer : compute > transfer ? compute : transfer;
    time += device_.launch;
    if (p > 1) {
      const Wide link = divide_up(2 * Wide{p - 1} * work.tokens * model_.hidden * 2, Wide{p} * options_.link_bytes_per_ns);
      time += 2 * Wide{model_.layers} * (options_.link_latency + link);
    }
    return static_cast<Nanoseconds>(time);
  }

  const ModelShape& model() const { return model_; }
  const DeviceRates& device() const { return device_; }
  const RooflineOptions& options() const { return options_; }

 private:
  using Wide = StepWork::Wide;

  static constexpr Wide divide_up(Wide a, Wide b) { return (a + b - 1) / b; }

  std::uint64_t shared_tokens(const PrefixSharing& sharing) const {
    if (options_.l2_rule == L2Rule::tip) return sharing.tip;
    if (options_.l2_rule == L2Rule::cascade) return sharing.repeated;
    const std::uint64_t layer = std::uint64_t{2} * model_.kv_heads * model_.head_dim * model_.kv_bits / 8;
    return Wide{sharing.groups} * sharing.longest * layer <= device_.l2_bytes ? sharing.repeated : 0;
  }

  ModelShape model_{};
  DeviceRates device_{};
  RooflineOptions options_{};
};

static_assert(StepCost<Roofline>);
static_assert(ModelShape{}.parameters() == 7'504'658'432u);

}  // namespace decant::scheduling

#endif
