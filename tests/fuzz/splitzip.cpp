// Fuzzes SplitZip. An input is a byte that chooses the element type and what is done, two bytes for a number of elements,
// and the rest: as a payload, which must be refused or canonical and read the same in parts; or as elements, which must
// come back bit by bit.
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I include tests/fuzz/splitzip.cpp -o fuzz_splitzip
//   ./fuzz_splitzip -max_total_time=60 -max_len=4096 new_inputs tests/fuzz/corpus/splitzip
#include "decant/codec/splitzip.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace decant;
using codec::SplitZip;
using Bytes = std::vector<std::byte>;

void expect(bool ok, const char* fault) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", fault);
  std::abort();
}

template <class T>
Bytes encoded(Cpu& cpu, const SplitZip<T>& codec, const std::vector<T>& x) {
  Bytes out(static_cast<std::size_t>(max_encoded_size(codec, static_cast<index_t>(x.size()))));
  index_t size = 0;
  encode(cpu, codec, View<const T, 1>(x), View<std::byte, 1>(out), &size);
  out.resize(static_cast<std::size_t>(size));
  return out;
}

template <class T>
bool same_bits(const T* a, const T* b, std::size_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(T)) == 0;
}

template <class T>
void read(Cpu& cpu, const Bytes& payload, std::size_t n) {
  std::vector<T> y(n, T::from_bits(0x5a));
  const std::vector<T> before = y;
  try {
    const SplitZip<T> codec = codec_of(SplitZip<T>{}, View<const std::byte, 1>(payload));
    decode(cpu, codec, View<const std::byte, 1>(payload), View<T, 1>(y));
    // A raw payload may be what this codec writes, or what one with a book does for elements that it cannot code.
    expect(encoded(cpu, codec, y) == payload, "what was read does not make the same bytes again");
    const std::size_t first = n / 3;
    std::vector<T> part(n - first - n / 5);
    decode_range(cpu, codec, View<const std::byte, 1>(payload), static_cast<index_t>(first), View<T, 1>(part));
    expect(same_bits(part.data(), y.data() + first, part.size()), "a part differs from the whole");
  } catch (const FormatError&) {
    expect(same_bits(y.data(), before.data(), n), "elements were written before the error");
  }
}

template <class T>
void write(Cpu& cpu, const Bytes& bytes, unsigned options) {
  std::vector<T> x(bytes.size() / sizeof(T));
  if (!x.empty()) std::memcpy(x.data(), bytes.data(), x.size() * sizeof(T));
  SplitZip<T> codec;
  codec.chunk = index_t{64} << options % 8;
  codec.reserve_zero = (options & 8) != 0;
  if ((options & 16) != 0) codec = calibrate(cpu, codec, View<const T, 1>(x));
  const Bytes payload = encoded(cpu, codec, x);
  expect(payload.size() <= x.size() * sizeof(T) + 64, "the payload is more than the elements and a header");
  std::vector<T> y(x.size());
  decode(cpu, codec, View<const std::byte, 1>(payload), View<T, 1>(y));
  expect(same_bits(x.data(), y.data(), x.size()), "elements do not come back");
}

template <class T>
void run(unsigned what, std::size_t n, const Bytes& rest) {
  for (Isa isa = Isa::portable; isa <= best_isa(); isa = static_cast<Isa>(static_cast<int>(isa) + 1)) {
    Cpu cpu;
    cpu.set_isa(isa);
    if ((what & 1) == 0) {
      read<T>(cpu, rest, n);
    } else {
      write<T>(cpu, rest, static_cast<unsigned>(n));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::size_t n = data[1] + (data[2] & 0x1fu) * 256u;
  const auto* const bytes = reinterpret_cast<const std::byte*>(data);
  const Bytes rest(bytes + 3, bytes + size);
  const unsigned what = data[0] / 3;
  if (data[0] % 3 == 0) run<bf16>(what, n, rest);
  if (data[0] % 3 == 1) run<fp8_e5m2>(what, n, rest);
  if (data[0] % 3 == 2) run<fp8_e4m3>(what, n, rest);
  return 0;
}
