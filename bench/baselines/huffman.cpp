// A payload: the code lengths as 256 nibbles, the sizes of the four streams, the streams, and 8 bytes that readers may
// touch. A stream codes a quarter of the symbols; the first symbol's bits are the lowest of the first byte.

#include <algorithm>
#include <cstring>
#include <vector>

#include "floats.hpp"

namespace baselines {
namespace {

constexpr int longest = 12;
constexpr std::size_t streams = 4;
constexpr std::size_t lengths_bytes = 128, header_bytes = lengths_bytes + streams * sizeof(std::uint32_t);

struct Code {
  std::uint16_t bits = 0;  // the first bit is the lowest
  std::uint8_t length = 0;
};

/// The lengths, at most `longest`, with the smallest total: package-merge (Larmore and Hirschberg, 1990). Level by
/// level, neighbours are paired and merged with the symbols again; a symbol's length is how often it is among the coins
/// bought.
void find_lengths(const std::uint64_t counts[256], Code codes[256]) {
  std::vector<std::uint8_t> symbols;
  for (unsigned s = 0; s < 256; ++s)
    if (counts[s] > 0) symbols.push_back(static_cast<std::uint8_t>(s));
  std::stable_sort(symbols.begin(), symbols.end(), [&](auto a, auto b) { return counts[a] < counts[b]; });
  if (symbols.size() < 2) {
    for (const std::uint8_t s : symbols) codes[s].length = 1;
    return;
  }
  std::uint64_t coins[512], packages[256];
  bool is_symbol[longest][512];
  std::size_t size = 0;
  for (auto& level : is_symbol) {
    const std::size_t pairs = size / 2;
    for (std::size_t i = 0; i < pairs; ++i) packages[i] = coins[2 * i] + coins[2 * i + 1];
    size = symbols.size() + pairs;
    for (std::size_t i = 0, s = 0, p = 0; i < size; ++i) {
      level[i] = p == pairs || (s < symbols.size() && counts[symbols[s]] <= packages[p]);
      coins[i] = level[i] ? counts[symbols[s++]] : packages[p++];
    }
  }
  std::size_t bought = 2 * symbols.size() - 2;
  for (int l = longest - 1; l >= 0; --l) {
    const auto chosen = static_cast<std::size_t>(std::count(is_symbol[l], is_symbol[l] + bought, true));
    for (std::size_t s = 0; s < chosen; ++s) ++codes[symbols[s]].length;
    bought = 2 * (bought - chosen);
  }
}

/// Codes of each length count upwards; the shorter ones come first.
void assign_bits(Code codes[256]) {
  unsigned next = 0;
  for (unsigned length = 1; length <= longest; ++length, next <<= 1)
    for (unsigned s = 0; s < 256; ++s) {
      if (codes[s].length != length) continue;
      unsigned reversed = 0;
      for (unsigned b = 0; b < length; ++b) reversed |= (next >> b & 1) << (length - 1 - b);
      codes[s].bits = static_cast<std::uint16_t>(reversed);
      ++next;
    }
}

std::byte* write_stream(const Code codes[256], const std::uint8_t* symbols, std::size_t n, std::byte* out) {
  std::uint64_t bits = 0;
  unsigned held = 0;
  const auto put = [&](std::uint8_t symbol) {
    bits |= std::uint64_t{codes[symbol].bits} << held;
    held += codes[symbol].length;
  };
  const auto flush = [&] {  // all whole bytes; at most 7 bits stay
    std::memcpy(out, &bits, 8);
    out += held / 8;
    bits >>= held / 8 * 8;
    held %= 8;
  };
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t k = 0; k < 4; ++k) put(symbols[i + k]);
    flush();
  }
  for (; i < n; ++i) put(symbols[i]);
  flush();
  std::memcpy(out, &bits, 1);
  return out + (held > 0 ? 1 : 0);
}

struct Reader {
  const std::byte* at;
  unsigned bit = 0;

  /// Up to four symbols from one load.
  template <std::size_t Count>
  void read(const std::uint16_t* table, std::uint8_t* symbols) {
    std::uint64_t bits;
    std::memcpy(&bits, at, 8);
    bits >>= bit;
    for (std::size_t k = 0; k < Count; ++k) {
      const unsigned entry = table[bits & ((1u << longest) - 1)];
      symbols[k] = static_cast<std::uint8_t>(entry);
      bits >>= entry >> 8;
      bit += entry >> 8;
    }
    at += bit / 8;
    bit %= 8;
  }
};

}  // namespace

std::size_t huffman_encode(const std::uint8_t* symbols, std::size_t n, std::byte* out) {
  std::uint64_t counts[4][256] = {};
  for (std::size_t i = 0; i < n; ++i) ++counts[i % 4][symbols[i]];
  for (unsigned s = 0; s < 256; ++s) counts[0][s] += counts[1][s] + counts[2][s] + counts[3][s];
  Code codes[256];
  find_lengths(counts[0], codes);
  assign_bits(codes);
  for (std::size_t i = 0; i < lengths_bytes; ++i)
    out[i] = static_cast<std::byte>(codes[2 * i].length | codes[2 * i + 1].length << 4);
  std::byte* at = out + header_bytes;
  for (std::size_t k = 0; k < streams; ++k) {
    const std::size_t first = n * k / streams, last = n * (k + 1) / streams;
    std::byte* const end = write_stream(codes, symbols + first, last - first, at);
    const auto size = static_cast<std::uint32_t>(end - at);
    std::memcpy(out + lengths_bytes + k * sizeof size, &size, sizeof size);
    at = end;
  }
  std::memset(at, 0, 8);
  return static_cast<std::size_t>(at + 8 - out);
}

void huffman_decode(const std::byte* in, std::size_t, std::uint8_t* symbols, std::size_t n) {
  Code codes[256];
  for (std::size_t s = 0; s < 256; ++s)
    codes[s].length = static_cast<std::uint8_t>(static_cast<unsigned>(in[s / 2]) >> (s % 2 * 4) & 15);
  assign_bits(codes);
  std::uint16_t table[1 << longest] = {};  // symbol, and length in the upper byte
  for (unsigned s = 0; s < 256; ++s) {
    if (codes[s].length == 0) continue;
    for (unsigned i = codes[s].bits; i < 1 << longest; i += 1u << codes[s].length)
      table[i] = static_cast<std::uint16_t>(s | unsigned{codes[s].length} << 8);
  }
  Reader readers[streams];
  std::uint8_t* to[streams];
  const std::byte* at = in + header_bytes;
  for (std::size_t k = 0; k < streams; ++k) {
    std::uint32_t size;
    std::memcpy(&size, in + lengths_bytes + k * sizeof size, sizeof size);
    readers[k].at = at;
    to[k] = symbols + n * k / streams;
    at += size;
  }
  const std::size_t fours = n / streams / 4;
  for (std::size_t i = 0; i < fours; ++i)
    for (std::size_t k = 0; k < streams; ++k) readers[k].read<4>(table, to[k] + 4 * i);
  for (std::size_t k = 0; k < streams; ++k) {
    std::uint8_t* const end = symbols + n * (k + 1) / streams;
    for (std::uint8_t* s = to[k] + 4 * fours; s < end; ++s) readers[k].read<1>(table, s);
  }
}

}  // namespace baselines
