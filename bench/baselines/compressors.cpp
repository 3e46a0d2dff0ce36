#include "compressors.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#ifdef DECANT_BENCH_ZSTD
#include <zstd.h>
#endif
#ifdef DECANT_BENCH_LZ4
#include <lz4.h>
#endif
#ifdef DECANT_BENCH_BLOSC
#include <blosc.h>
#endif

namespace baselines {
namespace {

[[maybe_unused]] void check(bool done, const char* call) {
  if (!done) throw std::runtime_error(std::string(call) + " failed");
}

#ifdef DECANT_BENCH_ZSTD
Compressor zstd(int level) {
  const std::shared_ptr<ZSTD_CCtx> to(ZSTD_createCCtx(), ZSTD_freeCCtx);
  const std::shared_ptr<ZSTD_DCtx> from(ZSTD_createDCtx(), ZSTD_freeDCtx);
  return {"zstd-" + std::to_string(level),
          [=](const std::byte* x, std::size_t bytes, std::byte* out) {
            const std::size_t size = ZSTD_compressCCtx(to.get(), out, compressed_room(bytes), x, bytes, level);
            check(!ZSTD_isError(size), "ZSTD_compressCCtx");
            return size;
          },
          [=](const std::byte* in, std::size_t size, std::byte* x, std::size_t bytes) {
            check(ZSTD_decompressDCtx(from.get(), x, bytes, in, size) == bytes, "ZSTD_decompressDCtx");
          }};
}
#endif

#ifdef DECANT_BENCH_LZ4
Compressor lz4() {
  return {"lz4-1",
          [](const std::byte* x, std::size_t bytes, std::byte* out) {
            const auto n = static_cast<int>(bytes);
            const int size = LZ4_compress_default(reinterpret_cast<const char*>(x), reinterpret_cast<char*>(out), n,
                                                  LZ4_compressBound(n));
            check(size > 0, "LZ4_compress_default");
            return static_cast<std::size_t>(size);
          },
          [](const std::byte* in, std::size_t size, std::byte* x, std::size_t bytes) {
            const auto n = static_cast<int>(bytes);
            check(LZ4_decompress_safe(reinterpret_cast<const char*>(in), reinterpret_cast<char*>(x),
                                      static_cast<int>(size), n) == n,
                  "LZ4_decompress_safe");
          }};
}
#endif

#ifdef DECANT_BENCH_BLOSC
/// Byte shuffle first.
Compressor blosc(const FloatFormat& format, const char* inner, int level) {
  return {"blosc-" + std::string(inner),
          [=](const std::byte* x, std::size_t bytes, std::byte* out) {
            const int size = blosc_compress_ctx(level, BLOSC_SHUFFLE, format.element_bytes(), bytes, x, out,
                                                compressed_room(bytes), inner, 0, 1);
            check(size > 0, "blosc_compress_ctx");
            return static_cast<std::size_t>(size);
          },
          [](const std::byte* in, std::size_t, std::byte* x, std::size_t bytes) {
            check(blosc_decompress_ctx(in, x, bytes, 1) == static_cast<int>(bytes), "blosc_decompress_ctx");
          }};
}
#endif

Compressor stored() {
  return {"stored",
          [](const std::byte* x, std::size_t bytes, std::byte* out) {
            std::memcpy(out, x, bytes);
            return bytes;
          },
          [](const std::byte* in, std::size_t, std::byte* x, std::size_t bytes) { std::memcpy(x, in, bytes); }};
}

const std::uint8_t* symbols(const std::byte* x) {
  return reinterpret_cast<const std::uint8_t*>(x);
}
std::uint8_t* symbols(std::byte* x) {
  return reinterpret_cast<std::uint8_t*>(x);
}

Compressor huffman() {
  return {"huffman",
          [](const std::byte* x, std::size_t n, std::byte* out) { return huffman_encode(symbols(x), n, out); },
          [](const std::byte* in, std::size_t size, std::byte* x, std::size_t n) {
            huffman_decode(in, size, symbols(x), n);
          }};
}

Compressor rans() {
  return {
      "rans", [](const std::byte* x, std::size_t n, std::byte* out) { return rans_encode(symbols(x), n, out); },
      [](const std::byte* in, std::size_t size, std::byte* x, std::size_t n) { rans_decode(in, size, symbols(x), n); }};
}

/// Exponents through one compressor and the rest through another; a block is the sizes of the two, then they.
Compressor on_planes(const std::string& name, const FloatFormat& format, const Compressor& exponents,
                     const Compressor& rest) {
  constexpr std::size_t block = std::size_t{1} << 18;
  struct Planes {
    std::vector<std::byte> exponents, rest;
  };
  const auto planes = std::make_shared<Planes>();
  planes->exponents.resize(block);
  planes->rest.resize(format.rest_bytes(block));
  const std::size_t width = format.element_bytes();
  return {name,
          [=](const std::byte* x, std::size_t bytes, std::byte* out) {
            std::byte* at = out;
            for (std::size_t i = 0; i < bytes / width; i += block) {
              const std::size_t n = std::min(block, bytes / width - i);
              split_floats(format, x + i * width, n, symbols(planes->exponents.data()), planes->rest.data());
              std::uint64_t sizes[2];
              std::byte* const body = at + sizeof sizes;
              sizes[0] = exponents.encode(planes->exponents.data(), n, body);
              sizes[1] = rest.encode(planes->rest.data(), format.rest_bytes(n), body + sizes[0]);
              std::memcpy(at, sizes, sizeof sizes);
              at = body + sizes[0] + sizes[1];
            }
            return static_cast<std::size_t>(at - out);
          },
          [=](const std::byte* in, std::size_t, std::byte* x, std::size_t bytes) {
            for (std::size_t i = 0; i < bytes / width; i += block) {
              const std::size_t n = std::min(block, bytes / width - i);
              std::uint64_t sizes[2];
              std::memcpy(sizes, in, sizeof sizes);
              in += sizeof sizes;
              exponents.decode(in, sizes[0], planes->exponents.data(), n);
              rest.decode(in + sizes[0], sizes[1], planes->rest.data(), format.rest_bytes(n));
              join_floats(format, symbols(planes->exponents.data()), planes->rest.data(), n, x + i * width);
              in += sizes[0] + sizes[1];
            }
          }};
}

}  // namespace

std::vector<Compressor> compressors(const FloatFormat& format) {
  std::vector<Compressor> all;
  [[maybe_unused]] const auto add = [&](const Compressor& whole) {
    all.push_back(whole);
    all.push_back(on_planes(whole.name + "-planes", format, whole, whole));
  };
#ifdef DECANT_BENCH_ZSTD
  add(zstd(1));
  add(zstd(3));
#endif
#ifdef DECANT_BENCH_LZ4
  add(lz4());
#endif
#ifdef DECANT_BENCH_BLOSC
  all.push_back(blosc(format, "lz4", 5));
  all.push_back(blosc(format, "zstd", 1));  // which is zstd -1
#endif
  all.push_back(on_planes("huffman", format, huffman(), stored()));
  all.push_back(on_planes("rans", format, rans(), stored()));
  return all;
}

}  // namespace baselines
