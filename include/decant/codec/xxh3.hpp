// decant: XXH3-64 (Yann Collet; the specification of the xxHash family, version 0.2), seed 0 and the default secret: a
// fast hash of bytes that names a cache card, and the container's second checksum. Written from the specification in
// portable code; the results are those of XXH3_64bits. Not cryptographic: whoever wants a collision can make one.
#ifndef DECANT_CODEC_XXH3_HPP
#define DECANT_CODEC_XXH3_HPP

#include <cstddef>
#include <cstdint>

#include "../core/bytes.hpp"
#include "../core/view.hpp"

namespace decant::codec {

namespace detail::xxh3 {

inline constexpr std::uint64_t prime32_1 = 0x9e3779b1u;
inline constexpr std::uint64_t prime32_2 = 0x85ebca77u;
inline constexpr std::uint64_t prime32_3 = 0xc2b2ae3du;
inline constexpr std::uint64_t prime64_1 = 0x9e3779b185ebca87u;
inline constexpr std::uint64_t prime64_2 = 0xc2b2ae3d27d4eb4fu;
inline constexpr std::uint64_t prime64_3 = 0x165667b19e3779f9u;
inline constexpr std::uint64_t prime64_4 = 0x85ebca77c2b2ae63u;
inline constexpr std::uint64_t prime64_5 = 0x27d4eb2f165667c5u;
inline constexpr std::uint64_t prime_mx1 = 0x165667919e3779f9u;
inline constexpr std::uint64_t prime_mx2 = 0x9fb21c651e98df25u;

inline constexpr int secret_size = 192;

/// The default secret's 192 bytes, as 24 little-endian words.
inline constexpr std::uint64_t secret_words[secret_size / 8] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu,
    0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu, 0xa32e531b8b65d088u,
    0x4ef90da297486471u, 0xd8acdea946ef1938u, 0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
    0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
};

/// The secret's eight bytes at every byte offset: the stripes' keys are eight bytes apart, the other mixes' are not.
struct Secrets {
  std::uint64_t at[secret_size - 7];
};

constexpr Secrets make_secrets() {
  Secrets secrets{};
  for (int i = 0; i < secret_size - 7; ++i) {
    const int shift = 8 * (i % 8);
    const std::uint64_t low = secret_words[i / 8] >> shift;
    secrets.at[i] = shift == 0 ? low : low | secret_words[i / 8 + 1] << (64 - shift);
  }
  return secrets;
}

inline constexpr Secrets secrets = make_secrets();

constexpr std::uint64_t secret(int at) {
  return secrets.at[at];
}

constexpr std::uint32_t secret32(int at) {
  return static_cast<std::uint32_t>(secret(at));
}

constexpr std::uint64_t swap_bytes(std::uint64_t x) {
  std::uint64_t swapped = 0;
  for (int i = 0; i < 8; ++i) swapped = swapped << 8 | (x >> (8 * i) & 0xffu);
  return swapped;
}

constexpr std::uint64_t rotate_left(std::uint64_t x, int by) {
  return x << by | x >> (64 - by);
}

/// The two halves of the 128-bit product, xored.
constexpr std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t low_low = (a & 0xffffffffu) * (b & 0xffffffffu);
  const std::uint64_t high_low = (a >> 32) * (b & 0xffffffffu);
  const std::uint64_t low_high = (a & 0xffffffffu) * (b >> 32);
  const std::uint64_t cross = (low_low >> 32) + (high_low & 0xffffffffu) + low_high;
  const std::uint64_t high = (high_low >> 32) + (cross >> 32) + (a >> 32) * (b >> 32);
  return (cross << 32 | (low_low & 0xffffffffu)) ^ high;
}

constexpr std::uint64_t avalanche(std::uint64_t h) {
  h = (h ^ h >> 37) * prime_mx1;
  return h ^ h >> 32;
}

/// The finaliser of XXH64.
constexpr std::uint64_t avalanche_64(std::uint64_t h) {
  h = (h ^ h >> 33) * prime64_2;
  h = (h ^ h >> 29) * prime64_3;
  return h ^ h >> 32;
}

constexpr std::uint64_t word(const std::byte* from) {
  return load_le<std::uint64_t>(from);
}

constexpr std::uint64_t mix_16(const std::byte* in, int at) {
  return multiply_fold(word(in) ^ secret(at), word(in + 8) ^ secret(at + 8));
}

constexpr std::uint64_t hash_up_to_16(const std::byte* in, index_t size) {
  const auto length = static_cast<std::uint64_t>(size);
  if (size > 8) {
    const std::uint64_t low = word(in) ^ secret(24) ^ secret(32);
    const std::uint64_t high = word(in + size - 8) ^ secret(40) ^ secret(48);
    return avalanche(length + swap_bytes(low) + high + multiply_fold(low, high));
  }
  if (size >= 4) {
    const std::uint64_t first = load_le<std::uint32_t>(in);
    const std::uint64_t last = load_le<std::uint32_t>(in + size - 4);
    std::uint64_t h = (last | first << 32) ^ secret(8) ^ secret(16);
    h ^= rotate_left(h, 49) ^ rotate_left(h, 24);
    h *= prime_mx2;
    h ^= (h >> 35) + length;
    h *= prime_mx2;
    return h ^ h >> 28;
  }
  if (size > 0) {
    const auto byte_at = [in](index_t i) { return static_cast<std::uint32_t>(in[i]); };
    const std::uint32_t all =
        byte_at(0) << 16 | byte_at(size >> 1) << 24 | byte_at(size - 1) | static_cast<std::uint32_t>(length) << 8;
    return avalanche_64(all ^ std::uint64_t{secret32(0) ^ secret32(4)});
  }
  return avalanche_64(secret(56) ^ secret(64));
}

constexpr std::uint64_t hash_up_to_128(const std::byte* in, index_t size) {
  std::uint64_t sum = static_cast<std::uint64_t>(size) * prime64_1;
  for (index_t i = (size - 1) / 32; i >= 0; --i) {
    const auto at = static_cast<int>(32 * i);
    sum += mix_16(in + 16 * i, at) + mix_16(in + size - 16 * (i + 1), at + 16);
  }
  return avalanche(sum);
}

constexpr std::uint64_t hash_up_to_240(const std::byte* in, index_t size) {
  std::uint64_t sum = static_cast<std::uint64_t>(size) * prime64_1;
  for (int i = 0; i < 8; ++i) sum += mix_16(in + 16 * i, 16 * i);
  sum = avalanche(sum);
  for (int i = 8; i < size / 16; ++i) sum += mix_16(in + 16 * i, 16 * (i - 8) + 3);
  return avalanche(sum + mix_16(in + size - 16, 136 - 17));
}

constexpr void accumulate(std::uint64_t (&lanes)[8], const std::byte* in, int at) {
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t value = word(in + 8 * i);
    const std::uint64_t key = value ^ secret(at + 8 * i);
    lanes[i ^ 1] += value;
    lanes[i] += (key & 0xffffffffu) * (key >> 32);
  }
}

constexpr std::uint64_t hash_long(const std::byte* in, index_t size) {
  std::uint64_t lanes[8] = {prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1};
  constexpr int stripe = 64;
  constexpr int stripes_in_block = (secret_size - stripe) / 8;
  const index_t stripes = (size - 1) / stripe;  // the last one, which may overlap, apart
  for (index_t s = 0; s < stripes; ++s) {
    const auto in_block = static_cast<int>(s % stripes_in_block);
    accumulate(lanes, in + s * stripe, 8 * in_block);
    if (in_block == stripes_in_block - 1) {
      for (int i = 0; i < 8; ++i) {
        lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ secret(secret_size - stripe + 8 * i)) * prime32_1;
      }
    }
  }
  accumulate(lanes, in + size - stripe, secret_size - stripe - 7);
  std::uint64_t sum = static_cast<std::uint64_t>(size) * prime64_1;
  for (int i = 0; i < 4; ++i) {
    sum += multiply_fold(lanes[2 * i] ^ secret(11 + 16 * i), lanes[2 * i + 1] ^ secret(11 + 16 * i + 8));
  }
  return avalanche(sum);
}

}  // namespace detail::xxh3

/// XXH3-64 of `bytes`, which must be contiguous. O(bytes).
inline std::uint64_t xxh3_64(View<const std::byte, 1> bytes) {
  require_contiguous(bytes, "codec::xxh3_64", "bytes");
  const index_t size = bytes.extent(0);
  if (size <= 16) return detail::xxh3::hash_up_to_16(bytes.data(), size);
  if (size <= 128) return detail::xxh3::hash_up_to_128(bytes.data(), size);
  if (size <= 240) return detail::xxh3::hash_up_to_240(bytes.data(), size);
  return detail::xxh3::hash_long(bytes.data(), size);
}

}  // namespace decant::codec

#endif
