// decant: the concept codec::KVCodec, a value that turns elements of a KV cache into fewer bytes and back: without loss
// (SplitZip) or with a stated error. A codec is fitted by calibrate(), which returns it with its tables filled in; what
// it writes (a payload) carries those tables: a payload read with other tables is an error and never wrong numbers.
#ifndef DECANT_CODEC_POLICY_HPP
#define DECANT_CODEC_POLICY_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "../core/dtype.hpp"
#include "../core/view.hpp"

namespace decant::codec {

/// How a payload is coded, as the container says it. 32 and up are the user's.
enum class CodecId : std::uint16_t { stored = 0, splitzip_bf16 = 1, splitzip_e5m2 = 2, splitzip_e4m3 = 3, user = 32 };

/// A codec on the context Ctx; its memory (x, out, in, y, *size) is where the context computes.
template <class C, class Ctx>
concept KVCodec =
    // A plain value of parameters and tables.
    std::copyable<C> && std::equality_comparable<C> && Storage<typename C::element> &&
    requires(Ctx& ctx, const C& c, View<const typename C::element, 1> x, View<typename C::element, 1> y, index_t n,
             View<std::byte, 1> out, View<const std::byte, 1> in, index_t* size) {
      // The codec fitted to a sample of what it will encode. May wait for the device.
      { calibrate(ctx, c, x) } -> std::same_as<C>;
      // Bytes that suffice for any n elements.
      { max_encoded_size(c, n) } -> std::same_as<index_t>;
      // Writes the payload of x [n] to the front of `out`, which has room for max_encoded_size(c, n) bytes, and its
      // size to *size. The same elements and codec give the same bytes on every context. What lies behind the payload
      // is undefined.
      encode(ctx, c, x, out, size);
      // Reads a payload of y.extent(0) elements, written with this codec. FormatError, before y is written, when `in`
      // is not one: every byte of it is hostile.
      decode(ctx, c, in, y);
      // The codec that a payload (in host memory) was written with. FormatError when `in` does not begin like one.
      { codec_of(c, in) } -> std::same_as<C>;
      // What the container calls it, and whether decode gives back every bit.
      { C::codec_id } -> std::convertible_to<CodecId>;
      { C::lossless } -> std::convertible_to<bool>;
    };

}  // namespace decant::codec

#endif
