// decant: ME, a mixture-model-like ensemble (arXiv 2605.00419): each step draws one model with probability
// proportional to its weight and decodes with it alone. The law is that of sampling from the weighted average of the
// models' distributions, P(x) = sum of w_j p_j(x), at the cost of one model; a model catches up, in one prefill, on
// the tokens that were emitted since it last ran. Choose anew in every step: one choice for a whole sequence is
// another law. Filters and temperature act inside the chosen model (as in the authors' code): the law is the mixture
// of the processed distributions, not the processed mixture, and at temperature 0 a random model's likeliest token.
// With speculative decoding the law stays if the model of every position is drawn before its token is drafted.
#ifndef DECANT_SAMPLING_MIXTURE_HPP
#define DECANT_SAMPLING_MIXTURE_HPP

#include <cstdint>
#include <vector>

#include "../core/cpu.hpp"
#include "../speculative/keys.hpp"

namespace decant::sampling {

/// Chooses the model of each request and step: Stream::mixture.
class MixtureRouter {
 public:
  /// Weights >= 0, finite, not all 0; they need not sum up to 1.
  explicit MixtureRouter(View<const double, 1> weights) {
    constexpr const char* where = "sampling::MixtureRouter";
    double sum = 0;
    for (index_t j = 0; j < weights.extent(0); ++j) {
      require(weights[j] >= 0 && weights[j] <= 1e300, where, "weights", "numbers from 0 to 1e300", weights[j]);
      sum += weights[j];
      cumulated_.push_back(sum);
    }
    require(sum > 0 && sum <= 1e300, where, "weights", "a positive sum", sum);
  }

  std::int32_t models() const { return static_cast<std::int32_t>(cumulated_.size()); }
  double weight(std::int32_t model) const {
    const auto j = static_cast<std::size_t>(model);
    return (cumulated_[j] - (j == 0 ? 0.0 : cumulated_[j - 1])) / cumulated_.back();
  }

  /// The model of one request in one step; one of weight 0 never.
  std::int32_t choose(const Philox& random, std::uint32_t step, std::uint32_t request) const {
    return choose(speculative::DrawKey{random, request, step}.uniform(0, speculative::Stream::mixture));
  }

  /// The model that u in [0, 1) chooses.
  std::int32_t choose(double u) const {
    const double wanted = u * cumulated_.back();
    std::int32_t chosen = 0;
    double before = 0;
    for (std::int32_t j = 0; j < models(); ++j) {
      const double sum = cumulated_[static_cast<std::size_t>(j)];
      if (sum > before) chosen = j;  // rounding aside: the last with a weight
      if (sum > wanted) break;
      before = sum;
    }
    return chosen;
  }

 private:
  std::vector<double> cumulated_;
};

/// The requests of each model, stably: order[offsets[j] ... offsets[j + 1]) are those with chosen[i] == j, ascending.
/// order [requests], offsets [models + 1]. ArgumentError where a choice is no model. O(requests + models).
inline void group(Cpu& cpu, View<const std::int32_t, 1> chosen, View<std::int32_t, 1> order,
                  View<std::int32_t, 1> offsets) {
  constexpr const char* where = "sampling::group";
  (void)cpu;
  const index_t n = chosen.extent(0);
  const index_t models = offsets.extent(0) - 1;
  require(models >= 1, where, "offsets", "at least 2 elements", offsets.extent(0));
  require_equal(order.extent(0), n, where, "order");
  for (index_t i = 0; i < n; ++i) {
    require(chosen[i] >= 0 && chosen[i] < models, where, "chosen",
            [&] { return "0 to " + std::to_string(models - 1); }, chosen[i]);
  }
  for (index_t j = 0; j <= models; ++j) offsets[j] = 0;
  for (index_t i = 0; i < n; ++i) ++offsets[chosen[i] + 1];
  for (index_t j = 0; j < models; ++j) offsets[j + 1] += offsets[j];
  for (index_t i = 0; i < n; ++i) order[offsets[chosen[i]]++] = static_cast<std::int32_t>(i);
  for (index_t j = models; j > 0; --j) offsets[j] = offsets[j - 1];
  offsets[0] = 0;
}

/// What each model has not yet processed of one request's tokens: all that was emitted since it last ran. Tokens that
/// all models know are forgotten.
class PendingTokens {
 public:
  explicit PendingTokens(std::int32_t models) : done_(static_cast<std::size_t>(models > 0 ? models : 0), 0) {
    require(models >= 1, "sampling::PendingTokens", "models", "at least 1", models);
  }

  /// A token of the prompt or of the output.
  void append(std::int32_t token) { tokens_.push_back(token); }

  /// What the model must process before its next prediction; until the next append() or taken().
  View<const std::int32_t, 1> pending(std::int32_t model) const {
    const std::size_t done = done_[static_cast<std::size_t>(model)];
    return {tokens_.data() + done, static_cast<index_t>(tokens_.size() - done)};
  }

  /// The model has processed all of them.
  void taken(std::int32_t model) {
    done_[static_cast<std::size_t>(model)] = tokens_.size();
    std::size_t least = tokens_.size();
    for (const std::size_t d : done_) least = d < least ? d : least;
    if (least < 64 || least < tokens_.size() / 2) return;
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(least));
    for (std::size_t& d : done_) d -= least;
  }

  /// A model, other than `running`, with more than `most` tokens pending, the one with most first; -1: none. Letting it
  /// catch up, its prediction discarded, leaves the law as it is and bounds the prefill of a later step.
  std::int32_t overdue(std::int32_t running, index_t most) const {
    std::int32_t model = -1;
    for (std::int32_t j = 0; j < static_cast<std::int32_t>(done_.size()); ++j) {
      const index_t waiting = pending(j).extent(0);
      if (j == running || waiting <= most) continue;
      model = j;
      most = waiting;
    }
    return model;
  }

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::size_t> done_;
};

}  // namespace decant::sampling

#endif
