// CRC32C: published vectors, every path against the definition bit by bit, parts joined.
#include "decant/codec/crc32c.hpp"

#include <string>
#include <vector>

#include "catch_compat.hpp"

namespace crc32c_test {

using decant::index_t;
using decant::View;
using decant::codec::crc32c;
using decant::codec::crc32c_combine;
namespace detail = decant::codec::detail;
using Bytes = std::vector<std::byte>;

// The definition: one bit at a time through the shift register.
std::uint32_t naive(const std::byte* data, std::size_t size, std::uint32_t crc = 0) {
  crc = ~crc;
  for (std::size_t i = 0; i < size; ++i) {
    crc ^= std::to_integer<std::uint32_t>(data[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

Bytes noise(std::size_t size) {
  Bytes bytes(size);
  std::uint64_t state = 42;
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

View<const std::byte, 1> part(const Bytes& bytes, std::size_t first, std::size_t size) {
  return {bytes.data() + first, static_cast<index_t>(size)};
}

std::uint32_t of(const std::string& text) {
  return crc32c(
      View<const std::byte, 1>(reinterpret_cast<const std::byte*>(text.data()), static_cast<index_t>(text.size())));
}

TEST_CASE("crc32c: published values", "[codec][crc32c]") {
  CHECK(of("123456789") == 0xe3069283u);
  CHECK(of("") == 0);
  // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, ascending, descending, and a SCSI read command.
  Bytes bytes(32);
  CHECK(crc32c(bytes) == 0x8a9136aau);
  for (std::byte& b : bytes) b = std::byte{0xff};
  CHECK(crc32c(bytes) == 0x62a8ab43u);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(crc32c(bytes) == 0x46dd794eu);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
  CHECK(crc32c(bytes) == 0x113fdb5cu);
  const unsigned char command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0,    0, 0, 0, 0,
                                     0x14, 0,    0, 0, 0, 0, 4, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                     0x28, 0,    0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  CHECK(of(std::string(reinterpret_cast<const char*>(command), sizeof command)) == 0xd9963a56u);
}

TEST_CASE("crc32c: every path, length and offset equals the definition", "[codec][crc32c]") {
  const Bytes bytes = noise(340);
  for (std::size_t offset = 0; offset < 16; ++offset) {
    for (std::size_t size = 0; size <= 300; ++size) {
      const std::byte* const at = bytes.data() + offset;
      const std::uint32_t expected = naive(at, size);
      const bool portable = ~detail::crc32c_update_portable(~0u, at, size) == expected;
      const bool dispatched = crc32c(part(bytes, offset, size)) == expected;
      if (!portable || !dispatched) FAIL("offset " << offset << ", size " << size);
    }
  }
}

TEST_CASE("crc32c: lengths around the stretches of the hardware path", "[codec][crc32c]") {
  const Bytes bytes = noise(40000);
  for (const std::size_t stretch : {3u * 256u, 3u * 4096u}) {
    for (const std::size_t runs : {1u, 2u, 3u}) {
      for (std::size_t size = stretch * runs - 9; size <= stretch * runs + 9; ++size) {
        const std::uint32_t expected = naive(bytes.data() + 1, size);
        CHECK(crc32c(part(bytes, 1, size)) == expected);
        CHECK(~detail::crc32c_update_portable(~0u, bytes.data() + 1, size) == expected);
      }
    }
  }
#if DECANT_X86
  if (!detail::has_crc32c_sse42()) decant_skip("crc32c: this processor has no SSE4.2; only the tables were tested");
#endif
}

TEST_CASE("crc32c: parts join", "[codec][crc32c]") {
  const Bytes bytes = noise(5000);
  const std::uint32_t whole = naive(bytes.data(), bytes.size());
  for (std::size_t split = 0; split <= bytes.size(); split += 13) {
    const std::uint32_t a = crc32c(part(bytes, 0, split));
    const auto rest = part(bytes, split, bytes.size() - split);
    const bool continued = crc32c(rest, a) == whole;
    const bool combined = crc32c_combine(a, crc32c(rest), rest.extent(0)) == whole;
    if (!continued || !combined) FAIL("split at " << split);
  }
  // Lengths that no test could feed: zeros[k] is the CRC of 2^k zero bytes, by doubling.
  std::uint32_t zeros[42] = {crc32c(Bytes(1))};
  for (int k = 0; k < 41; ++k) zeros[k + 1] = crc32c_combine(zeros[k], zeros[k], index_t{1} << k);
  CHECK(zeros[16] == crc32c(Bytes(1 << 16)));
  CHECK(crc32c_combine(whole, zeros[41], index_t{1} << 41) ==
        crc32c_combine(crc32c_combine(whole, zeros[40], index_t{1} << 40), zeros[40], index_t{1} << 40));
  static_assert(crc32c_combine(0x12345678u, 0, 0) == 0x12345678u);
}

TEST_CASE("crc32c: strided bytes are refused", "[codec][crc32c]") {
  const Bytes bytes(8);
  const index_t extents[] = {4};
  const index_t strides[] = {2};
  CHECK_THROWS_AS(crc32c(View<const std::byte, 1>(bytes.data(), extents, strides)), decant::ArgumentError);
}

}  // namespace crc32c_test
