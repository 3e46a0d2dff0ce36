// decant: PAD-Rec's inputs of a draft layer for lists of items whose codes are tokens (arXiv 2604.27747): which slot of
// an item a token is, and which draft step it is, each as a gated embedding. The item term enters before the
// projection, the step term behind it. Committed tokens and the first drafted one are step 1, later ones keep the step
// that they were drafted in, and labels of vocabularies without levels come from a small automaton: our reading.
#ifndef DECANT_SPECULATIVE_POSITION_GATE_HPP
#define DECANT_SPECULATIVE_POSITION_GATE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/view.hpp"

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

/// What stands before the projection: embedding + item_gate * item[slot - 1], then the feature of the token before it.
/// out [2 H]. O(H).
inline void gated_input(const PositionGate& g, std::int32_t slot, View<const float, 1> embedding,
                        View<const float, 1> feature, View<float, 1> out) {
  constexpr const char* where = "speculative::gated_input";
  validate(g);
  const index_t h = g.item.extent(1);
  require(slot >= 1 && slot <= g.item.extent(0), where, "slot",
          [&] { return "1 to " + std::to_string(g.item.extent(0)); }, slot);
  require_equal(embedding.extent(0), h, where, "embedding");
  require_equal(feature.extent(0), h, where, "feature");
  require_equal(out.extent(0), 2 * h, where, "out");
  const float gate = g.item_gate < 0 ? 0.0f : g.item_gate > 1 ? 1.0f : g.item_gate;
  for (index_t i = 0; i < h; ++i) {
    out[i] = embedding[i] + gate * g.item(slot - 1, i);
    out[h + i] = feature[i];
  }
}

/// What stands behind it: z [H], the projected input, becomes z + sigmoid(w . z) * step[min(j, steps) - 1]. O(H).
inline void gate_step(const PositionGate& g, std::int32_t j, View<float, 1> z) {
  constexpr const char* where = "speculative::gate_step";
  validate(g);
  require(j >= 1, where, "j", "a draft step, from 1", j);
  require_equal(z.extent(0), g.w.extent(0), where, "z");
  const index_t row = j <= g.step.extent(0) ? j - 1 : g.step.extent(0) - 1;
  float dot = 0;
  for (index_t i = 0; i < z.extent(0); ++i) dot += g.w[i] * z[i];
  const float gate = 1 / (1 + std::exp(-dot));
  for (index_t i = 0; i < z.extent(0); ++i) z[i] += gate * g.step(row, i);
}

}  // namespace decant::speculative

#endif
