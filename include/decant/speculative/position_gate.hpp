// decant: PAD-Rec's inputs of a draft layer for lists of items whose codes are tokens (arXiv 2604.27747): which slot of
// an item a token is, and which draft step it is, each as a gated embedding. The item term enters before the
// projection, the step term behind it. Committed tokens and the first drafted one are step 1, later ones keep the step
// that they were drafted in, and labels of vocabularies without levels come from a small automaton: our reading.
#ifndef DECANT_SPECULATIVE_POSITION_GATE_HPP
#define DECANT_SPECULATIVE_POSITION_GATE_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/detail/rounded.hpp"
#include "../core/error.hpp"
#include "../core/row_sum.hpp"
#include "../core/view.hpp"
#include "../sampling/detail/rounded_math.hpp"

namespace decant::speculative {

/// Slots of an item: 1 ... codes by level, then the separator and everything else.
struct ItemSlots {
  std::int32_t codes = 4;  ///< K, code tokens of one item

  constexpr std::int32_t separator() const { return codes + 1; }
  constexpr std::int32_t other() const { return codes + 2; }
  /// Rows of the embedding table.
  constexpr std::int32_t rows() const { return codes + 2; }
  bool operator==(const ItemSlots&) const = default;
};

/// Slots where the vocabulary says a code's level: one lookup by token id.
class ItemSlotTable {
 public:
  /// by_token: the slot of each token of the vocabulary.
  ItemSlotTable(ItemSlots slots, std::vector<std::int32_t> by_token) : by_token_(std::move(by_token)) {
    constexpr const char* where = "speculative::ItemSlotTable";
    require(slots.codes >= 1, where, "slots.codes", "at least 1", slots.codes);
    for (const std::int32_t slot : by_token_) {
      require(slot >= 1 && slot <= slots.rows(), where, "by_token",
              [&] { return "slots from 1 to " + std::to_string(slots.rows()); }, slot);
    }
  }

  std::int32_t slot(std::int32_t token) const {
    require(token >= 0 && token < static_cast<index_t>(by_token_.size()), "speculative::ItemSlotTable::slot", "token",
            [&] { return "below " + std::to_string(by_token_.size()); }, token);
    return by_token_[static_cast<std::size_t>(token)];
  }

 private:
  std::vector<std::int32_t> by_token_;
};

/// What a token of the vocabulary is.
enum class ItemToken : std::uint8_t { other, separator, code };

/// Slots where the vocabulary does not say a code's level: a separator begins an item, each code token is the next
/// slot, more than K codes in a row are K. Keeps the slot of every position, so that rejected tokens are simply cut off.
class ItemSlotFsm {
 public:
  explicit ItemSlotFsm(ItemSlots slots = {}) : slots_(slots) {
    require(slots.codes >= 1, "speculative::ItemSlotFsm", "slots.codes", "at least 1", slots.codes);
  }

  std::int32_t push(ItemToken kind) {
    const std::int32_t before = labels_.empty() ? slots_.other() : labels_.back();
    std::int32_t label = kind == ItemToken::separator ? slots_.separator() : slots_.other();
    if (kind == ItemToken::code) label = before > slots_.codes ? 1 : before == slots_.codes ? before : before + 1;
    labels_.push_back(label);
    return label;
  }
  /// Forgets all but the first `tokens` positions.
  void truncate(index_t tokens) {
    require(tokens >= 0 && tokens <= static_cast<index_t>(labels_.size()), "speculative::ItemSlotFsm::truncate",
            "tokens", [&] { return "0 to " + std::to_string(labels_.size()); }, tokens);
    labels_.resize(static_cast<std::size_t>(tokens));
  }
  const std::vector<std::int32_t>& labels() const { return labels_; }

 private:
  ItemSlots slots_;
  std::vector<std::int32_t> labels_;
};

/// The gates of one draft layer. item [K + 2, H], step [steps, H], w [H], project [H, 2 H].
struct PositionGate {
  View<const float, 2> item{};
  View<const float, 2> step{};
  View<const float, 1> w{};
  float item_gate = 0;  ///< clamped to 0 ... 1
};

inline void validate(const PositionGate& g) {
  constexpr const char* where = "speculative::PositionGate";
  require(g.item.extent(0) >= 3, where, "item", "a row for each code level, the separator and other text",
          g.item.extent(0));
  require(g.step.extent(0) >= 1, where, "step", "a row for each draft step", g.step.extent(0));
  require_equal(g.step.extent(1), g.item.extent(1), where, "step");
  require_equal(g.w.extent(0), g.item.extent(1), where, "w");
  require(g.item_gate == g.item_gate, where, "item_gate", "a number", g.item_gate);
}

namespace detail {

/// As it counts.
DECANT_HD inline float clamped_gate(float gate) { return gate < 0 ? 0.0f : gate > 1 ? 1.0f : gate; }

/// x + gate y, rounded twice.
DECANT_HD DECANT_INLINE float gated(float x, float gate, float y) {
  return x + ::decant::detail::rounded_product(gate, y);
}

struct GateTerm {
  View<const float, 1> w;
  View<const float, 1> z;

  DECANT_HD DECANT_INLINE float operator()(index_t i) const { return ::decant::detail::rounded_product(w[i], z[i]); }
};

/// sigmoid of w . z, given the sum over its tiles in the order of row_sum.hpp.
DECANT_HD DECANT_INLINE float sigmoid_of(double dot) {
  return 1.0f / (1.0f + sampling::detail::rounded_exp(-static_cast<float>(dot)));
}

DECANT_UNFUSED inline void input_row(float gate, View<const float, 1> item, View<const float, 1> embedding,
                                     View<const float, 1> feature, View<float, 1> out) {
  const index_t h = item.extent(0);
  for (index_t i = 0; i < h; ++i) {
    out[i] = gated(embedding[i], gate, item[i]);
    out[h + i] = feature[i];
  }
}

DECANT_UNFUSED inline void step_row(View<const float, 1> w, View<const float, 1> step, View<float, 1> z) {
  const index_t n = z.extent(0);
  const GateTerm term{w, z};
  double dot = 0;
  for (index_t first = 0; first < n; first += row_tile) {
    dot += static_cast<double>(
        ::decant::detail::tile_total(term, first, first + row_tile < n ? first + row_tile : n));
  }
  const float gate = sigmoid_of(dot);
  for (index_t i = 0; i < n; ++i) z[i] = gated(z[i], gate, step[i]);
}

/// What both contexts ask for.
inline void require_inputs(const PositionGate& g, View<const std::int32_t, 1> slots, View<const float, 2> embeddings,
                           View<const float, 2> features, View<float, 2> out, const char* where) {
  validate(g);
  const index_t h = g.item.extent(1);
  require_equal(embeddings.extent(0), slots.extent(0), where, "embeddings");
  require_equal(embeddings.extent(1), h, where, "embeddings");
  require_equal(features.extent(0), slots.extent(0), where, "features");
  require_equal(features.extent(1), h, where, "features");
  require_equal(out.extent(0), slots.extent(0), where, "out");
  require_equal(out.extent(1), 2 * h, where, "out");
}
inline void require_steps(const PositionGate& g, View<const std::int32_t, 1> steps, View<float, 2> z,
                          const char* where) {
  validate(g);
  require_equal(z.extent(0), steps.extent(0), where, "z");
  require_equal(z.extent(1), g.w.extent(0), where, "z");
}

}  // namespace detail

/// What stands before the projection, of each row: embedding + item_gate * item[slot - 1], then the feature of the token
/// before it. slots [rows], embeddings and features [rows, H], out [rows, 2 H]. The same bits on every context.
/// O(rows H).
inline void gated_input(const PositionGate& g, View<const std::int32_t, 1> slots, View<const float, 2> embeddings,
                        View<const float, 2> features, View<float, 2> out) {
  constexpr const char* where = "speculative::gated_input";
  detail::require_inputs(g, slots, embeddings, features, out, where);
  for (index_t r = 0; r < slots.extent(0); ++r) {
    require(slots[r] >= 1 && slots[r] <= g.item.extent(0), where, "slot",
            [&] { return "1 to " + std::to_string(g.item.extent(0)); }, slots[r]);
  }
  for (index_t r = 0; r < slots.extent(0); ++r) {
    detail::input_row(detail::clamped_gate(g.item_gate), g.item[slots[r] - 1], embeddings[r], features[r], out[r]);
  }
}
/// Of one row.
inline void gated_input(const PositionGate& g, std::int32_t slot, View<const float, 1> embedding,
                        View<const float, 1> feature, View<float, 1> out) {
  const auto row = [](const auto& v) {
    return View<std::remove_pointer_t<decltype(v.data())>, 2>(v.data(), {1, v.extent(0)}, {0, v.stride(0)});
  };
  gated_input(g, View<const std::int32_t, 1>(&slot, 1), row(embedding), row(feature), row(out));
}

/// What stands behind it: each row of z [rows, H], the projected inputs, becomes
/// z + sigmoid(w . z) * step[min(j, steps) - 1], j the row's of steps [rows]. The same bits on every context. O(rows H).
inline void gate_step(const PositionGate& g, View<const std::int32_t, 1> steps, View<float, 2> z) {
  constexpr const char* where = "speculative::gate_step";
  detail::require_steps(g, steps, z, where);
  for (index_t r = 0; r < steps.extent(0); ++r) require(steps[r] >= 1, where, "j", "a draft step, from 1", steps[r]);
  for (index_t r = 0; r < steps.extent(0); ++r) {
    const index_t row = steps[r] <= g.step.extent(0) ? steps[r] - 1 : g.step.extent(0) - 1;
    detail::step_row(g.w, g.step[row], z[r]);
  }
}
/// Of one row.
inline void gate_step(const PositionGate& g, std::int32_t j, View<float, 1> z) {
  gate_step(g, View<const std::int32_t, 1>(&j, 1), View<float, 2>(z.data(), {1, z.extent(0)}, {0, z.stride(0)}));
}

}  // namespace decant::speculative

#endif
