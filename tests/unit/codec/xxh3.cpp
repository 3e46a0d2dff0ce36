// XXH3-64 against values from the reference implementation (libxxhash 0.8).
#include "decant/codec/xxh3.hpp"

#include <vector>

#include "catch_compat.hpp"

namespace xxh3_test {

using decant::codec::xxh3_64;
using Bytes = std::vector<std::byte>;

Bytes noise(std::size_t size) {
  Bytes bytes(size);
  std::uint64_t state = 42;
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

struct Golden {
  std::size_t size;
  std::uint64_t hash;
};

// Of the first `size` bytes of noise(): both ends of every branch of the algorithm.
constexpr Golden golden[] = {
    {0, 0x2d06800538d394c2u},    {1, 0x0005b2e934ceef7du},    {2, 0xfa7b76c87e7f4814u},    {3, 0x540cc874052f580eu},
    {4, 0x4666e4b23ec2a1a9u},    {5, 0x7710f31b8f095a2bu},    {7, 0x2d91caee7b199b21u},    {8, 0xc0d2a9734b78c3edu},
    {9, 0x1cc0fece4ced64bdu},    {12, 0x053a046f1e52b7c7u},   {15, 0x036a10c971ed8e04u},   {16, 0xb8b7dbb0ec43c443u},
    {17, 0x1161495f77e58e62u},   {31, 0x543834854a16dd35u},   {32, 0xc87c0afcdf4203d1u},   {33, 0xcb91d3f3dcb8745du},
    {64, 0x99582ec2a25135eeu},   {65, 0x6027549094b734feu},   {96, 0x11bb67b291ad1361u},   {97, 0x61170884f0f33956u},
    {127, 0x249ef7c820e6a7f7u},  {128, 0x91e796c77ed5f8c5u},  {129, 0x64cb3c8fa9523162u},  {143, 0xfbd9a858f0b18cebu},
    {144, 0x53b13afd5bafc36bu},  {200, 0x024a3fce30426ac0u},  {239, 0xec60ac3abae3e283u},  {240, 0x6d8e59fbb389e3eau},
    {241, 0x3fe99c6738108aa6u},  {256, 0x965e34f83bb5f9c8u},  {257, 0x8ade39bb356062d3u},  {511, 0x78f9dacdf70ea756u},
    {512, 0xd64711366197d234u},  {513, 0x0e812cb723a879eeu},  {1023, 0x78e3d27fc6dc578du}, {1024, 0xed38240526d93835u},
    {1025, 0x7384821cb66bb9d2u}, {1087, 0xeed8fe6a4dd4c6abu}, {1088, 0x4a194d8ba5290814u}, {1089, 0xafe86ba7b117f0cbu},
    {2048, 0x7ce05caab641d8a3u}, {2049, 0x4a2b9fb7bbb9e329u}, {4096, 0x048de4368b4ce2b3u}, {10007, 0x2fa78fb651221207u},
};

TEST_CASE("xxh3: equals the reference at both ends of every branch", "[codec][xxh3]") {
  for (const auto& [size, hash] : golden) {
    INFO("size " << size);
    CHECK(xxh3_64(noise(size)) == hash);
  }
}

TEST_CASE("xxh3: equals the reference at every size up to 1499", "[codec][xxh3]") {
  // The hash of all those hashes, little-endian one after another.
  Bytes hashes;
  for (std::size_t size = 0; size < 1500; ++size) {
    std::byte bytes[8];
    decant::store_le(bytes, xxh3_64(noise(size)));
    hashes.insert(hashes.end(), bytes, bytes + 8);
  }
  CHECK(xxh3_64(hashes) == 0x5f983e39a3030365u);
}

}  // namespace xxh3_test
