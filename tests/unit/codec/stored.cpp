// Stored: the elements' bits, little-endian on any host.
#include "decant/codec/stored.hpp"

#include <cstring>
#include <vector>

#include "catch_compat.hpp"

namespace {

using decant::index_t;

TEST_CASE("Stored writes little-endian bits, of a big-endian host too") {
  decant::Cpu cpu;
  const std::vector<decant::bf16> x = {decant::bf16::from_bits(0x1234), decant::bf16::from_bits(0xabcd)};
  std::vector<std::byte> out(4);
  index_t size = 0;
  encode(cpu, decant::codec::Stored<decant::bf16>{}, x, out, &size);
  CHECK(size == 4);
  CHECK(std::memcmp(out.data(), "\x34\x12\xcd\xab", 4) == 0);

  // Bytes as they would lie in a big-endian host's memory.
  const unsigned char big[] = {0x12, 0x34, 0xab, 0xcd};
  unsigned char little[4] = {}, back[4] = {};
  decant::codec::detail::copy_little_endian<true>(big, little, 2, 2);
  CHECK(std::memcmp(little, out.data(), 4) == 0);
  decant::codec::detail::copy_little_endian<true>(little, back, 2, 2);
  CHECK(std::memcmp(back, big, 4) == 0);
  decant::codec::detail::copy_little_endian<true>(big, back, 1, 4);
  CHECK(std::memcmp(back, "\xcd\xab\x34\x12", 4) == 0);
  decant::codec::detail::copy_little_endian<true>(big, back, 4, 1);
  CHECK(std::memcmp(back, big, 4) == 0);
}

}  // namespace
