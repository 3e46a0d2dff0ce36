// SplitZip's encode() and decode() on a GPU in GB/s of raw elements, against a copy of the same elements on the device:
// coding moves 3.5 bytes per bf16 element where a copy moves 4. Data: the laws of synthetic.hpp, calibrated on
// themselves. The error counts what of the payload differs from the CPU's, or of the elements from those that were
// encoded.

#include <cstring>

#include "codec/synthetic.hpp"
#include "cuda_harness.cuh"
#include "decant/codec/splitzip.cuh"

namespace {

using decant::index_t;
using decant::View;
using decant::codec::SplitZip;

template <class T>
constexpr const char* dtype_name = sizeof(T) == 2 ? "bf16" : "e5m2";

/// Elements, their codec with codes of 4 bits, and the CPU's payload.
template <class T>
struct Data {
  bench::Buffer<T> x;
  SplitZip<T> codec;
  std::vector<std::byte> payload;

  Data(bench::Law law, index_t bytes) : x(static_cast<std::size_t>(bytes) / sizeof(T)) {
    bench::fill(law, x.data(), size());
    decant::Cpu cpu;
    std::vector<std::uint64_t> counts(std::size_t{1} << decant::codec::FloatBits<T>::exponent);
    histogram(cpu, codec, view(), View<std::uint64_t, 1>(counts));
    codec.book = decant::codec::frequent_codebook<T>(View<const std::uint64_t, 1>(counts), 4, false);
    payload.resize(static_cast<std::size_t>(room()));
    index_t written = 0;
    encode(cpu, codec, view(), View<std::byte, 1>(payload), &written);
    payload.resize(static_cast<std::size_t>(written));
  }
  index_t size() const { return static_cast<index_t>(x.size()); }
  index_t room() const { return max_encoded_size(codec, size()); }
  View<const T, 1> view() const { return {x.data(), size()}; }
};

template <class T>
void measure(bench::Row& row, bench::Gpu& gpu, bench::Law law, index_t bytes, bool encoding) {
  const Data<T> data(law, bytes);
  const bench::DeviceBuffer<T> x(data.x), y(data.x.size());
  const bench::DeviceBuffer<std::byte> out(static_cast<std::size_t>(data.room())), in(data.payload);
  const bench::DeviceBuffer<index_t> size(1);
  const auto encode_ours = [&] {
    encode(gpu.context(), data.codec, View<const T, 1>(x.data(), data.size()),
           View<std::byte, 1>(out.data(), data.room()), size.data());
  };
  const auto decode_ours = [&] {
    decode(gpu.context(), data.codec, View<const std::byte, 1>(in.data(), static_cast<index_t>(in.size())),
           View<T, 1>(y.data(), data.size()));
  };
  double wrong = 0;
  if (encoding) {
    encode_ours();
    gpu.context().check();
    const auto got = out.download();
    wrong += size.download()[0] != static_cast<index_t>(data.payload.size());
    for (std::size_t i = 0; i < data.payload.size(); ++i) wrong += got[i] != data.payload[i];
  } else {
    decode_ours();
    gpu.context().check();
    const auto got = y.download();
    for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i].bits != data.x[i].bits;
  }
  row.measure({.ours = encoding ? bench::Call(encode_ours) : bench::Call(decode_ours),
               .limit = gpu.copy(2 * static_cast<std::size_t>(bytes)),
               .clock = [&gpu](const bench::Call& call) { return gpu(call); },
               .bytes = static_cast<double>(bytes),
               .error = wrong});
}

template <class T>
void add(bench::Suite& suite, bench::Gpu& gpu, bench::Law law, long bytes) {
  for (const bool encoding : {true, false}) {
    suite.add({.primitive = encoding ? "encode" : "decode",
               .policy = "SplitZip",
               .shape = bench::shape("data", name(law), "dtype", dtype_name<T>, "code", 4, "bytes", bytes),
               .context = "cuda",
               .isa = gpu.architecture()},
              [=, &gpu](bench::Row& row) { measure<T>(row, gpu, law, bytes, encoding); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("codec", argc, argv);
  bench::Gpu gpu;
  for (const long bytes : suite.sizes({8L << 20, 64L << 20, 512L << 20})) {
    for (const bench::Law law : {bench::Law::normal, bench::Law::lognormal}) add<decant::bf16>(suite, gpu, law, bytes);
    add<decant::fp8_e5m2>(suite, gpu, bench::Law::lognormal, bytes);
  }
  return suite.run();
}
