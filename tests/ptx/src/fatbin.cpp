// The container of device code that nvcc embeds: a header, then entries of PTX or machine code.

#include <cstring>

#include "module.hpp"

namespace ptx {
namespace {

struct Wrapper {
  std::int32_t magic, version;
  const std::byte* data;
};

struct Header {
  std::uint32_t magic;
  std::uint16_t version, header_size;
  std::uint64_t size;  // of all entries
};

struct Entry {
  std::uint16_t kind, unknown;
  std::uint32_t header_size;
  std::uint64_t size;
  std::uint32_t compressed_size;
};

constexpr std::uint32_t kMagic = 0xBA55ED50;
constexpr std::uint16_t kPtx = 1;

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

std::vector<std::string> ptx_of_fatbin(const void* fatbin) {
  const Wrapper wrapper = read<Wrapper>(static_cast<const std::byte*>(fatbin));
  const Header header = read<Header>(wrapper.data);
  if (header.magic != kMagic) throw Error("not a fat binary");
  std::vector<std::string> texts;
  const std::byte* at = wrapper.data + header.header_size;
  const std::byte* const end = at + header.size;
  while (at < end) {
    const Entry entry = read<Entry>(at);
    if (entry.kind == kPtx) {
      if (entry.compressed_size != 0) throw Error("compressed PTX: build with nvcc -no-compress");
      const char* text = reinterpret_cast<const char*>(at + entry.header_size);
      texts.emplace_back(text, strnlen(text, entry.size));
    }
    at += entry.header_size + entry.size;
  }
  return texts;
}

}  // namespace ptx
