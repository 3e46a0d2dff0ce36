#pragma once
// Floats taken apart as ZipNN (arXiv 2411.05239) does before it compresses them: exponents as bytes of their own; sign
// and mantissa packed without gaps. And the two entropy coders that such schemes use for exponents, written plainly.

#include <cstddef>
#include <cstdint>

namespace baselines {

struct FloatFormat {
  int exponent_bits, mantissa_bits;  // and a sign; 8 or 16 bits in all

  std::size_t element_bytes() const { return static_cast<std::size_t>(exponent_bits + mantissa_bits + 1) / 8; }
  std::size_t rest_bytes(std::size_t n) const { return (n + 7) / 8 * static_cast<std::size_t>(mantissa_bits + 1); }
};

// n elements x; exponents [n]; rest [rest_bytes(n)].
void split_floats(const FloatFormat& format, const std::byte* x, std::size_t n, std::uint8_t* exponents,
                  std::byte* rest);
void join_floats(const FloatFormat& format, const std::uint8_t* exponents, const std::byte* rest, std::size_t n,
                 std::byte* x);

// Canonical Huffman codes of at most 12 bits, optimal for the symbols given; four streams, so that decoding has four
// chains of look-ups in flight. The encoder needs room for 2 n + 4096 bytes and returns how many it used.
std::size_t huffman_encode(const std::uint8_t* symbols, std::size_t n, std::byte* out);
void huffman_decode(const std::byte* in, std::size_t size, std::uint8_t* symbols, std::size_t n);

// rANS with 32 interleaved states of 32 bits, 16-bit renormalisation and 12-bit probabilities; room as above.
std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n, std::byte* out);
void rans_decode(const std::byte* in, std::size_t size, std::uint8_t* symbols, std::size_t n);

}  // namespace baselines
