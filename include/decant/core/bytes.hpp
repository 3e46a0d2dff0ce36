// decant: little-endian integers in bytes, as file and wire formats have them: by shifts, so that any host reads and
// writes the same bytes at any address. Compilers make one load or store of each (g++ does of a fold, not of a loop).
#ifndef DECANT_CORE_BYTES_HPP
#define DECANT_CORE_BYTES_HPP

#include <concepts>
#include <cstddef>
#include <utility>

#include "../config.hpp"

namespace decant {

namespace detail {

template <class Int, std::size_t... At>
DECANT_HD constexpr Int load_bytes(const std::byte* from, std::index_sequence<At...>) {
  return static_cast<Int>((... | static_cast<Int>(static_cast<Int>(from[At]) << (8 * At))));
}

template <class Int, std::size_t... At>
DECANT_HD constexpr void store_bytes(std::byte* to, Int value, std::index_sequence<At...>) {
  ((to[At] = static_cast<std::byte>(value >> (8 * At) & 0xffu)), ...);
}

}  // namespace detail

/// The integer at `from`, which need not be aligned.
template <std::unsigned_integral Int>
DECANT_HD constexpr Int load_le(const std::byte* from) {
  return detail::load_bytes<Int>(from, std::make_index_sequence<sizeof(Int)>{});
}

/// Writes sizeof(Int) bytes at `to`, which need not be aligned.
template <std::unsigned_integral Int>
DECANT_HD constexpr void store_le(std::byte* to, Int value) {
  detail::store_bytes<Int>(to, value, std::make_index_sequence<sizeof(Int)>{});
}

}  // namespace decant

#endif
