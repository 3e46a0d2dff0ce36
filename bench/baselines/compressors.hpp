#pragma once
// Lossless compressors as peers of a KV codec: the libraries that this build found (zstd, lz4, blosc), on elements as
// they are and on planes, and the two entropy coders of floats.hpp. On planes: blocks of 2^18 elements, which stay in
// cache, are split into exponents and the rest, and each plane is compressed alone.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "floats.hpp"

namespace baselines {

/// Calls are for one thread at a time.
struct Compressor {
  std::string name;
  // x [bytes] to out [compressed_room(bytes)]; returns how much of out it used.
  std::function<std::size_t(const std::byte* x, std::size_t bytes, std::byte* out)> encode;
  std::function<void(const std::byte* in, std::size_t size, std::byte* x, std::size_t bytes)> decode;
};

inline std::size_t compressed_room(std::size_t bytes) {
  return 2 * bytes + 65536;
}

std::vector<Compressor> compressors(const FloatFormat& format);

}  // namespace baselines
