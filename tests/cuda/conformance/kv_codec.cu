// The codec suite on the device.
#include "conformance/kv_codec.hpp"

#include "cuda/device_memory.cuh"
#include "decant/codec/splitzip.cuh"
#include "decant/codec/stored.cuh"

namespace {

using namespace cuda_test;
using decant::View;

/// Takes host memory, as Cpu does.
class CodecMirror {
 public:
  decant::Cuda& cuda() { return cuda_; }

 private:
  Stream stream_;
  decant::Cuda cuda_{stream_};
};

/// A copy of a host view on the device, with its stride.
template <class T>
class Copy {
 public:
  explicit Copy(const View<T, 1>& host) : host_(host), memory_(reach()) {
    must(cudaMemcpy(memory_.data(), host.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  View<T, 1> view() const { return {memory_.data(), {host_.extent(0)}, {host_.stride(0)}}; }

 private:
  index_t reach() const { return host_.extent(0) == 0 ? 0 : (host_.extent(0) - 1) * host_.stride(0) + 1; }
  std::size_t bytes() const { return static_cast<std::size_t>(reach()) * sizeof(T); }
  View<T, 1> host_;
  DeviceBuffer<std::remove_const_t<T>> memory_;
};

/// What the device left, over the host's elements. Contiguous.
template <class T>
void copy_back(const Copy<T>& copy, const View<T, 1>& host) {
  must(cudaMemcpy(host.data(), copy.view().data(), static_cast<std::size_t>(host.size()) * sizeof(T),
                  cudaMemcpyDeviceToHost),
       "cudaMemcpy");
}

template <class C>
C calibrate(CodecMirror& mirror, const C& codec, View<const typename C::element, 1> x) {
  const Copy copy(x);
  return calibrate(mirror.cuda(), codec, View<const typename C::element, 1>(copy.view()));
}

template <class C>
void encode(CodecMirror& mirror, const C& codec, View<const typename C::element, 1> x, View<std::byte, 1> out,
            index_t* size) {
  const Copy copy(x);
  const Copy room(out);
  const DeviceBuffer<index_t> written(std::vector<index_t>{*size});
  encode(mirror.cuda(), codec, View<const typename C::element, 1>(copy.view()), room.view(), written.data());
  mirror.cuda().check();
  copy_back(room, out);
  *size = written.download()[0];
}

/// Whatever the device wrote comes back, also when the payload is refused.
template <class C>
void decode(CodecMirror& mirror, const C& codec, View<const std::byte, 1> in, View<typename C::element, 1> y) {
  const Copy bytes(in);
  const Copy to(y);
  try {
    decode(mirror.cuda(), codec, View<const std::byte, 1>(bytes.view()), to.view());
    mirror.cuda().check();
  } catch (const decant::Error&) {
    copy_back(to, y);
    throw;
  }
  copy_back(to, y);
}

}  // namespace

template <>
struct conformance::ContextTraits<CodecMirror> {
  using Engine = decant::Cuda;
};

namespace {

using namespace decant::codec;

TEST_CASE("KVCodec on Cuda: SplitZip of bf16") {
  conformance::kv_codec<CodecMirror>(SplitZip<decant::bf16>{});
}
TEST_CASE("KVCodec on Cuda: SplitZip of e5m2") {
  conformance::kv_codec<CodecMirror>(SplitZip<decant::fp8_e5m2>{.reserve_zero = true});
}
TEST_CASE("KVCodec on Cuda: SplitZip of e4m3") {
  conformance::kv_codec<CodecMirror>(SplitZip<decant::fp8_e4m3>{.chunk = 64});
}
TEST_CASE("KVCodec on Cuda: Stored bf16") {
  conformance::kv_codec<CodecMirror>(Stored<decant::bf16>{});
}

}  // namespace
