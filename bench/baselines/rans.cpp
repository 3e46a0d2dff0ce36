// A payload: the probability of every symbol as u16, words, the final states. The encoder goes through the symbols
// backwards and writes words forwards; the decoder starts with the last word. Symbol i is of state i % 32.

#include <algorithm>
#include <cstring>

#include "floats.hpp"

namespace baselines {
namespace {

constexpr std::size_t states = 32;
constexpr unsigned probability_bits = 12, whole = 1u << probability_bits;
constexpr std::uint32_t lowest = 1u << 16;  // a state lies in [lowest, 2^32)

/// Shares of `whole`, at least 1 for what occurs; rounding is settled with the largest.
void find_probabilities(const std::uint64_t counts[256], std::size_t n, std::uint16_t p[256]) {
  unsigned sum = 0;
  for (unsigned s = 0; s < 256; ++s) {
    const std::uint64_t share = n == 0 ? 0 : (counts[s] * whole + n / 2) / n;
    p[s] = static_cast<std::uint16_t>(counts[s] > 0 ? std::max<std::uint64_t>(share, 1) : 0);
    sum += p[s];
  }
  for (; n > 0 && sum != whole; sum += sum < whole ? 1 : -1) {
    std::uint16_t& largest = *std::max_element(p, p + 256);
    largest = static_cast<std::uint16_t>(sum < whole ? largest + 1 : largest - 1);
  }
}

}  // namespace

std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n, std::byte* out) {
  std::uint64_t counts[4][256] = {};
  for (std::size_t i = 0; i < n; ++i) ++counts[i % 4][symbols[i]];
  for (unsigned s = 0; s < 256; ++s) counts[0][s] += counts[1][s] + counts[2][s] + counts[3][s];
  std::uint16_t p[256];
  find_probabilities(counts[0], n, p);
  std::memcpy(out, p, sizeof p);
  std::byte* at = out + sizeof p;
  std::uint32_t start[256], sum = 0;
  for (unsigned s = 0; s < 256; ++s) {
    start[s] = sum;
    sum += p[s];
  }
  std::uint32_t state[states];
  std::fill(state, state + states, lowest);
  for (std::size_t i = n; i-- > 0;) {
    const std::uint8_t s = symbols[i];
    std::uint32_t x = state[i % states];
    // Room for the symbol; written and kept or not, as a branch would be mispredicted.
    const bool full = x >> (32 - probability_bits) >= p[s];
    std::memcpy(at, &x, 2);
    at += full ? 2 : 0;
    x = full ? x >> 16 : x;
    state[i % states] = (x / p[s] << probability_bits) + x % p[s] + start[s];
  }
  std::memcpy(at, state, sizeof state);
  return static_cast<std::size_t>(at + sizeof state - out);
}

void rans_decode(const std::byte* in, std::size_t size, std::uint8_t* symbols, std::size_t n) {
  std::uint16_t p[256];
  std::memcpy(p, in, sizeof p);
  std::uint32_t table[whole] = {};  // symbol, probability - 1 (12 bits), place within the symbol's share (12 bits)
  for (std::uint32_t s = 0, slot = 0; s < 256; ++s)
    for (std::uint32_t place = 0; place < p[s]; ++place)
      table[slot++] = s | (p[s] - 1u) << 8 | place << (8 + probability_bits);
  std::uint32_t state[states];
  const std::byte* at = in + size - sizeof state;
  std::memcpy(state, at, sizeof state);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t x = state[i % states];
    const std::uint32_t entry = table[x % whole];
    symbols[i] = static_cast<std::uint8_t>(entry);
    x = ((entry >> 8) % whole + 1) * (x >> probability_bits) + (entry >> (8 + probability_bits));
    std::uint16_t word;
    std::memcpy(&word, at - 2, 2);
    const bool low = x < lowest;
    at -= low ? 2 : 0;
    state[i % states] = low ? x << 16 | word : x;
  }
}

}  // namespace baselines
