#pragma once
// Elements to code, books to code them with, and calls that take and give vectors.
#include <cmath>
#include <cstring>
#include <vector>

#include "decant/codec/splitzip.hpp"
#include "oracle/splitzip.hpp"

namespace codec_test {

using decant::index_t;
using decant::View;
using decant::codec::Codebook;
using decant::codec::SplitZip;
using oracle::Bytes;

inline std::size_t at(index_t i) {
  return static_cast<std::size_t>(i);
}

/// splitmix64 (Vigna), a stream of random words.
struct Random {
  std::uint64_t state;
  std::uint64_t operator()() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  index_t below(index_t n) { return static_cast<index_t>((*this)() % static_cast<std::uint64_t>(n)); }
  double uniform() { return (static_cast<double>((*this)() >> 11) + 0.5) * 0x1p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()); }
};

template <class T>
T element(std::uint64_t bits) {
  return T::from_bits(static_cast<decltype(T{}.bits)>(bits));
}

template <class T>
constexpr oracle::SplitZipFormat format{decant::codec::FloatBits<T>::exponent, decant::codec::FloatBits<T>::mantissa};

template <class T>
inline constexpr int exponents = 1 << decant::codec::FloatBits<T>::exponent;

/// n elements whose exponents come from the book but for a share of them, which are uniform; other bits are uniform.
template <class T>
std::vector<T> mostly_coded(Random& random, index_t n, const Codebook& book, double escapes) {
  using F = decant::codec::FieldCodecOf<T, 3>;
  std::vector<T> x(at(n));
  for (T& e : x) {
    const std::uint64_t bits = random();
    const bool coded = book.size() > 0 && random.uniform() >= escapes;
    const unsigned exponent = coded ? book.exponents[bits >> 32 & at(book.size() - 1)] : F::exponent(bits & 0xffffu);
    e = element<T>(F::with_exponent(static_cast<unsigned>(bits & 0xffffu), exponent));
  }
  return x;
}

/// n elements of N(0, scale^2).
template <class T>
std::vector<T> normals(Random& random, index_t n, double scale = 1) {
  std::vector<T> x(at(n));
  for (T& e : x) e = T(static_cast<float>(scale * random.normal()));
  return x;
}

template <class T>
View<const T, 1> view(const std::vector<T>& x) {
  return {x.data(), static_cast<index_t>(x.size())};
}
template <class T>
View<T, 1> view(std::vector<T>& x) {
  return {x.data(), static_cast<index_t>(x.size())};
}
inline View<const std::byte, 1> bytes_of(const Bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), static_cast<index_t>(bytes.size())};
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// The payload, in room that held other bytes before.
template <class T>
Bytes encoded(decant::Cpu& cpu, const SplitZip<T>& codec, const std::vector<T>& x) {
  Bytes out(at(max_encoded_size(codec, static_cast<index_t>(x.size()))), 0xa5);
  index_t size = -1;
  encode(cpu, codec, view(x), {reinterpret_cast<std::byte*>(out.data()), static_cast<index_t>(out.size())}, &size);
  out.resize(at(size));
  return out;
}

template <class T>
std::vector<T> decoded(decant::Cpu& cpu, const SplitZip<T>& codec, const Bytes& payload, index_t n) {
  std::vector<T> y(at(n), element<T>(0x55));
  decode(cpu, codec, bytes_of(payload), view(y));
  return y;
}

/// Elements in memory that begins at a line, as results that are streamed do.
template <class T>
struct Lines {
  explicit Lines(index_t n) : memory(at(n) * sizeof(T) + 64) {}
  T* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return reinterpret_cast<T*>(memory.data() + (64 - address % 64) % 64);
  }
  std::vector<std::byte> memory;
};

/// The oracle's payload; `wrong` as there.
template <class T>
Bytes expected(const SplitZip<T>& codec, const std::vector<T>& x, std::size_t wrong = static_cast<std::size_t>(-1)) {
  std::vector<unsigned> words, book;
  for (const T e : x) words.push_back(e.bits);
  for (int c = 0; c < codec.book.size(); ++c) book.push_back(codec.book.exponents[c]);
  return oracle::splitzip(format<T>, words, static_cast<unsigned>(codec.chunk), book, wrong);
}

inline std::vector<decant::Isa> paths() {
  std::vector<decant::Isa> all;
  for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2, decant::Isa::avx512}) {
    if (isa <= decant::best_isa()) all.push_back(isa);
  }
  return all;
}

/// A book of random exponents: a window, or scattered ones.
template <class T>
Codebook random_codebook(Random& random, int code_bits, bool window) {
  const int size = 1 << code_bits;
  if (window) {
    return decant::codec::window_codebook(code_bits, static_cast<unsigned>(random.below(exponents<T> - size + 1)));
  }
  Codebook book;
  book.code_bits = static_cast<std::uint8_t>(code_bits);
  int c = 0;
  for (int e = 0; e < exponents<T>; ++e) {
    // Takes e with the chance that makes all sets of this size equally likely.
    if (random.below(exponents<T> - e) < size - c) book.exponents[c++] = static_cast<std::uint8_t>(e);
  }
  return book;
}

/// The code widths that T may have, 0 aside.
template <class T>
std::vector<int> code_widths() {
  if (decant::codec::codes_of<T>(4)) return {4, 3};
  return {3};
}

}  // namespace codec_test
