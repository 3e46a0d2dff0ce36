// decant: CacheCard, what a KV cache must say of itself before someone else's model may use it: the META section of a
// DKVC file. The idea of a self-contained card is that of QKVShare (arXiv 2605.03884); fields and bytes are ours.
// A card is records of u16 tag | u16 0 | u32 length | value, tags ascending, each at most once; tags that a reader does
// not know are skipped. Records that would hold a default (an empty list, 0) are left out: equal cards are equal bytes.
#ifndef DECANT_CODEC_CACHE_CARD_HPP
#define DECANT_CODEC_CACHE_CARD_HPP

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/bits.hpp"
#include "dkvc_format.hpp"

namespace decant::codec::dkvc {

/// Frequency scalings of rotary embeddings, with `parameters` as the model's configuration names them, in this order.
enum class RopeScaling : std::uint16_t {
  none = 0,
  linear = 1,       // factor
  dynamic_ntk = 2,  // factor, original_max_position_embeddings
  yarn = 3,         // factor, original_max_position_embeddings, beta_fast, beta_slow, attention_factor
  llama3 = 4,       // factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
  longrope = 5,     // original_max_position_embeddings, short factors, long factors
  other = 6,        // any: the two sides agree on it
};

/// How positions went into the keys.
struct CardRope {
  /// false: keys carry no position (no rotary embedding, or stored before it).
  bool rotated = true;
  /// As in kv::Rope: pairs (2f, 2f + 1) instead of (f, f + dim / 2).
  bool interleaved = false;
  RopeScaling scaling = RopeScaling::none;
  /// How many leading dims are rotated; 0: all.
  std::uint32_t dim = 0;
  double theta = 10000.0;
  std::vector<double> parameters;
  bool operator==(const CardRope&) const = default;
};

using Fingerprint = std::array<std::byte, 32>;

struct CacheCard {
  /// Hashes of the caller's making: of architecture and weights, and of the tokenizer.
  Fingerprint model{};
  Fingerprint tokenizer{};

  /// Of a latent (MLA) cache: kv_heads 1, key_dim that of C_KV and value_dim that of K_R.
  std::uint32_t layers = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t key_dim = 0;
  std::uint32_t value_dim = 0;
  DType dtype = DType::bf16;
  CardRope rope;

  /// The original positions of the cache's tokens: position_begin, position_begin + 1, ... or, where tokens were left
  /// out, the list.
  std::uint32_t position_begin = 0;
  std::uint32_t token_count = 0;
  std::vector<std::uint32_t> positions;
  /// What the tokens are, one each, or a 128-bit hash of that; may be left out.
  std::vector<std::uint32_t> token_ids;
  std::array<std::byte, 16> token_hash{};

  /// Up to 4096 bytes, for people; not checked to be UTF-8.
  std::string creator;
  /// Leading tokens that no policy may drop.
  std::uint32_t sinks = 0;
  /// How many times the cache was handed on, and the content id of the card it was made from.
  std::uint32_t hops = 0;
  std::uint64_t parent = 0;
  /// Bits per element that it was made for; 0: not said.
  double budget = 0.0;

  bool operator==(const CacheCard&) const = default;
};

/// The first reason why a cache does not fit, in the order in which they are checked.
enum class Mismatch : std::uint8_t { none, model, tokenizer, rope, shape, position_gap, corrupt, limits };

/// "none", "model_mismatch", "tokenizer_mismatch", "rope_mismatch", "shape_mismatch", "position_gap", "corrupt",
/// "limits".
constexpr const char* name(Mismatch m) {
  constexpr const char* names[] = {"none",          "model_mismatch", "tokenizer_mismatch",
                                   "rope_mismatch", "shape_mismatch", "position_gap",
                                   "corrupt",       "limits"};
  return names[static_cast<int>(m)];
}

namespace detail {

inline constexpr index_t most_card_string = 4096;
inline constexpr index_t most_rope_parameters = 4096;

enum class Tag : std::uint16_t {
  model = 1,
  tokenizer = 2,
  shape = 3,
  dtype = 4,
  rope = 5,
  position_range = 6,
  position_list = 7,
  token_ids = 8,
  token_hash = 9,
  creator = 10,
  sinks = 11,
  hops = 12,
  parent = 13,
  budget = 14,
};

/// Appends records.
class CardWriter {
 public:
  explicit CardWriter(std::vector<std::byte>& out) : out_(out) {}

  void begin(Tag tag, std::size_t length) {
    put(static_cast<std::uint16_t>(tag));
    put(std::uint16_t{0});
    put(static_cast<std::uint32_t>(length));
  }
  template <class Int>
  void put(Int value) {
    std::byte bytes[sizeof(Int)];
    store_le(bytes, value);
    out_.insert(out_.end(), bytes, bytes + sizeof(Int));
  }
  void put(double value) { put(bit_cast<std::uint64_t>(value)); }
  template <std::size_t Size>
  void record(Tag tag, const std::array<std::byte, Size>& bytes) {
    begin(tag, Size);
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void record(Tag tag, const std::vector<std::uint32_t>& list) {
    begin(tag, 4 * list.size());
    for (const std::uint32_t value : list) put(value);
  }
  template <class Value>
  void record(Tag tag, Value value) {
    begin(tag, sizeof value);
    put(value);
  }

 private:
  std::vector<std::byte>& out_;
};

/// Finite, by its bits: -ffast-math may not take the check away.
inline bool is_finite(double x) {
  return (bit_cast<std::uint64_t>(x) >> 52 & 0x7ffu) != 0x7ffu;
}

inline double load_double(const std::byte* from) {
  return bit_cast<double>(load_le<std::uint64_t>(from));
}

/// One record of known or unknown tag, within the card's bytes.
struct Record {
  std::uint16_t tag = 0;
  View<const std::byte, 1> value;
};

inline constexpr const char* card_where = "codec::dkvc::read_card";

inline void expect_length(const Record& r, const char* field, index_t length) {
  expect(
      r.value.extent(0) == length, card_where, field, [&] { return std::to_string(length) + " bytes"; },
      r.value.extent(0));
}

template <std::size_t Size>
void read_array(const Record& r, const char* field, std::array<std::byte, Size>& to) {
  expect_length(r, field, index_t{Size});
  for (std::size_t i = 0; i < Size; ++i) to[i] = r.value[static_cast<index_t>(i)];
}

inline void read_list(const Record& r, const char* field, const Limits& limits, std::vector<std::uint32_t>& to) {
  const index_t count = r.value.extent(0) / 4;
  expect(
      r.value.extent(0) % 4 == 0 && count > 0 && count <= limits.max_tokens, card_where, field,
      [&] { return "4 bytes for each of 1 to " + std::to_string(limits.max_tokens) + " tokens"; }, r.value.extent(0));
  to.resize(static_cast<std::size_t>(count));
  for (index_t i = 0; i < count; ++i) {
    to[static_cast<std::size_t>(i)] = load_le<std::uint32_t>(r.value.data() + 4 * i);
  }
}

/// An integer that is left out when 0.
template <class Int>
void read_integer(const Record& r, const char* field, Int& to) {
  expect_length(r, field, index_t{sizeof(Int)});
  to = load_le<Int>(r.value.data());
  expect(to != 0, card_where, field, "not 0", 0);
}

inline void read_rope(const Record& r, CardRope& rope) {
  constexpr index_t fixed = 16;
  const index_t size = r.value.extent(0);
  const index_t count = (size - fixed) / 8;
  expect(size >= fixed && size % 8 == 0 && count <= most_rope_parameters, card_where, "rope",
         "16 bytes and 8 for each of at most 4096 parameters", size);
  const std::byte* const at = r.value.data();
  const auto flags = [&](index_t i, const char* field) {
    const int value = static_cast<int>(at[i]);
    expect(value <= 1, card_where, field, "0 or 1", value);
    return value == 1;
  };
  rope.rotated = flags(0, "rope.rotated");
  rope.interleaved = flags(1, "rope.interleaved");
  const auto scaling = load_le<std::uint16_t>(at + 2);
  expect(scaling <= static_cast<int>(RopeScaling::other), card_where, "rope.scaling", "0 to 6", scaling);
  rope.scaling = static_cast<RopeScaling>(scaling);
  rope.dim = load_le<std::uint32_t>(at + 4);
  rope.theta = load_double(at + 8);
  expect(is_finite(rope.theta) && rope.theta > 0, card_where, "rope.theta", "a positive number", rope.theta);
  rope.parameters.resize(static_cast<std::size_t>(count));
  for (index_t i = 0; i < count; ++i) {
    const double value = load_double(at + fixed + 8 * i);
    expect(is_finite(value), card_where, "rope.parameters", "finite numbers", value);
    rope.parameters[static_cast<std::size_t>(i)] = value;
  }
}

inline void read_record(const Record& r, const Limits& limits, CacheCard& card) {
  const std::byte* const at = r.value.data();
  switch (static_cast<Tag>(r.tag)) {
    case Tag::model:
      return read_array(r, "model", card.model);
    case Tag::tokenizer:
      return read_array(r, "tokenizer", card.tokenizer);
    case Tag::shape:
      expect_length(r, "shape", 20);
      card.layers = load_le<std::uint32_t>(at);
      card.query_heads = load_le<std::uint32_t>(at + 4);
      card.kv_heads = load_le<std::uint32_t>(at + 8);
      card.key_dim = load_le<std::uint32_t>(at + 12);
      card.value_dim = load_le<std::uint32_t>(at + 16);
      return expect(
          card.layers <= limits.max_layers, card_where, "layers", [&] { return at_most(limits.max_layers); },
          card.layers);
    case Tag::dtype: {
      expect_length(r, "dtype", 2);
      const auto dtype = load_le<std::uint16_t>(at);
      expect(dtype <= static_cast<int>(DType::e5m2), card_where, "dtype", "0 to 4", dtype);
      card.dtype = static_cast<DType>(dtype);
      return;
    }
    case Tag::rope:
      return read_rope(r, card.rope);
    case Tag::position_range:
      expect_length(r, "position_range", 8);
      card.position_begin = load_le<std::uint32_t>(at);
      card.token_count = load_le<std::uint32_t>(at + 4);
      return expect(
          index_t{card.position_begin} + card.token_count <= limits.max_tokens, card_where, "positions",
          [&] { return at_most(limits.max_tokens); }, index_t{card.position_begin} + card.token_count);
    case Tag::position_list:
      read_list(r, "position_list", limits, card.positions);
      card.position_begin = card.positions[0];
      card.token_count = static_cast<std::uint32_t>(card.positions.size());
      return;
    case Tag::token_ids:
      return read_list(r, "token_ids", limits, card.token_ids);
    case Tag::token_hash:
      read_array(r, "token_hash", card.token_hash);
      return expect(card.token_hash != std::array<std::byte, 16>{}, card_where, "token_hash", "not 0", 0);
    case Tag::creator:
      expect(r.value.extent(0) > 0 && r.value.extent(0) <= most_card_string, card_where, "creator", "1 to 4096 bytes",
             r.value.extent(0));
      card.creator.assign(reinterpret_cast<const char*>(at), static_cast<std::size_t>(r.value.extent(0)));
      return;
    case Tag::sinks:
      return read_integer(r, "sinks", card.sinks);
    case Tag::hops:
      return read_integer(r, "hops", card.hops);
    case Tag::parent:
      return read_integer(r, "parent", card.parent);
    case Tag::budget:
      expect_length(r, "budget", 8);
      card.budget = load_double(at);
      return expect(is_finite(card.budget) && card.budget > 0, card_where, "budget", "a positive number", card.budget);
  }
}

/// Elements of one token in a section of this kind.
inline index_t row_size(const CacheCard& card, Kind kind) {
  return kind == Kind::key || kind == Kind::c_kv ? card.key_dim : card.value_dim;
}

}  // namespace detail

/// The card's bytes: what Writer::add_card takes. ArgumentError for a card that could not be read back.
inline std::vector<std::byte> write_card(const CacheCard& card) {
  using detail::Tag;
  constexpr const char* where = "codec::dkvc::write_card";
  require(
      card.positions.empty() || (card.positions.size() == card.token_count && card.positions[0] == card.position_begin),
      where, "card.positions", "none, or token_count of them from position_begin", card.positions.size());
  require(card.token_ids.empty() || card.token_ids.size() == card.token_count, where, "card.token_ids",
          "none, or token_count of them", card.token_ids.size());
  require(card.creator.size() <= detail::most_card_string, where, "card.creator", "at most 4096 bytes",
          card.creator.size());
  require(detail::is_finite(card.rope.theta) && card.rope.theta > 0, where, "card.rope.theta", "a positive number",
          card.rope.theta);
  require(card.rope.parameters.size() <= detail::most_rope_parameters, where, "card.rope.parameters", "at most 4096",
          card.rope.parameters.size());
  for (const double value : card.rope.parameters) {
    require(detail::is_finite(value), where, "card.rope.parameters", "finite numbers", value);
  }
  require(detail::is_finite(card.budget) && card.budget >= 0, where, "card.budget", "0 or a positive number",
          card.budget);

  std::vector<std::byte> bytes;
  detail::CardWriter out(bytes);
  out.record(Tag::model, card.model);
  out.record(Tag::tokenizer, card.tokenizer);
  out.begin(Tag::shape, 20);
  for (const std::uint32_t n : {card.layers, card.query_heads, card.kv_heads, card.key_dim, card.value_dim}) out.put(n);
  out.record(Tag::dtype, static_cast<std::uint16_t>(card.dtype));
  out.begin(Tag::rope, 16 + 8 * card.rope.parameters.size());
  out.put(std::uint8_t{card.rope.rotated});
  out.put(std::uint8_t{card.rope.interleaved});
  out.put(static_cast<std::uint16_t>(card.rope.scaling));
  out.put(card.rope.dim);
  out.put(card.rope.theta);
  for (const double value : card.rope.parameters) out.put(value);
  if (card.positions.empty()) {
    out.begin(Tag::position_range, 8);
    out.put(card.position_begin);
    out.put(card.token_count);
  } else {
    out.record(Tag::position_list, card.positions);
  }
  if (!card.token_ids.empty()) out.record(Tag::token_ids, card.token_ids);
  if (card.token_hash != std::array<std::byte, 16>{}) out.record(Tag::token_hash, card.token_hash);
  if (!card.creator.empty()) {
    out.begin(Tag::creator, card.creator.size());
    for (const char c : card.creator) out.put(static_cast<std::uint8_t>(c));
  }
  if (card.sinks != 0) out.record(Tag::sinks, card.sinks);
  if (card.hops != 0) out.record(Tag::hops, card.hops);
  if (card.parent != 0) out.record(Tag::parent, card.parent);
  if (card.budget > 0) out.record(Tag::budget, card.budget);
  return bytes;
}

/// The card in these bytes, which are hostile. FormatError names the field. Allocates at most what the bytes hold.
inline CacheCard read_card(View<const std::byte, 1> bytes, const Limits& limits = {}) {
  using detail::Tag;
  constexpr const char* where = detail::card_where;
  validate(limits);
  require_contiguous(bytes, where, "bytes");
  CacheCard card;
  constexpr index_t head = 8;
  std::uint32_t seen = 0;
  int before = -1;
  for (index_t at = 0; at < bytes.extent(0);) {
    const index_t rest = bytes.extent(0) - at - head;
    detail::expect(rest >= 0, where, "record", "8 bytes of tag and length", rest + head);
    detail::Record r;
    r.tag = load_le<std::uint16_t>(bytes.data() + at);
    const auto reserved = load_le<std::uint16_t>(bytes.data() + at + 2);
    const index_t length = load_le<std::uint32_t>(bytes.data() + at + 4);
    detail::expect(
        static_cast<int>(r.tag) > before, where, "tag", [&] { return "more than " + std::to_string(before); }, r.tag);
    detail::expect(reserved == 0, where, "record reserved", 0, reserved);
    detail::expect(
        length <= rest, where, "record length", [&] { return detail::at_most(rest); }, length);
    r.value = bytes.slice(0, at + head, length);
    detail::read_record(r, limits, card);
    if (r.tag < 32) seen |= 1u << r.tag;
    before = r.tag;
    at += head + length;
  }
  constexpr const char* needed[] = {"", "model", "tokenizer", "shape", "dtype", "rope"};
  for (int tag = 1; tag <= 5; ++tag) {
    detail::expect((seen >> tag & 1u) != 0, where, needed[tag], "its record", "none");
  }
  const std::uint32_t lists = seen >> static_cast<int>(Tag::position_range) & 3u;
  detail::expect(lists == 1 || lists == 2, where, "positions", "a range or a list", lists == 0 ? "none" : "both");
  detail::expect(card.token_ids.empty() || card.token_ids.size() == card.token_count, where, "token_ids",
                 card.token_count, card.token_ids.size());
  return card;
}

/// Whether a cache with this card fits a receiver that would write `expected` (its own model, tokenizer, rope, shape,
/// dtype, and in position_begin the position of the first token that it wants). Positions must go up one by one from
/// there; a list, whose cache has left out tokens, must go up from there or later. O(tokens).
inline Mismatch check(const CacheCard& card, const CacheCard& expected, const Limits& limits = {}) {
  if (card.model != expected.model) return Mismatch::model;
  if (card.tokenizer != expected.tokenizer) return Mismatch::tokenizer;
  if (card.rope != expected.rope) return Mismatch::rope;
  if (card.layers != expected.layers || card.query_heads != expected.query_heads ||
      card.kv_heads != expected.kv_heads || card.key_dim != expected.key_dim || card.value_dim != expected.value_dim ||
      card.dtype != expected.dtype) {
    return Mismatch::shape;
  }
  if (card.positions.empty() && card.position_begin != expected.position_begin) return Mismatch::position_gap;
  for (std::size_t i = 0; i < card.positions.size(); ++i) {
    const std::uint32_t position = card.positions[i];
    if (i == 0 ? position < expected.position_begin : position <= card.positions[i - 1]) return Mismatch::position_gap;
  }
  const bool listed = card.positions.empty() || card.positions.size() == card.token_count;
  const bool named = card.token_ids.empty() || card.token_ids.size() == card.token_count;
  if (!listed || !named) return Mismatch::corrupt;
  const index_t end =
      card.positions.empty() ? index_t{card.position_begin} + card.token_count : index_t{card.positions.back()} + 1;
  if (card.layers > limits.max_layers || end > limits.max_tokens) return Mismatch::limits;
  return Mismatch::none;
}

/// Whether a section is one of the cache that the card describes: Mismatch::corrupt when its layer, tokens, dtype or
/// number of elements are not. Fewer rows than tokens times heads are fine: heads may keep different tokens.
inline Mismatch check(const CacheCard& card, const Section& s) {
  if (!s.is_tensor()) return Mismatch::none;
  const index_t row = detail::row_size(card, s.kind);
  const bool fits =
      s.layer < card.layers && index_t{s.token_begin} + s.token_count <= card.token_count &&
      s.dtype == static_cast<int>(card.dtype) &&
      (row == 0 ? s.element_count == 0
                : s.element_count % row == 0 && s.element_count / row <= index_t{s.token_count} * card.kv_heads);
  return fits ? Mismatch::none : Mismatch::corrupt;
}

}  // namespace decant::codec::dkvc

#endif
