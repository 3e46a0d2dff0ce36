// Elements for codecs, and their payloads as the CPU and the device write them.
#pragma once

#include <random>
#include <vector>

#include "decant/codec/splitzip.cuh"
#include "device_memory.cuh"

namespace cuda_test {

namespace codec = decant::codec;
using decant::View;
using Bytes = std::vector<std::byte>;

/// Elements whose exponents lie in a window of `window` from `first` on, but for a share `outliers` with any exponent.
template <class T>
std::vector<T> elements(index_t n, unsigned first, unsigned window, double outliers, unsigned seed) {
  using F = codec::FieldCodecOf<T, 3>;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& element : x) {
    const unsigned any = static_cast<unsigned>(random()) & ((1u << F::exp_bits) - 1u);
    const unsigned exponent = uniform(random) < outliers ? any : first + static_cast<unsigned>(random()) % window;
    element.bits = F::join(exponent, static_cast<unsigned>(random()) & ((1u << F::rest_bits) - 1u));
  }
  return x;
}

/// Stretches of all kinds, so that chunks of several kinds meet: `stretch` elements with few outliers, many, few ...
template <class T>
std::vector<T> mixed_elements(index_t n, unsigned first, unsigned window, index_t stretch, unsigned seed) {
  std::vector<T> x;
  constexpr double shares[] = {0.001, 0.03, 0.0, 0.1, 1.0, 0.01};
  for (int s = 0; static_cast<index_t>(x.size()) < n; ++s) {
    const index_t left = n - static_cast<index_t>(x.size());
    const auto more =
        elements<T>(left < stretch ? left : stretch, first, window, shares[s % 6], seed + 97u * unsigned(s));
    x.insert(x.end(), more.begin(), more.end());
  }
  return x;
}

/// T's most usual exponents with this codec's book.
template <class T>
unsigned first_of(const codec::SplitZip<T>& c) {
  return c.book.contiguous() ? c.book.exponents[0] : c.book.exponents[1];
}

template <class T>
Bytes encoded_on_cpu(const codec::SplitZip<T>& c, const std::vector<T>& x) {
  decant::Cpu cpu;
  const auto n = static_cast<index_t>(x.size());
  Bytes out(static_cast<std::size_t>(max_encoded_size(c, n)));
  index_t size = 0;
  encode(cpu, c, View<const T, 1>(x.data(), n), View<std::byte, 1>(out), &size);
  out.resize(static_cast<std::size_t>(size));
  return out;
}

/// Elements and payload that many bytes behind an aligned address. Bytes behind the payload are kept if `whole`.
template <class T>
Bytes encoded_on_device(decant::Cuda& cuda, const codec::SplitZip<T>& c, const std::vector<T>& x, index_t x_offset = 0,
                        index_t out_offset = 0) {
  const auto n = static_cast<index_t>(x.size());
  std::vector<T> shifted(static_cast<std::size_t>(x_offset));
  shifted.insert(shifted.end(), x.begin(), x.end());
  const DeviceBuffer<T> device_x(shifted);
  const index_t room = max_encoded_size(c, n);
  const DeviceBuffer<std::byte> out(room + out_offset);
  const DeviceBuffer<index_t> size(1);
  encode(cuda, c, View<const T, 1>(device_x.data() + x_offset, n), View<std::byte, 1>(out.data() + out_offset, room),
         size.data());
  cuda.check();
  Bytes bytes = out.download();
  bytes.erase(bytes.begin(), bytes.begin() + out_offset);
  bytes.resize(static_cast<std::size_t>(size.download()[0]));
  return bytes;
}

/// Elements [first, first + count), to a buffer that begins with `y_offset` elements more. Its other elements must
/// stay.
template <class T>
std::vector<T> decoded_on_device(decant::Cuda& cuda, const codec::SplitZip<T>& c, const Bytes& payload, index_t first,
                                 index_t count, bool range, index_t in_offset = 0, index_t y_offset = 0) {
  Bytes shifted(static_cast<std::size_t>(in_offset));
  shifted.insert(shifted.end(), payload.begin(), payload.end());
  const DeviceBuffer<std::byte> in(shifted);
  const T mark = T::from_bits(0x5a);
  const DeviceBuffer<T> y(std::vector<T>(static_cast<std::size_t>(y_offset + count + 3), mark));
  const View<const std::byte, 1> bytes(in.data() + in_offset, static_cast<index_t>(payload.size()));
  const View<T, 1> to(y.data() + y_offset, count);
  if (range) {
    decode_range(cuda, c, bytes, first, to);
  } else {
    decode(cuda, c, bytes, to);
  }
  cuda.check();
  const std::vector<T> all = y.download();
  for (index_t i = 0; i < y.size(); ++i) {
    if ((i < y_offset || i >= y_offset + count) && all[static_cast<std::size_t>(i)].bits != mark.bits) {
      throw std::runtime_error("an element outside of y was written");
    }
  }
  return {all.begin() + y_offset, all.begin() + y_offset + count};
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].bits != b[i].bits) return false;
  }
  return true;
}

}  // namespace cuda_test
