// decant: Stored, the codec that does nothing: a payload is the elements' bits, little-endian. What others are measured
// against, and what the container falls back to where a codec saves nothing.
#ifndef DECANT_CODEC_STORED_HPP
#define DECANT_CODEC_STORED_HPP

#include <cstring>
#include <type_traits>

#include "../core/bytes.hpp"
#include "../core/cpu.hpp"
#include "detail/arguments.hpp"
#include "policy.hpp"

namespace decant::codec {

/// T: any storage type.
template <Storage T>
struct Stored {
  using element = T;
  static constexpr CodecId codec_id = CodecId::stored;
  static constexpr bool lossless = true;
  bool operator==(const Stored&) const = default;
};

namespace detail {

inline constexpr bool big_endian_host = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

/// Copies elements of `size` bytes between host order and little-endian, either way. The host's order is a parameter so
/// that the path of a big-endian host is tested on any.
template <bool BigEndianHost = big_endian_host>
void copy_little_endian(const void* from, void* to, index_t count, index_t size) {
  if (count == 0) return;
  if (!BigEndianHost || size == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count * size));
    return;
  }
  const auto* in = static_cast<const unsigned char*>(from);
  auto* out = static_cast<unsigned char*>(to);
  for (index_t i = 0; i < count; ++i) {
    for (index_t b = 0; b < size; ++b) out[i * size + b] = in[i * size + size - 1 - b];
  }
}

}  // namespace detail

template <Storage T>
Stored<T> calibrate(Cpu&, const Stored<T>& codec, std::type_identity_t<View<const T, 1>>) {
  return codec;
}

template <Storage T>
index_t max_encoded_size(const Stored<T>&, index_t n) {
  require(n >= 0, "codec::max_encoded_size", "n", "at least 0", n);
  return n * index_t{sizeof(T)};
}

/// x [n] contiguous, out at least n * sizeof(T) bytes.
template <Storage T>
void encode(Cpu&, const Stored<T>& codec, std::type_identity_t<View<const T, 1>> x, View<std::byte, 1> out,
            index_t* size) {
  const index_t bytes = max_encoded_size(codec, x.extent(0));
  detail::require_encode(x, out, bytes);
  detail::copy_little_endian(x.data(), out.data(), x.extent(0), sizeof(T));
  *size = bytes;
}

/// y [n] contiguous. FormatError unless `in` has n * sizeof(T) bytes.
template <Storage T>
void decode(Cpu&, const Stored<T>&, View<const std::byte, 1> in, std::type_identity_t<View<T, 1>> y) {
  constexpr const char* where = "codec::decode";
  detail::require_decode(where, in, y);
  const index_t bytes = y.extent(0) * index_t{sizeof(T)};
  if (in.extent(0) != bytes) decant::detail::fail_format(where, "in", bytes, in.extent(0));
  detail::copy_little_endian(in.data(), y.data(), y.extent(0), sizeof(T));
}

template <Storage T>
Stored<T> codec_of(const Stored<T>& codec, View<const std::byte, 1>) {
  return codec;
}

static_assert(KVCodec<Stored<bf16>, Cpu>);

}  // namespace decant::codec

#endif
