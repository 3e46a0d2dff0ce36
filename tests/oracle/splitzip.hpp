#pragma once
// A SplitZip payload by its description, one element at a time: strings of bits, padded, put one after another. No code
// in common with decant.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace oracle {

using Bytes = std::vector<std::uint8_t>;

/// A float format: 1 sign bit, then these.
struct SplitZipFormat {
  unsigned exponent_bits, mantissa_bits;
  unsigned bytes() const { return (1 + exponent_bits + mantissa_bits) / 8; }
};

class SplitZipWriter {
 public:
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) all.push_back(static_cast<std::uint8_t>(i < 8 ? value >> (8 * i) : 0));
  }
  void align() {
    while (all.size() % 64 != 0) all.push_back(0);
  }
  void append(const Bytes& more) { all.insert(all.end(), more.begin(), more.end()); }

  Bytes all;
};

/// Bits [low, low + width) of each field, the first in the high bits of the first byte.
inline Bytes splitzip_plane(const std::vector<unsigned>& fields, unsigned low, unsigned width) {
  std::vector<bool> bits;
  for (const unsigned f : fields)
    for (unsigned b = width; b-- > 0;) bits.push_back((f >> (low + b) & 1u) != 0);
  while (bits.size() % 8 != 0) bits.push_back(false);
  Bytes bytes;
  for (std::size_t i = 0; i < bits.size(); i += 8) {
    unsigned byte = 0;
    for (std::size_t b = 0; b < 8; ++b) byte = byte * 2 + (bits[i + b] ? 1 : 0);
    bytes.push_back(static_cast<std::uint8_t>(byte));
  }
  return bytes;
}

/// The planes of fields of `width` bits: the widest that fits, of the highest bits, first.
inline std::vector<Bytes> splitzip_planes(const std::vector<unsigned>& fields, unsigned width) {
  std::vector<Bytes> planes;
  while (width > 0) {
    const unsigned plane = width >= 8 ? 8 : width >= 4 ? 4 : width >= 2 ? 2 : 1;
    planes.push_back(splitzip_plane(fields, width - plane, plane));
    width -= plane;
  }
  return planes;
}

/// The payload of the words x. book: ascending exponents, 16 or 8 of them, or none for a raw payload. wrong: a
/// chunk that is written in the form that is not its own, which makes the payload a forged one.
inline Bytes splitzip(const SplitZipFormat& f, const std::vector<unsigned>& x, unsigned chunk,
                      const std::vector<unsigned>& book, std::size_t wrong = static_cast<std::size_t>(-1)) {
  const unsigned code_bits = book.size() == 16 ? 4 : book.size() == 8 ? 3 : 0;
  const unsigned rest_bits = 1 + f.mantissa_bits;
  const unsigned high_bits = f.exponent_bits - code_bits;

  SplitZipWriter raw;
  raw.number(chunk, 4);
  raw.number(0, 20);
  raw.number(x.size(), 8);
  raw.number(0, 32);
  for (const unsigned word : x) raw.number(word, static_cast<int>(f.bytes()));
  if (code_bits == 0) return raw.all;

  std::vector<unsigned> codes, rests;
  Bytes side;
  std::vector<unsigned> directory;
  std::vector<std::uint64_t> super;
  for (std::size_t begin = 0; begin < x.size(); begin += chunk) {
    const std::size_t end = std::min(begin + chunk, x.size());
    if (begin / chunk % 64 == 0) super.push_back(side.size());
    std::vector<unsigned> exponents;
    std::vector<std::size_t> escapes;
    for (std::size_t i = begin; i < end; ++i) {
      const unsigned sign = x[i] >> (f.exponent_bits + f.mantissa_bits);
      const unsigned exponent = (x[i] >> f.mantissa_bits) % (1u << f.exponent_bits);
      const unsigned mantissa = x[i] % (1u << f.mantissa_bits);
      exponents.push_back(exponent);
      // Three bits of rest are two of mantissa and one of sign; else the sign stands before the mantissa.
      rests.push_back(rest_bits == 3 ? mantissa * 2 + sign : sign * (1u << f.mantissa_bits) + mantissa);
      const auto found = std::find(book.begin(), book.end(), exponent);
      if (found == book.end()) escapes.push_back(i - begin);
      codes.push_back(found == book.end() ? 0 : static_cast<unsigned>(found - book.begin()));
    }
    Bytes high;
    std::vector<unsigned> high_fields;
    for (const unsigned e : exponents) high_fields.push_back(e >> code_bits);
    for (const Bytes& plane : splitzip_planes(high_fields, high_bits))
      high.insert(high.end(), plane.begin(), plane.end());
    if ((3 * escapes.size() > high.size()) != (begin / chunk == wrong)) {
      directory.push_back(1u << 14);
      for (std::size_t i = begin; i < end; ++i) codes[i] = exponents[i - begin] % (1u << code_bits);
      side.insert(side.end(), high.begin(), high.end());
    } else {
      directory.push_back(static_cast<unsigned>(escapes.size()));
      for (const std::size_t p : escapes) {
        side.push_back(static_cast<std::uint8_t>(p % 256));
        side.push_back(static_cast<std::uint8_t>(p / 256));
      }
      for (const std::size_t p : escapes) side.push_back(static_cast<std::uint8_t>(exponents[p]));
    }
  }

  SplitZipWriter body;
  for (const Bytes& plane : splitzip_planes(codes, code_bits)) {
    body.append(plane);
    body.align();
  }
  const std::size_t len_code = body.all.size();
  for (const Bytes& plane : splitzip_planes(rests, rest_bits)) {
    body.append(plane);
    body.align();
  }
  const std::size_t len_rest = body.all.size() - len_code;
  for (const unsigned entry : directory) body.number(entry, 2);
  body.align();
  for (const std::uint64_t at : super) body.number(at, 8);
  body.align();
  body.append(side);

  SplitZipWriter payload;
  payload.number(chunk, 4);
  payload.number(code_bits, 1);
  payload.number(0, 3);
  for (std::size_t c = 0; c < 16; ++c) payload.number(c < book.size() ? book[c] : 0, 1);
  payload.number(x.size(), 8);
  payload.number(len_code, 8);
  payload.number(len_rest, 8);
  payload.number(side.size(), 8);
  payload.number(0, 8);
  payload.append(body.all);
  return payload.all.size() < raw.all.size() ? payload.all : raw.all;
}

}  // namespace oracle
