// Damaged payloads on CUDA: the verdict of the CPU's decoder, its elements where it accepts, and nothing written where
// it does not. Ranges likewise.
#include <algorithm>

#include "catch_compat.hpp"
#include "fixtures.cuh"

namespace {

using namespace cuda_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;

/// A payload of n elements, its damaged versions, and where they are decoded.
template <class T>
class Victim {
 public:
  /// room: what the longest version needs, if that is longer than the payload.
  Victim(const codec::SplitZip<T>& c, const std::vector<T>& x, index_t room = 0)
      : codec_(c),
        payload_(encoded_on_cpu(c, x)),
        n_(static_cast<index_t>(x.size())),
        in_(std::max(room, static_cast<index_t>(payload_.size()))),
        y_(n_),
        marks_(x.size(), T::from_bits(0x5a)) {}

  const Bytes& payload() const { return payload_; }

  /// Whether both contexts agree on elements [first, first + count) of the first bytes of `in`, -1: on all elements.
  /// Counts what they accept.
  bool agree(const Bytes& in, index_t first = -1, index_t count = 0) {
    const index_t wanted = first < 0 ? n_ : count;
    const View<const std::byte, 1> host(in.data(), static_cast<index_t>(in.size()));
    std::vector<T> expected = marks_;
    bool is_right = true;
    try {
      const View<T, 1> to(expected.data(), wanted);
      first < 0 ? decode(cpu_, codec_, host, to) : decode_range(cpu_, codec_, host, first, to);
    } catch (const decant::Error&) {
      is_right = false;
    }
    accepted += is_right ? 1 : 0;

    must(cudaMemcpy(in_.data(), in.data(), in.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    y_.upload(marks_);
    bool is_right_here = true;
    try {
      const View<const std::byte, 1> device(in_.data(), host.extent(0));
      const View<T, 1> to(y_.data(), wanted);
      first < 0 ? decode(cuda_, codec_, device, to) : decode_range(cuda_, codec_, device, first, to);
      cuda_.check();
    } catch (const decant::FormatError&) {
      is_right_here = false;
    } catch (const decant::ArgumentError&) {  // a range that the payload does not have
      is_right_here = false;
    }
    return is_right_here == is_right && same_bits(y_.download(), expected);
  }

  int accepted = 0;

 private:
  codec::SplitZip<T> codec_;
  Bytes payload_;
  index_t n_;
  decant::Cpu cpu_;
  Stream stream_;
  decant::Cuda cuda_{stream_};
  DeviceBuffer<std::byte> in_;
  DeviceBuffer<T> y_;
  std::vector<T> marks_;
};

/// Coded chunks, one with raw exponents, an uneven one with raw exponents at the end.
template <class T>
std::vector<T> some_of_each(const codec::SplitZip<T>& c, index_t n) {
  const unsigned window = c.book.size() - 1u;
  std::vector<T> x = elements<T>(n, first_of(c), window, 0.004, 3);
  const auto wild = elements<T>(c.chunk, first_of(c), window, 1, 4);
  std::copy(wild.begin(), wild.end(), x.begin() + c.chunk);
  std::copy(wild.begin(), wild.begin() + n % c.chunk, x.end() - n % c.chunk);
  return x;
}

template <class T>
Bytes with_bit_flipped(Bytes bytes, std::size_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  return bytes;
}

/// Every bit of the header and of what follows the planes, and one bit of every eleventh byte; truncations.
template <class T>
void check_damage(codec::SplitZip<T> c, bool scattered) {
  c.chunk = 128;
  if (scattered) c.book.exponents[0] = 0;
  const index_t n = 128 * 26 + 13;
  Victim<T> victim(c, some_of_each(c, n));
  const Bytes whole = victim.payload();
  REQUIRE(whole.size() < std::size_t(n) * sizeof(T));
  const auto l = codec::detail::splitzip_layout<T>(n, c.chunk, c.book.code_bits);
  CHECK(victim.agree(whole));
  CHECK(victim.accepted == 1);
  int disagreements = 0;
  for (std::size_t byte = 0; byte < whole.size(); ++byte) {
    const bool all = byte < 64 || byte >= static_cast<std::size_t>(l.directory);
    for (std::size_t bit = 0; bit < 8; ++bit) {
      if (!all && (byte % 11 != 0 || bit != byte * 5 % 8)) continue;
      disagreements += victim.agree(with_bit_flipped<T>(whole, 8 * byte + bit)) ? 0 : 1;
    }
  }
  CHECK(victim.accepted > 100);  // most bits of the planes make other elements
  const int before = victim.accepted;
  for (std::size_t size = 0; size < whole.size(); size += size < 70 || size + 70 > whole.size() ? 1 : 97) {
    disagreements += victim.agree(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))) ? 0 : 1;
  }
  CHECK(victim.accepted == before);
  CHECK(disagreements == 0);
}

TEST_CASE("a damaged payload gets the CPU's verdict: bf16") {
  check_damage<bf16>({}, false);
  check_damage<bf16>({.book = codec::window_codebook(3, 120)}, true);
}
TEST_CASE("a damaged payload gets the CPU's verdict: e5m2") {
  check_damage<fp8_e5m2>({}, true);
}
TEST_CASE("a damaged payload gets the CPU's verdict: e4m3") {
  check_damage<fp8_e4m3>({}, false);
}

TEST_CASE("a damaged raw payload gets the CPU's verdict") {
  codec::SplitZip<bf16> c;
  Victim<bf16> victim(c, elements<bf16>(40, 0, 256, 1, 5));
  const Bytes whole = victim.payload();
  REQUIRE(whole.size() == 64 + 80);
  CHECK(victim.agree(whole));
  int disagreements = 0;
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    disagreements += victim.agree(with_bit_flipped<bf16>(whole, bit)) ? 0 : 1;
  }
  for (std::size_t size = 0; size < whole.size(); ++size) {
    disagreements += victim.agree(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))) ? 0 : 1;
  }
  CHECK(disagreements == 0);
  CHECK(victim.accepted == 1 + 8 * 80);
}

TEST_CASE("escapes out of order and coded payloads that save nothing are refused") {
  const codec::SplitZip<bf16> c{.chunk = 512};
  std::vector<bf16> x = elements<bf16>(2000, first_of(c), 16, 0, 6);
  x[600].bits = x[700].bits = 0;  // exponent 0, and rests that tell nothing
  Victim<bf16> victim(c, x);
  Bytes swapped = victim.payload();
  CHECK(victim.agree(swapped));
  CHECK(victim.accepted == 1);
  const auto side = swapped.begin() + codec::detail::splitzip_layout<bf16>(2000, c.chunk, 4).side;
  REQUIRE(side + 6 == swapped.end());
  std::swap_ranges(side, side + 2, side + 2);
  CHECK(victim.agree(swapped));
  std::copy(side, side + 2, side + 2);
  CHECK(victim.agree(swapped));
  CHECK(victim.accepted == 1);

  // A header and planes of elements that are all 1: nothing is wrong but the size.
  const auto l = codec::detail::splitzip_layout<bf16>(100, 1024, 4);
  REQUIRE(l.side >= l.raw_bytes);
  Bytes forged(static_cast<std::size_t>(l.side));
  codec::detail::store_header(l, codec::SplitZip<bf16>{}.book, 0, forged.data());
  Victim<bf16> other(codec::SplitZip<bf16>{}, elements<bf16>(100, 114, 16, 0, 7), l.side);
  CHECK(other.agree(forged));
  CHECK(other.accepted == 0);
}

TEST_CASE("a range of a damaged payload gets the CPU's verdict") {
  const codec::SplitZip<bf16> c{.chunk = 64};
  const index_t group = 64 * 64, n = 3 * group + 300;
  Victim<bf16> victim(c, some_of_each(c, n));
  const Bytes whole = victim.payload();
  std::mt19937 random(7);
  const auto l = codec::detail::splitzip_layout<bf16>(n, c.chunk, 4);
  int disagreements = 0;
  for (int i = 0; i < 600; ++i) {
    // Half of the damage behind the planes.
    const auto from = static_cast<std::size_t>(i % 2 == 0 ? 0 : l.directory);
    const Bytes damaged =
        i < 20 ? whole : with_bit_flipped<bf16>(whole, 8 * from + random() % (8 * (whole.size() - from)));
    const index_t first = random() % (n + 20), count = random() % (i % 3 == 0 ? n : 200);
    disagreements +=
        victim.agree(damaged, first, first + count > n + 5 ? n - first > 0 ? n - first : 0 : count) ? 0 : 1;
  }
  CHECK(disagreements == 0);
  CHECK(victim.accepted > 100);
  CHECK(victim.accepted < 590);
}

}  // namespace
