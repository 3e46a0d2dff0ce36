#pragma once
// Small DKVC files for the tests.
#include <algorithm>
#include <cstring>

#include "catch_compat.hpp"
#include "dkvc_repair.hpp"

namespace dkvc_test {

using decant::bf16;
using decant::FormatError;
using decant::fp16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;
using decant::codec::SplitZip;
using decant::codec::Stored;
using dkvc::Check;
using dkvc::Checks;
using dkvc::Kind;
using dkvc::Limits;
using dkvc::Reader;
using dkvc::Section;
using dkvc::SectionData;
using dkvc::Writer;

/// The most bytes that this thread has asked of the heap at once, since it was set to 0 (allocations.cpp).
extern thread_local std::size_t largest_allocation;

inline std::size_t at(index_t i) {
  return static_cast<std::size_t>(i);
}

/// splitmix64 (Vigna).
inline std::uint64_t random_word(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/// n elements about as those of a cache: sums of uniform numbers, some of them far too large or any bits.
template <class T>
std::vector<T> elements(index_t n, std::uint64_t seed, bool any_bits = false) {
  std::vector<T> x(at(n));
  for (T& e : x) {
    const std::uint64_t word = random_word(seed);
    float sum = -2.0f;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(word >> (16 * i) & 0xffffu) / 65536.0f;
    const bool odd = any_bits || word % 512 == 0;
    if constexpr (std::is_same_v<T, float>) {
      e = odd ? sum * 1e30f : sum;
    } else {
      e = odd ? T::from_bits(static_cast<decltype(T{}.bits)>(word >> 7)) : T(sum);
    }
  }
  return x;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), sizeof(T) * a.size()) == 0);
}

inline Bytes bytes_of(const char* text) {
  Bytes bytes;
  for (; *text; ++text) bytes.push_back(static_cast<std::byte>(*text));
  return bytes;
}

inline dkvc::CacheCard sample_card() {
  dkvc::CacheCard card;
  card.model[0] = std::byte{1};
  card.layers = 2;
  card.query_heads = 4;
  card.kv_heads = 2;
  card.key_dim = 8;
  card.value_dim = 8;
  card.token_count = 10;
  card.creator = "test";
  return card;
}

/// A card, two layers of plain elements and a note.
inline Bytes plain_file(const Checks& checks = {Check::crc32c, 6}) {
  Cpu cpu;
  Writer writer(checks);
  writer.add_card(cpu, dkvc::write_card(sample_card()));
  for (index_t layer = 0; layer < 2; ++layer) {
    writer.add(cpu, Stored<bf16>{}, {layer, Kind::key, 0, 10}, elements<bf16>(160, 1));
    writer.add(cpu, Stored<bf16>{}, {layer, Kind::value, 0, 10}, elements<bf16>(160, 2));
  }
  writer.add_bytes(cpu, dkvc::fourcc("NOTE"), bytes_of("hello"));
  return writer.write();
}

/// Sections of every SplitZip, with chunks of both modes.
inline Bytes coded_file(const Checks& checks = {Check::crc32c, 8}) {
  Cpu cpu;
  Writer writer(checks);
  std::vector<bf16> keys = elements<bf16>(700, 3);
  const std::vector<bf16> noise = elements<bf16>(70, 4, true);
  std::copy(noise.begin(), noise.end(), keys.begin() + 64);
  writer.add(cpu, SplitZip<bf16>{64}, {0, Kind::key, 0, 7}, keys);
  writer.add(cpu, SplitZip<fp8_e5m2>{256}, {0, Kind::value, 0, 4}, elements<fp8_e5m2>(3200, 5));
  SplitZip<fp8_e4m3> small{512};
  small.book = decant::codec::window_codebook(3, 0);
  writer.add(cpu, small, {0, Kind::value, 4, 4}, elements<fp8_e4m3>(3200, 6));
  SplitZip<bf16> three{64};
  three.book = decant::codec::window_codebook(3, 120);
  writer.add(cpu, three, {1, Kind::key, 0, 3}, elements<bf16>(600, 7));
  return writer.write();
}

inline Bytes copy_of(View<const std::byte, 1> bytes) {
  Bytes copy(at(bytes.extent(0)));
  for (index_t i = 0; i < bytes.extent(0); ++i) copy[at(i)] = bytes[i];
  return copy;
}

/// The message of the FormatError that `bytes` give, or "none".
inline std::string error_of(const Bytes& bytes, const Limits& limits = {}) {
  try {
    Cpu cpu;
    Reader(bytes, limits).verify(cpu);
  } catch (const FormatError& e) {
    return e.what();
  }
  return "none";
}

}  // namespace dkvc_test
