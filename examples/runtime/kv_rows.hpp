// KV rows as dumps and DKVC sections hold them: keys and values of a layer as [tokens, kv_heads, dim], row-major; how
// they come out of a cache, which codec suits them, and the card that says whose they are.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <decant/codec/cache_card.hpp>
#include <decant/codec/dkvc.hpp>

#include "config.hpp"
#include "safetensors.hpp"

namespace runtime {

namespace codec = decant::codec;
namespace dkvc = decant::codec::dkvc;
using decant::View;

/// The kinds of tensor that a layer has, in the order in which they are stored.
constexpr dkvc::Kind both_kinds[] = {dkvc::Kind::key, dkvc::Kind::value};

struct KVShape {
  DType dtype = DType::bf16;
  index_t layers = 0;
  index_t tokens = 0;
  index_t kv_heads = 0;
  index_t key_dim = 0;
  index_t value_dim = 0;
  bool operator==(const KVShape&) const = default;

  index_t dim(dkvc::Kind kind) const { return kind == dkvc::Kind::key ? key_dim : value_dim; }
  /// Elements of one layer's keys or values.
  index_t elements(dkvc::Kind kind) const { return tokens * kv_heads * dim(kind); }
  index_t bytes() const { return layers * tokens * kv_heads * (key_dim + value_dim) * decant::size_of(dtype); }
};

/// Calls f with a value of the storage type that `dtype` names.
template <class F>
decltype(auto) with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f16:
      return f(decant::fp16{});
    case DType::bf16:
      return f(decant::bf16{});
    case DType::e4m3:
      return f(decant::fp8_e4m3{});
    case DType::e5m2:
      return f(decant::fp8_e5m2{});
    default:
      return f(float{});
  }
}

template <class T>
View<const std::byte, 1> bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), static_cast<index_t>(values.size() * sizeof(T))};
}

/// The rows [tokens, heads, dim] that row(head, token) points to, as T's: exactly when they are T's already.
template <class T, class Row>
std::vector<T> token_major(index_t tokens, index_t heads, index_t dim, Row&& row) {
  std::vector<T> rows;
  rows.reserve(static_cast<std::size_t>(tokens * heads * dim));
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t h = 0; h < heads; ++h) {
      const auto* const from = row(h, t);
      for (index_t d = 0; d < dim; ++d) rows.push_back(T(from[d]));
    }
  }
  return rows;
}

/// Keys or values of a cache of one sequence whose heads hold the same tokens.
template <class T, class CacheView>
std::vector<T> rows_of(const CacheView& cache, dkvc::Kind kind) {
  const index_t tokens = cache.length(0, 0);
  return kind == dkvc::Kind::key ? token_major<T>(tokens, cache.kv_heads(), cache.key_dim(),
                                                  [&](index_t h, index_t t) { return cache.key(0, h, t); })
                                 : token_major<T>(tokens, cache.kv_heads(), cache.value_dim(),
                                                  [&](index_t h, index_t t) { return cache.value(0, h, t); });
}

// --- codecs ----------------------------------------------------------------------------------------------------------

/// SplitZip where the type has it, else the plain bits.
template <class T>
struct CodecFor {
  using type = codec::Stored<T>;
};
template <codec::SplitZipElement T>
struct CodecFor<T> {
  using type = codec::SplitZip<T>;
};

/// One codec for all keys of a model and one for all values: their exponents differ.
template <class T>
struct KVCodecs {
  typename CodecFor<T>::type keys;
  typename CodecFor<T>::type values;
  const auto& of(dkvc::Kind kind) const { return kind == dkvc::Kind::key ? keys : values; }
};

/// Counts the exponents of a T [2^bits], for as many samples as add() is called with.
template <codec::SplitZipElement T>
class ExponentCounts {
 public:
  void add(decant::Cpu& cpu, View<const T, 1> x) {
    std::vector<std::uint64_t> more(counts_.size());
    histogram(cpu, codec::SplitZip<T>{}, x, View<std::uint64_t, 1>(more));
    for (std::size_t e = 0; e < more.size(); ++e) counts_[e] += more[e];
  }
  View<const std::uint64_t, 1> counts() const { return counts_; }

  codec::SplitZip<T> codec() const {
    codec::SplitZip<T> fitted;
    fitted.book = codec::best_codebook<T>(counts_, fitted.chunk, fitted.reserve_zero);
    return fitted;
  }

 private:
  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(std::size_t{1} << codec::FloatBits<T>::exponent);
};

/// The codecs for a model from the rows of its layers: rows(layer, kind) is a view of a sample.
template <class T, class Rows>
KVCodecs<T> fit_codecs(decant::Cpu& cpu, index_t layers, Rows&& rows) {
  KVCodecs<T> codecs;
  if constexpr (codec::SplitZipElement<T>) {
    for (const dkvc::Kind kind : both_kinds) {
      ExponentCounts<T> counts;
      for (index_t layer = 0; layer < layers; ++layer) counts.add(cpu, rows(layer, kind));
      (kind == dkvc::Kind::key ? codecs.keys : codecs.values) = counts.codec();
    }
  }
  return codecs;
}

// --- the card --------------------------------------------------------------------------------------------------------

inline dkvc::CacheCard card_of(const KVShape& shape) {
  dkvc::CacheCard card;
  card.layers = static_cast<std::uint32_t>(shape.layers);
  card.kv_heads = static_cast<std::uint32_t>(shape.kv_heads);
  card.key_dim = static_cast<std::uint32_t>(shape.key_dim);
  card.value_dim = static_cast<std::uint32_t>(shape.value_dim);
  card.dtype = shape.dtype;
  card.token_count = static_cast<std::uint32_t>(shape.tokens);
  card.creator = "decant examples";
  return card;
}

/// FormatError when the card claims more bytes than there are numbers for.
inline KVShape shape_of(const dkvc::CacheCard& card) {
  const KVShape shape = {card.dtype,
                         index_t{card.layers},
                         index_t{card.token_count},
                         index_t{card.kv_heads},
                         index_t{card.key_dim},
                         index_t{card.value_dim}};
  index_t bytes = decant::size_of(shape.dtype);
  for (const index_t n : {shape.layers, shape.tokens, shape.kv_heads, shape.key_dim + shape.value_dim}) {
    if (__builtin_mul_overflow(bytes, n, &bytes)) bad_format("the card's shape", "fewer than 2^63 bytes", "more");
  }
  return shape;
}

/// The card of a cache that this model makes of so many tokens. Reads all weights, for the model's fingerprint.
inline dkvc::CacheCard card_of(const Config& config, const Checkpoint& checkpoint, DType dtype, index_t tokens) {
  dkvc::CacheCard card = card_of({dtype, config.layers, tokens, config.kv_heads, config.head_dim, config.head_dim});
  card.query_heads = static_cast<std::uint32_t>(config.heads);
  card.rope.theta = config.rope_theta;
  if (!config.rope_frequencies.empty()) card.rope.scaling = dkvc::RopeScaling::other;
  card.rope.parameters = config.rope_frequencies;
  // A fingerprint tells models apart that were never meant to be confused; against forgers it would have to be signed.
  std::uint64_t hashes[2] = {};
  checkpoint.for_each([&](const std::string& name, const Tensor& tensor) {
    const View<const std::byte, 1> text(reinterpret_cast<const std::byte*>(name.data()),
                                        static_cast<index_t>(name.size()));
    hashes[0] = 31 * hashes[0] + codec::xxh3_64(text);
    hashes[1] = 31 * hashes[1] + codec::xxh3_64({tensor.data, tensor.bytes});
  });
  std::memcpy(card.model.data(), hashes, sizeof hashes);
  std::memcpy(card.tokenizer.data(), "bytes", 5);
  return card;
}

}  // namespace runtime
