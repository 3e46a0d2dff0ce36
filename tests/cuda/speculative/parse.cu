// PARSE on CUDA: masks bit for bit and scores as on the CPU.
#include "decant/speculative/parse.cuh"

#include <cmath>
#include <limits>
#include <vector>

#include "catch_compat.hpp"
#include "device_memory.cuh"

namespace {

using namespace decant;
using namespace decant::speculative;
using cuda_test::DeviceBuffer;
using cuda_test::Stream;

TEST_CASE("PARSE on CUDA: masks of both passes, from ends on the device", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  using Ends = std::vector<std::int32_t>;
  for (const Ends& ends : {Ends{4}, Ends{3, 7, 21, 22}}) {
    const DeviceBuffer<std::int32_t> device_ends(ends);
    for (const Parse& policy : {Parse{}, Parse{.schedule = Parse::Schedule::one_pass}}) {
      const ParseLayout layout = build(policy, 9, ends, 3);
      for (int i = 0; i < layout.passes; ++i) {
        ParsePass pass = layout.pass[i];
        std::vector<std::uint8_t> expected(static_cast<std::size_t>((pass.rows() * pass.keys() + 7) / 8));
        parse_bits(pass, expected);
        pass.ends = View<const std::int32_t, 1>(device_ends.data() + (pass.ends.data() - ends.data()),
                                                pass.ends.extent(0));
        const auto bytes = static_cast<index_t>(expected.size());
        const DeviceBuffer<std::uint8_t> bits(bytes);
        parse_bits(cuda, pass, View<std::uint8_t, 1>(bits.data(), bytes));
        cuda.check();
        CHECK(bits.download() == expected);
        CHECK_THROWS_AS(parse_bits(cuda, pass, View<std::uint8_t, 1>(bits.data(), bytes - 1)), ArgumentError);
      }
    }
  }
}

TEST_CASE("PARSE on CUDA: scores, of rows apart", "[speculative]") {
  const Stream stream;
  Cuda cuda(stream);
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr index_t n = 131, vocab = 7;
  std::vector<float> logits(n * vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 9 * std::sin(1.7f * static_cast<float>(i));
  logits[1] = NAN;
  logits[vocab + 1] = -inf;
  logits[vocab + 3] = -inf;
  const std::vector<std::int32_t> correct = {1, 3}, incorrect = {0, 4, 5}, outside = {7};
  const View<const float, 2> rows(logits.data(), {n, 6}, {vocab, 1});
  std::vector<float> expected(n);
  parse_scores(rows, correct, incorrect, expected);
  const DeviceBuffer<float> on_device(logits), scores(n);
  const DeviceBuffer<std::int32_t> good(correct), bad(incorrect), wrong(outside);
  const auto view = [](const DeviceBuffer<std::int32_t>& b, index_t count) {
    return View<const std::int32_t, 1>(b.data(), count);
  };
  const View<const float, 2> device_rows(on_device.data(), {n, 6}, {vocab, 1});
  const View<float, 1> out(scores.data(), n);
  parse_scores(cuda, device_rows, view(good, 2), view(bad, 3), out);
  cuda.check();
  const std::vector<float> got = scores.download();
  CHECK(std::isnan(got[0]));
  CHECK(got[1] == -inf);
  for (std::size_t i = 1; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-6));
  }
  parse_scores(cuda, device_rows, view(good, 2), view(wrong, 1), out);
  cuda.check();
  for (const float s : scores.download()) REQUIRE(std::isnan(s));
  CHECK_THROWS_AS(parse_scores(cuda, device_rows, view(good, 2), view(bad, 0), out), ArgumentError);
}

}  // namespace
