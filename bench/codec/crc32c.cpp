// crc32c() by the processor's instruction and by tables, against one read of the same bytes.

#include "decant/codec/crc32c.hpp"
#include "harness.hpp"

namespace {

using Update = std::uint32_t (*)(std::uint32_t, const std::byte*, std::size_t);

void measure(bench::Row& row, std::size_t bytes, Update update) {
  bench::Buffer<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 0x9e3779b97f4a7c15u >> 56);
  decant::Cpu cpu;
  const auto crc = [&] {
    std::uint32_t state = update(~0u, data.data(), bytes);
    benchmark::DoNotOptimize(state);
    return ~state;
  };
  const decant::View<const std::byte, 1> view(data.data(), static_cast<decant::index_t>(bytes));
  row.measure({.ours = crc,
               .limit = bench::stream_read(cpu, bytes),
               .bytes = static_cast<double>(bytes),
               .error = crc() == decant::codec::crc32c(view) ? 0.0 : 1.0});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("codec", argc, argv);
  for (const long bytes : suite.sizes({256L << 10, 8L << 20, 256L << 20})) {
    const auto add = [&](const char* isa, Update update) {
      suite.add({.primitive = "crc32c", .policy = "crc32c", .shape = bench::shape("bytes", bytes), .isa = isa},
                [=](bench::Row& row) { measure(row, static_cast<std::size_t>(bytes), update); });
    };
    add("portable", decant::codec::detail::crc32c_update_portable);
#if DECANT_X86
    if (decant::codec::detail::has_crc32c_sse42()) add("sse4.2", decant::codec::detail::crc32c_update_sse42);
#endif
  }
  return suite.run();
}
