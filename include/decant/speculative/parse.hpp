// decant: PARSE, verification of meaning instead of tokens (arXiv 2605.04263): a small model writes a whole answer, the
// target is asked for a verdict on it, and where that is bad on all of its prefixes in one forward, whose copies of the
// question (the suffix) do not see each other; the target goes on from the longest good prefix. Lossy: the output is
// what the target approves, not what it would have written. Stages, verdicts and threshold are the paper's; rows,
// masks and positions, the one-pass schedule and the default numbers are our reading [ours].
#ifndef DECANT_SPECULATIVE_PARSE_HPP
#define DECANT_SPECULATIVE_PARSE_HPP

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../attention/mask.hpp"
#include "../attention/tree_mask.hpp"
#include "../core/error.hpp"
#include "../core/view.hpp"

namespace decant::speculative {

/// How answers are judged. A prefix is good where log P(correct) - log P(incorrect) is at least logit(threshold): a
/// higher threshold accepts fewer wrong answers, and fewer right ones.
struct Parse {
  enum class Mode : std::uint8_t {
    first_failure,  ///< up to the earliest error
    last_success,   ///< the longest good prefix, though a shorter one may be bad
  };
  enum class Schedule : std::uint8_t {
    two_pass,  ///< the whole answer first, and its prefixes only if that is bad: the fewest rows
    one_pass,  ///< everything at once: reads the weights once
  };
  double threshold = 0.5;
  Mode mode = Mode::first_failure;
  Schedule schedule = Schedule::two_pass;
  static constexpr bool lossless = false;
  bool operator==(const Parse&) const = default;
};

inline void validate(const Parse& policy) {
  require(policy.threshold >= 0 && policy.threshold <= 1, "speculative::Parse", "threshold", "0 to 1",
          policy.threshold);
}

/// Where prefixes end, every `step` tokens; the last one is the draft's length. A draft of no tokens: none.
inline std::vector<std::int32_t> parse_grid(index_t draft, index_t step = 32) {
  constexpr const char* where = "speculative::parse_grid";
  require(draft >= 0 && draft <= 0x7fffffff, where, "draft", "0 to 2^31 - 1", draft);
  require(step >= 1, where, "step", "at least 1", step);
  std::vector<std::int32_t> ends;
  for (index_t end = step < draft ? step : draft; end > 0; end = draft - end < step ? draft : end + step) {
    ends.push_back(static_cast<std::int32_t>(end));
    if (end == draft) break;
  }
  return ends;
}

/// Where prefixes end, behind delimiters, as line breaks: at the first delimiter that makes a piece of `least` tokens,
/// or after `most`. The last one is the draft's length, its piece as short as it comes. delimits(token) -> bool.
template <class Delimits>
std::vector<std::int32_t> parse_delimited(View<const std::int32_t, 1> draft, const Delimits& delimits,
                                          index_t least = 16, index_t most = 64) {
  constexpr const char* where = "speculative::parse_delimited";
  require(draft.extent(0) <= 0x7fffffff, where, "draft", "at most 2^31 - 1 tokens", draft.extent(0));
  require(least >= 1, where, "least", "at least 1", least);
  require(most >= least, where, "most", [&] { return "at least " + std::to_string(least); }, most);
  std::vector<std::int32_t> ends;
  index_t begin = 0;
  for (index_t end = 1; end <= draft.extent(0); ++end) {
    const bool ends_here = end - begin >= least && delimits(draft[end - 1]);
    if (!ends_here && end - begin < most && end < draft.extent(0)) continue;
    ends.push_back(static_cast<std::int32_t>(end));
    begin = end;
  }
  return ends;
}

/// One forward. Its rows: the draft's tokens, unless their keys and values are cached, then for each prefix a copy of
/// the suffix. Its keys: prompt, draft, copies. Draft tokens see what came before them; a copy sees the prompt, its
/// prefix and itself, and stands where it would if it followed the prefix at once, so that its outputs are those of a
/// forward of its own.
struct ParsePass {
  index_t prompt = 0;
  index_t draft = 0;
  index_t suffix = 0;
  bool draft_cached = false;
  View<const std::int32_t, 1> ends{};  ///< of the prefixes of this pass, as given to build(): read where they lie

  DECANT_HD index_t rows() const { return (draft_cached ? 0 : draft) + ends.extent(0) * suffix; }
  DECANT_HD index_t keys() const { return prompt + draft + ends.extent(0) * suffix; }
  /// The draft token that a row computes, or -1: it is token suffix_token() of prefix copy().
  DECANT_HD index_t draft_token(index_t row) const { return !draft_cached && row < draft ? row : -1; }
  DECANT_HD index_t copy(index_t row) const { return (row - (draft_cached ? 0 : draft)) / suffix; }
  DECANT_HD index_t suffix_token(index_t row) const { return (row - (draft_cached ? 0 : draft)) % suffix; }
  /// For rotary embeddings.
  DECANT_HD index_t position(index_t row) const {
    return draft_token(row) >= 0 ? prompt + row : prompt + ends[copy(row)] + suffix_token(row);
  }
  /// Whose logits hold the verdict on a prefix: the last of its copy.
  DECANT_HD index_t verdict_row(index_t prefix) const {
    return (draft_cached ? 0 : draft) + (prefix + 1) * suffix - 1;
  }
  DECANT_HD bool sees(index_t row, index_t key) const {
    if (key < prompt) return true;
    if (draft_token(row) >= 0) return key - prompt <= row;
    if (key < prompt + draft) return key - prompt < ends[copy(row)];
    const index_t own = key - prompt - draft - copy(row) * suffix;
    return own >= 0 && own <= suffix_token(row);
  }
  /// The same forest for attention's tree masks, positions and cascades; for passes that compute the draft's rows.
  attention::PackedPrefixes packed() const { return {draft, ends, suffix}; }
};

/// A pass as a mask of attend(), without any bits in memory; for one sequence, whose queries are the pass's rows.
struct ParseMask {
  ParsePass pass;

  DECANT_HD bool allowed(index_t, index_t query, index_t key, index_t, index_t) const { return pass.sees(query, key); }
  DECANT_HD attention::KeyRange range(index_t, index_t query, index_t, index_t) const {
    const index_t computed = pass.draft_cached ? pass.draft : 0;
    return {0, pass.prompt + computed + query + 1};
  }
  DECANT_HD attention::KeyRange whole(index_t, index_t query, index_t, index_t) const {
    const index_t token = pass.draft_token(query);
    return {0, pass.prompt + (token >= 0 ? token + 1 : pass.ends[pass.copy(query)])};
  }
  DECANT_HD bool holds(index_t sequences, index_t, index_t queries, index_t keys) const {
    return sequences == 1 && queries == pass.rows() && keys == pass.keys();
  }
};

inline void validate(const ParseMask& mask, index_t sequences, index_t, index_t queries, index_t keys) {
  constexpr const char* where = "speculative::ParseMask";
  require_equal(sequences, 1, where, "sequences");
  require_equal(queries, mask.pass.rows(), where, "queries");
  require_equal(keys, mask.pass.keys(), where, "keys");
}

static_assert(attention::Mask<ParseMask>);

/// The passes of one answer, one after another. The second one is run only where the first one's verdict is bad, after
/// the first one's suffix rows have been taken off the cache.
struct ParseLayout {
  ParsePass pass[2]{};
  int passes = 0;
};

/// prompt: tokens before the draft; boundaries: where prefixes end, ascending, the last one the draft's length (none:
/// no passes); suffix: tokens that ask for the verdict. Draft rows up to the accepted boundary can stay in the cache.
inline ParseLayout build(const Parse& policy, index_t prompt, View<const std::int32_t, 1> boundaries, index_t suffix) {
  constexpr const char* where = "speculative::build";
  validate(policy);
  constexpr index_t most = 0x7fffffff;
  const index_t n = boundaries.extent(0);
  require(prompt >= 0 && prompt <= most, where, "prompt", "0 to 2^31 - 1", prompt);
  require(suffix >= 1 && suffix <= most, where, "suffix", "1 to 2^31 - 1", suffix);
  for (index_t i = 0; i < n; ++i) {
    const index_t least = i == 0 ? 1 : boundaries[i - 1] + index_t{1};
    require(boundaries[i] >= least, where, "boundaries",
            [&] { return "ascending lengths, at least " + std::to_string(least) + " at " + std::to_string(i); },
            boundaries[i]);
  }
  if (n == 0) return ParseLayout();
  const index_t draft = boundaries[n - 1];
  require(suffix <= (most - draft) / n && prompt <= most - draft - n * suffix, where, "suffix",
          "fewer than 2^31 tokens in all", suffix);
  ParseLayout layout;
  layout.pass[0] = {prompt, draft, suffix, false, boundaries};
  layout.passes = 1;
  if (policy.schedule == Parse::Schedule::one_pass || n == 1) return layout;
  layout.pass[0].ends = boundaries.slice(0, n - 1, 1);
  layout.pass[1] = {prompt, draft, suffix, true, boundaries.slice(0, 0, n - 1)};
  layout.passes = 2;
  return layout;
}

namespace detail {

/// Bits 8 i ... 8 i + 7 of a pass's mask.
DECANT_HD inline std::uint8_t parse_byte(const ParsePass& pass, index_t i) {
  const index_t keys = pass.keys();
  index_t row = 8 * i / keys;
  index_t key = 8 * i % keys;
  unsigned byte = 0;
  for (int bit = 0; bit < 8 && row < pass.rows(); ++bit) {
    byte |= static_cast<unsigned>(pass.sees(row, key)) << bit;
    if (++key == keys) {
      key = 0;
      ++row;
    }
  }
  return static_cast<std::uint8_t>(byte);
}

/// log(sum of exp(x)) over the listed elements of a row; NaN stays.
DECANT_HD inline double log_sum_of(View<const float, 1> x, View<const std::int32_t, 1> tokens) {
  double top = -HUGE_VAL;
  for (index_t i = 0; i < tokens.extent(0); ++i) {
    const auto value = static_cast<double>(x[tokens[i]]);
    if (!(value <= top)) top = value;  // a NaN, too, which then stays: the sum is NaN
    if (std::isnan(top)) return top;
  }
  if (std::isinf(top)) return top;
  double sum = 0;
  for (index_t i = 0; i < tokens.extent(0); ++i) sum += std::exp(static_cast<double>(x[tokens[i]]) - top);
  return top + std::log(sum);
}

}  // namespace detail

/// A pass as packed bits over all keys, as attention::BitMask holds them: [ceil(rows * keys / 8)].
inline void parse_bits(const ParsePass& pass, View<std::uint8_t, 1> bits) {
  require_equal(bits.extent(0), (pass.rows() * pass.keys() + 7) / 8, "speculative::parse_bits", "bits");
  for (index_t i = 0; i < bits.extent(0); ++i) bits[i] = detail::parse_byte(pass, i);
}

/// scores [n]: how much likelier the tokens of a good verdict are than those of a bad one, as a difference of
/// logarithms; logits [n, vocab]: of the verdict rows. NaN where the logits do not say.
inline void parse_scores(View<const float, 2> logits, View<const std::int32_t, 1> correct,
                         View<const std::int32_t, 1> incorrect, View<float, 1> scores) {
  constexpr const char* where = "speculative::parse_scores";
  require_equal(scores.extent(0), logits.extent(0), where, "scores");
  const auto check = [&](const View<const std::int32_t, 1>& tokens, const char* argument) {
    require(tokens.extent(0) >= 1, where, argument, "at least one token", tokens.extent(0));
    for (index_t i = 0; i < tokens.extent(0); ++i) {
      require(tokens[i] >= 0 && tokens[i] < logits.extent(1), where, argument,
              [&] { return "tokens below " + std::to_string(logits.extent(1)); }, tokens[i]);
    }
  };
  check(correct, "correct");
  check(incorrect, "incorrect");
  for (index_t i = 0; i < logits.extent(0); ++i) {
    scores[i] = static_cast<float>(detail::log_sum_of(logits[i], correct) - detail::log_sum_of(logits[i], incorrect));
  }
}

/// Whether a score is a good verdict. NaN is a bad one.
inline bool parse_accepts(const Parse& policy, float score) {
  return static_cast<double>(score) >= std::log(policy.threshold) - std::log1p(-policy.threshold);
}

/// How much of a draft stands.
struct ParseDecision {
  index_t prefixes = 0;  ///< the number of the accepted boundary, counted from 1; 0: none
  index_t tokens = 0;    ///< its place: draft tokens that stand, whose rows stay in the cache
  bool whole = false;    ///< the whole draft
  bool operator==(const ParseDecision&) const = default;
};

/// boundaries [n]; scores [n], or [n - 1] after the verdict on the whole draft was bad. A good verdict on the whole
/// draft decides, whatever those on its prefixes are.
inline ParseDecision decide(const Parse& policy, View<const float, 1> scores,
                            View<const std::int32_t, 1> boundaries) {
  constexpr const char* where = "speculative::decide";
  validate(policy);
  const index_t n = boundaries.extent(0);
  require(scores.extent(0) == n || scores.extent(0) + 1 == n, where, "scores",
          [&] { return "one for each of the " + std::to_string(n) + " boundaries, or all but the last"; },
          scores.extent(0));
  if (n == 0) return {};
  if (scores.extent(0) == n && parse_accepts(policy, scores[n - 1])) return {n, boundaries[n - 1], true};
  index_t good = 0;
  for (index_t i = 0; i < n - 1; ++i) {
    if (parse_accepts(policy, scores[i])) {
      good = i + 1;
    } else if (policy.mode == Parse::Mode::first_failure) {
      break;
    }
  }
  return {good, good == 0 ? 0 : boundaries[good - 1], false};
}

/// New rows per answer of `draft` tokens with n prefixes, on average, where the whole draft is accepted with chance
/// `whole`.
inline double parse_rows(index_t draft, index_t n, index_t suffix, Parse::Schedule schedule, double whole) {
  if (n == 0) return 0;
  const auto copies = static_cast<double>(n - 1) * static_cast<double>(suffix);
  return static_cast<double>(draft) + static_cast<double>(suffix) +
         (schedule == Parse::Schedule::one_pass ? 1 : 1 - whole) * copies;
}

/// Seconds.
struct ParseCosts {
  double draft_token = 0;
  double target_token = 0;
  double first_pass = 0;
  double second_pass = 0;  ///< 0 for Schedule::one_pass
};

/// How many times faster than the target alone answers of `draft` tokens are; whole: the chance that the draft is
/// accepted as it is; kept: the mean fraction of it that stands where it is not.
inline double parse_speedup(const ParseCosts& costs, double draft, double whole, double kept) {
  const double revised = costs.second_pass + (1 - kept) * draft * costs.target_token;
  return draft * costs.target_token / (draft * costs.draft_token + costs.first_pass + (1 - whole) * revised);
}

/// Whether drafting pays at all where passes cost nothing.
inline bool parse_pays(const ParseCosts& costs, double whole, double kept) {
  return whole + kept * (1 - whole) > costs.draft_token / costs.target_token;
}

}  // namespace decant::speculative

#endif
