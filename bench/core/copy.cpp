// The harness measuring itself: decant's plain loop over 8-byte words against memcpy, and memory's own two limits.

#include <algorithm>

#include "harness.hpp"

int main(int argc, char** argv) {
  bench::Suite suite("core", argc, argv);
  for (const long bytes : suite.sizes({1L << 20, 1L << 28})) {
    const auto count = static_cast<std::size_t>(bytes) / 8;
    suite.add({.primitive = "copy", .policy = "std::copy", .shape = bench::shape("bytes", bytes)}, [=](bench::Row& row) {
      bench::Buffer<std::uint64_t> from(count), to(count);
      for (std::size_t i = 0; i < count; ++i) from[i] = i * 0x9e3779b97f4a7c15u;
      decant::Cpu cpu;
      auto copy = [&] {
        std::copy(from.data(), from.data() + count, to.data());
        benchmark::ClobberMemory();
      };
      copy();
      const bool same = std::equal(from.data(), from.data() + count, to.data());
      row.measure({.ours = copy,
                   .limit = bench::copy(cpu, from.bytes()),
                   .peers = {{"memset", [&] { std::memset(to.data(), 1, to.bytes()); }}},
                   .bytes = static_cast<double>(bytes),
                   .error = same ? 0.0 : 1.0});
    });
    suite.add({.primitive = "read", .policy = "bench::stream_read", .shape = bench::shape("bytes", bytes)},
              [=](bench::Row& row) {
                decant::Cpu cpu;
                const bench::Limit read = bench::stream_read(cpu, static_cast<std::size_t>(bytes));
                row.measure({.ours = read.call,
                             .limit = bench::stream_read(cpu, static_cast<std::size_t>(bytes)),
                             .bytes = static_cast<double>(bytes)});
              });
  }
  return suite.run();
}
