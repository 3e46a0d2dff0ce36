#pragma once
// What every KVCodec must do, tested through nothing but the concept. Ctx: see context.hpp. A codec that is not
// lossless declares bounds of its own, which its own tests hold it to; here it must give the same bits each time.

#include <cstring>
#include <vector>

#include "catch_compat.hpp"
#include "conformance/context.hpp"
#include "decant/codec/policy.hpp"

namespace conformance {

using decant::index_t;
using decant::View;

template <class T>
struct CodecCall {
  std::vector<std::byte> payload;
  std::vector<T> decoded;
};

/// Elements of a repeating ramp of magnitudes, of both signs, and of arbitrary bits now and then.
template <class T>
std::vector<T> codec_sample(index_t n, std::uint32_t seed) {
  std::vector<T> x(static_cast<std::size_t>(n));
  std::uint32_t state = seed * 2654435761u + 1;
  for (T& e : x) {
    state = state * 1664525u + 1013904223u;
    const float magnitude = static_cast<float>(1 + (state >> 8) % 1000) * 0.003f;
    e = T((state >> 31) != 0 ? -magnitude : magnitude);
    if ((state >> 12) % 701 == 0) std::memcpy(&e, &state, sizeof(T));
  }
  return x;
}

template <class T>
bool codec_same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class Ctx, class C, class T>
CodecCall<T> codec_call(Ctx& ctx, const C& codec, const std::vector<T>& x, std::byte fill = std::byte{0}) {
  const index_t n = static_cast<index_t>(x.size());
  const index_t most = max_encoded_size(codec, n);
  T untouched;
  std::memset(static_cast<void*>(&untouched), 0x5a, sizeof untouched);
  CodecCall<T> call{std::vector<std::byte>(static_cast<std::size_t>(most) + 16, fill),
                    std::vector<T>(x.size(), untouched)};
  index_t size = -1;
  encode(ctx, codec, View<const T, 1>(x.data(), n), View<std::byte, 1>(call.payload.data(), most), &size);
  REQUIRE((size >= 0 && size <= most));
  for (std::size_t i = 0; i < 16; ++i) REQUIRE(call.payload[static_cast<std::size_t>(most) + i] == fill);
  call.payload.resize(static_cast<std::size_t>(size));
  decode(ctx, codec, View<const std::byte, 1>(call.payload.data(), size), View<T, 1>(call.decoded.data(), n));
  return call;
}

template <class Ctx, class C>
void codec_round_trips(Ctx& ctx, const C& codec) {
  using T = typename C::element;
  for (const index_t n : {0, 1, 2, 7, 63, 64, 65, 1023, 1024, 1025, 2049, 65536, 100003}) {
    INFO("n " << n);
    const std::vector<T> x = codec_sample<T>(n, static_cast<std::uint32_t>(n));
    const CodecCall<T> call = codec_call(ctx, codec, x);
    if constexpr (C::lossless) CHECK(codec_same_bits(call.decoded, x));
    // Again, over other bytes: the same payload. What it was written with reads it too.
    const CodecCall<T> again = codec_call(ctx, codec, x, std::byte{0xff});
    CHECK(again.payload == call.payload);
    CHECK(codec_same_bits(again.decoded, call.decoded));
    const View<const std::byte, 1> in(call.payload.data(), static_cast<index_t>(call.payload.size()));
    const C found = codec_of(codec, in);
    std::vector<T> y(x.size());
    decode(ctx, found, in, View<T, 1>(y.data(), n));
    CHECK(codec_same_bits(y, call.decoded));
    if constexpr (C::lossless) CHECK(codec_call(ctx, found, x).payload == call.payload);
  }
}

/// Bytes that are no payload: an error, and y as it was.
template <class Ctx, class C>
void codec_refuses(Ctx& ctx, const C& codec) {
  using T = typename C::element;
  const std::vector<T> x = codec_sample<T>(20000, 9);
  const CodecCall<T> call = codec_call(ctx, codec, x);
  std::vector<T> y(x.size()), untouched;
  std::memset(static_cast<void*>(y.data()), 0x5a, y.size() * sizeof(T));
  untouched = y;
  const auto refused = [&](const std::vector<std::byte>& bytes, index_t n) {
    try {
      decode(ctx, codec, View<const std::byte, 1>(bytes.data(), static_cast<index_t>(bytes.size())),
             View<T, 1>(y.data(), n));
    } catch (const decant::FormatError&) {
      return codec_same_bits(y, untouched);
    }
    return false;
  };
  const index_t n = static_cast<index_t>(x.size());
  CHECK(refused(call.payload, n - 1));
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64},
                                 call.payload.size() / 2, call.payload.size() - 1}) {
    CHECK(refused({call.payload.begin(), call.payload.begin() + static_cast<std::ptrdiff_t>(size)}, n));
  }
  if constexpr (is_cpu<Ctx>) {  // elsewhere only the device knows a payload's size, and views may go on behind it
    std::vector<std::byte> longer = call.payload;
    longer.push_back(std::byte{0});
    CHECK(refused(longer, n));
  }

  // Arguments.
  index_t size = -7;
  std::vector<std::byte> out(static_cast<std::size_t>(max_encoded_size(codec, n)));
  const View<std::byte, 1> room(out.data(), static_cast<index_t>(out.size()));
  const View<const std::byte, 1> in(call.payload.data(), static_cast<index_t>(call.payload.size()));
  CHECK_THROWS_AS(encode(ctx, codec, View<const T, 1>(x.data(), n), room.slice(0, 0, room.extent(0) - 1), &size),
                  decant::ArgumentError);
  CHECK_THROWS_AS(encode(ctx, codec, View<const T, 1>(x.data(), {n / 2}, {2}), room, &size), decant::ArgumentError);
  const View<std::byte, 1> one_byte(out.data(), {room.extent(0)}, {0});
  CHECK_THROWS_AS(encode(ctx, codec, View<const T, 1>(x.data(), n), one_byte, &size), decant::ArgumentError);
  CHECK_THROWS_AS(decode(ctx, codec, in, View<T, 1>(y.data(), {n / 2}, {2})), decant::ArgumentError);
  CHECK_THROWS_AS(decode(ctx, codec, View<const std::byte, 1>(in.data(), {in.extent(0)}, {0}), View<T, 1>(y.data(), n)),
                  decant::ArgumentError);
  CHECK_THROWS_AS(max_encoded_size(codec, index_t{-1}), decant::ArgumentError);
  CHECK(size == -7);
  CHECK(codec_same_bits(y, untouched));
  CHECK(out == std::vector<std::byte>(out.size()));
}

struct CountedMemory {
  int allocations = 0;
  decant::Allocator allocator() {
    return {[](void* state, std::size_t bytes) {
              ++static_cast<CountedMemory*>(state)->allocations;
              return ::operator new (bytes, std::align_val_t{64});
            },
            [](void*, void* memory, std::size_t) { ::operator delete (memory, std::align_val_t{64}); }, this};
  }
};

template <class Ctx = decant::Cpu, class C>
void kv_codec(const C& fresh) {
  using T = typename C::element;
  static_assert(decant::codec::KVCodec<C, typename ContextTraits<Ctx>::Engine>);
  Ctx ctx;
  const std::vector<T> sample = codec_sample<T>(50000, 1);
  const View<const T, 1> x(sample.data(), static_cast<index_t>(sample.size()));
  const C codec = calibrate(ctx, fresh, x);
  CHECK(codec == calibrate(ctx, fresh, x));
  CHECK(calibrate(ctx, codec, View<const T, 1>{}) == codec);
  for (const C& each : {fresh, codec}) {
    if constexpr (is_cpu<Ctx>) {
      for (const decant::Isa isa : {decant::Isa::portable, decant::Isa::avx2, decant::Isa::avx512}) {
        if (isa > decant::best_isa()) continue;
        INFO(decant::name(isa));
        ctx.set_isa(isa);
        codec_round_trips(ctx, each);
        codec_refuses(ctx, each);
      }
    } else {
      codec_round_trips(ctx, each);
      codec_refuses(ctx, each);
    }
  }

  // The second identical call allocates nothing.
  if constexpr (is_cpu<Ctx>) {
    CountedMemory memory;
    decant::Cpu counted(decant::ParallelFor{}, memory.allocator());
    codec_call(counted, codec, sample);
    calibrate(counted, fresh, x);
    const int first = memory.allocations;
    codec_call(counted, codec, sample);
    calibrate(counted, fresh, x);
    CHECK(memory.allocations == first);
  }
}

}  // namespace conformance
