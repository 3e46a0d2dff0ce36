// DKVC files: the golden bytes, the layout's arithmetic, what a writer writes and a reader finds.
#include "threads.hpp"
#include "dkvc_data.hpp"

/// A user's codec in a user's namespace: a run's element, once. Decodes to far more than it stores.
namespace dkvc_user {

using decant::Cpu;
using decant::fp8_e4m3;
using decant::index_t;
using decant::View;

struct Constant {
  using element = fp8_e4m3;
  static constexpr decant::codec::CodecId codec_id = decant::codec::CodecId{40};
  static constexpr bool lossless = false;
  bool operator==(const Constant&) const = default;
};
inline Constant calibrate(Cpu&, const Constant& c, View<const fp8_e4m3, 1>) {
  return c;
}
inline index_t max_encoded_size(const Constant&, index_t n) {
  return n > 0 ? 1 : 0;
}
inline void encode(Cpu&, const Constant&, View<const fp8_e4m3, 1> x, View<std::byte, 1> out, index_t* size) {
  *size = x.extent(0) > 0 ? 1 : 0;
  if (*size > 0) out[0] = static_cast<std::byte>(x[0].bits);
}
inline void decode(Cpu&, const Constant&, View<const std::byte, 1> in, View<fp8_e4m3, 1> y) {
  for (index_t i = 0; i < y.extent(0); ++i) y[i] = fp8_e4m3::from_bits(std::to_integer<std::uint8_t>(in[0]));
}
inline Constant codec_of(const Constant& c, View<const std::byte, 1>) {
  return c;
}

}  // namespace dkvc_user

namespace dkvc_test {
namespace {

using dkvc_user::Constant;

// Made by an independent program from the description in dkvc_format.hpp: a card of 6 bytes; 40 fp16 keys, i / 2, in
// blocks of 64 bytes; three bf16 values, one a NaN, checked by XXH3; one float that nothing checks and whose parameters
// are card bytes 2 to 5; a note.
constexpr unsigned char golden[] = {
    // prologue
    0x89,
    0x44,
    0x4b,
    0x56,
    0x0d,
    0x0a,
    0x1a,
    0x0a,
    0x01,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0xd0,
    0x03,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x05,
    0x00,
    0x00,
    0x00,
    0x80,
    0x01,
    0x00,
    0x00,
    0xe5,
    0xcc,
    0x8f,
    0x60,
    0xd9,
    0x0f,
    0x6f,
    0x46,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x12,
    0x63,
    0xd9,
    0x23,
    0x38,
    0xa0,
    0x67,
    0xf1,
    // entry: META
    0x4d,
    0x45,
    0x54,
    0x41,
    0x00,
    0x00,
    0xff,
    0xff,
    0xff,
    0xff,
    0xff,
    0xff,
    0x04,
    0x01,
    0x10,
    0x00,
    0x80,
    0x01,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x46,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x06,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x34,
    0xfe,
    0x73,
    0x5e,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    // entry: layer 0 keys
    0x54,
    0x4e,
    0x53,
    0xd2,
    0x00,
    0x00,
    0x01,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x01,
    0x06,
    0x00,
    0x00,
    0x02,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x90,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x28,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x0a,
    0x00,
    0x00,
    0x00,
    0xe8,
    0x3f,
    0xfb,
    0x9d,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    // entry: layer 0 values
    0x54,
    0x4e,
    0x53,
    0xd2,
    0x00,
    0x00,
    0x02,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x01,
    0x02,
    0x00,
    0x00,
    0xc0,
    0x02,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x06,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x03,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x03,
    0x00,
    0x00,
    0x00,
    0xcb,
    0x82,
    0xfc,
    0x85,
    0xf9,
    0x10,
    0xad,
    0x7a,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    // entry: layer 1 keys
    0x54,
    0x4e,
    0x53,
    0xd2,
    0x00,
    0x00,
    0x00,
    0x00,
    0x01,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x03,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x04,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x01,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x07,
    0x00,
    0x00,
    0x00,
    0x01,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x02,
    0x00,
    0x00,
    0x00,
    0x00,
    0x03,
    0x00,
    0x00,
    // entry: NOTE
    0x4e,
    0x4f,
    0x54,
    0x45,
    0x00,
    0x00,
    0xff,
    0xff,
    0xff,
    0xff,
    0xff,
    0xff,
    0x04,
    0x01,
    0x10,
    0x00,
    0x40,
    0x03,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x44,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x04,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x5c,
    0x97,
    0x68,
    0x9b,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x50,
    0x24,
    0xc3,
    0x8b,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x61,
    0x20,
    0x63,
    0x61,
    0x72,
    0x64,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x01,
    0xaf,
    0xaf,
    0xd5,
    0x82,
    0xd2,
    0x8a,
    0x2c,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x38,
    0x00,
    0x3c,
    0x00,
    0x3e,
    0x00,
    0x40,
    0x00,
    0x41,
    0x00,
    0x42,
    0x00,
    0x43,
    0x00,
    0x44,
    0x80,
    0x44,
    0x00,
    0x45,
    0x80,
    0x45,
    0x00,
    0x46,
    0x80,
    0x46,
    0x00,
    0x47,
    0x80,
    0x47,
    0x00,
    0x48,
    0x40,
    0x48,
    0x80,
    0x48,
    0xc0,
    0x48,
    0x00,
    0x49,
    0x40,
    0x49,
    0x80,
    0x49,
    0xc0,
    0x49,
    0x00,
    0x4a,
    0x40,
    0x4a,
    0x80,
    0x4a,
    0xc0,
    0x4a,
    0x00,
    0x4b,
    0x40,
    0x4b,
    0x80,
    0x4b,
    0xc0,
    0x4b,
    0x00,
    0x4c,
    0x20,
    0x4c,
    0x40,
    0x4c,
    0x60,
    0x4c,
    0x80,
    0x4c,
    0xa0,
    0x4c,
    0xc0,
    0x4c,
    0xe0,
    0x4c,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x80,
    0x3f,
    0x00,
    0xc0,
    0xc1,
    0x7f,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0xc0,
    0xbf,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0xe6,
    0xb9,
    0x47,
    0xab,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x68,
    0x69,
    0x00,
    0x21,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x00,
    0x37,
    0xc9,
    0xe7,
    0x2a,
    0x00,
    0x00,
    0x00,
    0x00,
    0x0a,
    0x1a,
    0x0a,
    0x0d,
    0x56,
    0x4b,
    0x44,
    0x89,
};

Bytes golden_bytes() {
  Bytes bytes;
  for (const unsigned char b : golden) bytes.push_back(static_cast<std::byte>(b));
  return bytes;
}

std::vector<fp16> golden_keys() {
  std::vector<fp16> keys;
  for (int i = 0; i < 40; ++i) keys.push_back(fp16(static_cast<float>(i) / 2));
  return keys;
}

std::vector<bf16> golden_values() {
  return {bf16::from_bits(0x3f80), bf16::from_bits(0xc000), bf16::from_bits(0x7fc1)};
}

template <class T>
SectionData encoded(const dkvc::Place& place, const std::vector<T>& x, const Checks& checks) {
  Cpu cpu;
  SectionData data;
  dkvc::encode(cpu, Stored<T>{}, place, x, data, checks);
  return data;
}

TEST_CASE("dkvc: the writer makes the golden file", "[codec][dkvc]") {
  Cpu cpu;
  Writer writer;
  // In an order that is not the file's.
  writer.add_bytes(cpu, dkvc::fourcc("NOTE"), Bytes{std::byte{'h'}, std::byte{'i'}, std::byte{0}, std::byte{'!'}});
  writer.add(encoded<float>({1, Kind::key, 7, 1, 2 | std::uint64_t{3} << 40}, {-1.5f}, {Check::none}));
  writer.add(encoded<fp16>({0, Kind::key, 0, 10}, golden_keys(), {Check::crc32c, 6}));
  writer.add_card(cpu, bytes_of("a card"));
  writer.add(encoded<bf16>({0, Kind::value, 0, 3}, golden_values(), {Check::xxh3}));
  CHECK(writer.write() == golden_bytes());
  CHECK(writer.total_size() == static_cast<index_t>(sizeof golden));
}

TEST_CASE("dkvc: the reader reads the golden file", "[codec][dkvc]") {
  Cpu cpu;
  Bytes shifted(1);  // at an odd address
  const Bytes file = golden_bytes();
  shifted.insert(shifted.end(), file.begin(), file.end());
  const Reader reader(View<const std::byte, 1>(shifted.data() + 1, static_cast<index_t>(file.size())));
  reader.verify(cpu);
  REQUIRE(reader.size() == 5);
  CHECK(reader.sections().extent(0) == 5);
  CHECK(reader.minor_version() == 0);
  CHECK(reader.content_id() == 0x466f0fd9608fcce5u);
  const View<const std::byte, 1> card = reader.card();
  CHECK(Bytes(card.data(), card.data() + card.extent(0)) == bytes_of("a card"));

  std::vector<fp16> keys(40);
  reader.decode(cpu, 1, View<fp16, 1>(keys));
  CHECK(same_bits(keys, golden_keys()));
  std::vector<bf16> values(3);
  reader.decode(cpu, 2, View<bf16, 1>(values));
  CHECK(same_bits(values, golden_values()));
  float third = 0;
  reader.decode(cpu, 3, View<float, 1>(&third, 1));
  CHECK(third == -1.5f);
  CHECK(reader.section(3).params_ref == (2 | std::uint64_t{3} << 40));
  CHECK(reader.section(3).token_begin == 7);
  CHECK(reader.section(4).type == dkvc::fourcc("NOTE"));
  CHECK(reader.payload(4).extent(0) == 4);
  CHECK(written_again(cpu, reader) == file);
}

TEST_CASE("dkvc: the golden file on a big-endian host", "[codec][dkvc]") {
  // Integers are read by shifts, which know no byte order; elements through copy_little_endian, here as such a host
  // would do it: in memory the high byte comes first.
  const Bytes file = golden_bytes();
  const Reader reader(file);
  Bytes memory(80);
  decant::codec::detail::copy_little_endian<true>(reader.payload(1).data(), memory.data(), 40, 2);
  for (std::size_t i = 0; i < 40; ++i) {
    const unsigned bits = std::to_integer<unsigned>(memory[2 * i]) << 8 | std::to_integer<unsigned>(memory[2 * i + 1]);
    CHECK(bits == golden_keys()[i].bits);
  }
  Bytes back(80);
  decant::codec::detail::copy_little_endian<true>(memory.data(), back.data(), 40, 2);
  CHECK(std::memcmp(back.data(), reader.payload(1).data(), 80) == 0);
}

TEST_CASE("dkvc: stored and payload sizes determine each other", "[codec][dkvc]") {
  const auto stored_size = [](index_t payload, int log2) {
    return dkvc::payload_offset(payload, Check::crc32c, log2) + payload;
  };
  for (const int log2 : {6, 7, 9}) {
    index_t stored = 0;
    for (index_t payload = 0; payload < 40000; ++payload) {
      // Stored sizes between those of two payloads belong to none.
      for (; stored < stored_size(payload, log2); ++stored) {
        if (dkvc::payload_size(stored, Check::crc32c, log2) != -1) FAIL("stored " << stored << ", log2 " << log2);
      }
      if (dkvc::payload_size(stored, Check::crc32c, log2) != payload) FAIL("payload " << payload << ", log2 " << log2);
      ++stored;
    }
  }
  for (const index_t payload : {index_t{1} << 40, (index_t{1} << 40) + 1, (index_t{1} << 60) - 12345}) {
    CHECK(dkvc::payload_size(stored_size(payload, 30), Check::crc32c, 30) == payload);
    CHECK(dkvc::payload_size(stored_size(payload, 16), Check::crc32c, 16) == payload);
    CHECK(dkvc::payload_size(payload, Check::xxh3, 0) == payload);
  }
}

TEST_CASE("dkvc: the same sections make the same bytes in any order", "[codec][dkvc]") {
  Cpu cpu;
  std::vector<SectionData> sections;
  for (index_t layer = 0; layer < 3; ++layer) {
    for (const Kind kind : {Kind::key, Kind::value}) {
      for (index_t token = 0; token < 20; token += 10) {
        sections.push_back(encoded<bf16>({layer, kind, token, 10}, elements<bf16>(30, 9), {}));
      }
    }
  }
  Bytes first;
  for (int round = 0; round < 24; ++round) {
    Writer writer;
    const std::size_t step = round % 2 ? 5 : 7;  // coprime to the 12 sections
    for (std::size_t i = 0; i < 12; ++i) writer.add(sections[(i * step + static_cast<std::size_t>(round)) % 12]);
    if (round == 0) first = writer.write();
    CHECK(writer.write() == first);
    Bytes pieces;
    writer.write([&](View<const std::byte, 1> piece) {
      pieces.insert(pieces.end(), piece.data(), piece.data() + piece.extent(0));
    });
    CHECK(pieces == first);
  }
  const Reader reader(first);
  for (index_t i = 0; i < 12; ++i) {
    CHECK(reader.section(i).layer == i / 4);
    CHECK(reader.section(i).kind == (i / 2 % 2 ? Kind::value : Kind::key));
    CHECK(reader.section(i).token_begin == 10 * (i % 2));
  }
}

TEST_CASE("dkvc: the same bytes on any number of threads", "[codec][dkvc][threads]") {
  const std::vector<bf16> x = elements<bf16>(2000000, 11);
  const auto file_of = [&](Cpu&& cpu, const Checks& checks) {
    Writer writer(checks);
    writer.add(cpu, SplitZip<bf16>{}, {0, Kind::key, 0, 1000}, x);
    const Bytes file = writer.write();
    const Reader reader(file);
    std::vector<bf16> y(x.size());
    reader.decode(cpu, 0, View<bf16, 1>(y));
    CHECK(same_bits(x, y));
    return file;
  };
  const Bytes serial = file_of(Cpu(), {});
  CHECK(file_of(Cpu(reversed_threads(3)), {}) == serial);
  CHECK(file_of(Cpu(reversed_threads(64)), {}) == serial);
  CHECK(Reader(serial).section(0).codec == decant::codec::CodecId::splitzip_bf16);
  // A wrong block is found on whatever thread.
  Bytes wrong = serial;
  wrong[wrong.size() - 200000] ^= std::byte{4};
  const Reader reader(wrong);
  Cpu cpu(reversed_threads(3));
  CHECK_THROWS_WITH(reader.verify(cpu, 0), catch_compat::contains("checksum of block 4"));
}

TEST_CASE("dkvc: what a codec does not shrink is stored plain", "[codec][dkvc]") {
  Cpu cpu;
  const auto section_of = [&](auto codec, const auto& x) {
    SectionData data;
    dkvc::encode(cpu, codec, {}, x, data);
    return data.section;
  };
  const Section coded = section_of(SplitZip<bf16>{}, elements<bf16>(5000, 12));
  CHECK(coded.codec == decant::codec::CodecId::splitzip_bf16);
  const Section noise = section_of(SplitZip<bf16>{}, elements<bf16>(5000, 12, true));
  CHECK(noise.codec == decant::codec::CodecId::stored);
  CHECK(dkvc::payload_size(noise) == 10000);
  CHECK(section_of(SplitZip<bf16>{}, std::vector<bf16>{}).codec == decant::codec::CodecId::stored);
  CHECK(section_of(SplitZip<bf16>{}, elements<bf16>(1, 12)).codec == decant::codec::CodecId::stored);
}

TEST_CASE("dkvc: find", "[codec][dkvc]") {
  Writer writer;
  for (const index_t layer : {0, 2}) {
    for (const Kind kind : {Kind::key, Kind::value}) {
      for (const index_t token : {0, 10, 30}) writer.add(encoded<bf16>({layer, kind, token, 10}, {}, {}));
    }
  }
  Cpu cpu;
  writer.add_card(cpu, bytes_of("card"));
  writer.add_bytes(cpu, dkvc::fourcc("NOTE"), bytes_of("note"));
  const Bytes file = writer.write();
  const Reader reader(file);
  using Range = dkvc::SectionRange;
  CHECK(reader.find(0, Kind::key) == Range{1, 3});
  CHECK(reader.find(2, Kind::value) == Range{10, 3});
  CHECK(reader.find(1, Kind::key).count == 0);
  CHECK(reader.find(3, Kind::key).count == 0);
  CHECK(reader.find(0, Kind::c_kv).count == 0);
  CHECK(reader.find(0, Kind::value, 9, 2) == Range{4, 2});
  CHECK(reader.find(0, Kind::value, 10, 10) == Range{5, 1});
  CHECK(reader.find(0, Kind::value, 20, 10).count == 0);
  CHECK(reader.find(0, Kind::value, 15, 16) == Range{5, 2});
  CHECK(reader.find(0, Kind::value, 15, 0).count == 0);
  CHECK(reader.find(0, Kind::value, 40).count == 0);
  CHECK_THROWS_AS(reader.find(0, Kind::key, -1), decant::ArgumentError);
}

TEST_CASE("dkvc: what the caller gets wrong", "[codec][dkvc]") {
  using catch_compat::contains;
  Cpu cpu;
  Writer writer;
  writer.add(encoded<bf16>({1, Kind::key, 10, 10}, {}, {}));
  CHECK_THROWS_WITH(writer.add(encoded<bf16>({1, Kind::key, 10, 5}, {}, {})), contains("a place that no other has"));
  CHECK_THROWS_WITH(writer.add(encoded<bf16>({1, Kind::key, 5, 6}, {}, {})), contains("layer 1 keys, 6 tokens from 5"));
  CHECK_THROWS_AS(writer.add(encoded<bf16>({1, Kind::key, 19, 1}, {}, {})), decant::ArgumentError);
  writer.add(encoded<bf16>({1, Kind::key, 5, 5}, {}, {}));
  writer.add_card(cpu, bytes_of("card"));
  CHECK_THROWS_AS(writer.add_card(cpu, bytes_of("card")), decant::ArgumentError);
  CHECK_THROWS_AS(writer.add_bytes(cpu, dkvc::tensor_type, bytes_of("x")), decant::ArgumentError);
  CHECK_THROWS_AS(encoded<bf16>({-1}, {}, {}), decant::ArgumentError);
  CHECK_THROWS_AS(encoded<bf16>({0, Kind::meta}, {}, {}), decant::ArgumentError);
  CHECK_THROWS_AS(encoded<bf16>({0, Kind::key, 0, index_t{1} << 32}, {}, {}), decant::ArgumentError);
  CHECK_THROWS_AS(Writer({Check::crc32c, 5}), decant::ArgumentError);
  CHECK_THROWS_AS(Writer({static_cast<Check>(3)}), decant::ArgumentError);
  Limits limits;
  limits.expansion_limit = 0;
  const Bytes file = writer.write();
  CHECK_THROWS_AS(Reader(file, limits), decant::ArgumentError);
  CHECK_THROWS_AS(Reader(file).section(3), decant::ArgumentError);
  CHECK_THROWS_AS(Reader(file).section(-1), decant::ArgumentError);
}

TEST_CASE("dkvc: decode refuses what does not fit and writes nothing", "[codec][dkvc]") {
  using catch_compat::contains;
  Cpu cpu;
  const Bytes file = coded_file();
  const Reader reader(file);
  std::vector<bf16> y(700, bf16(7.0f));
  const std::vector<bf16> before = y;
  CHECK_THROWS_WITH(reader.decode(cpu, 1, View<bf16, 1>(y)), contains("`dtype`: expected bf16, got e5m2"));
  CHECK_THROWS_WITH(reader.decode(cpu, 0, View<bf16, 1>(y.data(), 699)),
                    contains("`element_count`: expected 699, got 700"));
  SplitZip<bf16> other{64};
  other.book = decant::codec::window_codebook(4, 90);
  CHECK_THROWS_AS(reader.decode(cpu, other, 0, View<bf16, 1>(y)), FormatError);
  const Bytes plain = plain_file();
  CHECK_THROWS_WITH(Reader(plain).decode(cpu, 0, View<bf16, 1>(y)), contains("`type`: expected a tensor, got META"));
  Bytes wrong = file;
  wrong[at(reader.section(0).offset + 70)] ^= std::byte{1};
  CHECK_THROWS_AS(Reader(wrong).decode(cpu, 0, View<bf16, 1>(y)), FormatError);
  CHECK(same_bits(y, before));
  reader.decode(cpu, SplitZip<bf16>{64}, 0, View<bf16, 1>(y));
  CHECK(!same_bits(y, before));
}

TEST_CASE("dkvc: a user's codec", "[codec][dkvc]") {
  Cpu cpu;
  Writer writer;
  const std::vector<fp8_e4m3> x(64, fp8_e4m3(0.5f));
  writer.add(cpu, Constant{}, {}, x);
  const Bytes file = writer.write();
  const Reader reader(file);
  std::vector<fp8_e4m3> y(64);
  CHECK_THROWS_WITH(reader.decode(cpu, 0, View<fp8_e4m3, 1>(y)), catch_compat::contains("`codec`"));
  reader.decode(cpu, Constant{}, 0, View<fp8_e4m3, 1>(y));
  CHECK(same_bits(x, y));
  Limits limits;
  limits.expansion_limit = 63;
  CHECK_THAT(error_of(file, limits), catch_compat::contains("`section 0: payload size`: expected at least 2, got 1"));
}

}  // namespace
}  // namespace dkvc_test
