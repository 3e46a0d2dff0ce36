// SPEED's visibility: the truth table, and the paper's memory and prefill figures.
#include <decant/kv/visibility.hpp>

#include "catch_compat.hpp"

namespace visibility_test {

using decant::index_t;
using decant::kv::FullVisibility;
using decant::kv::Pivot;
using decant::kv::Speed;

TEST_CASE("SPEED materialises prompt tokens in the lower layers only", "[kv][speed]") {
  const index_t layers = 4, prompt = 5;
  for (const Pivot pivot : {Pivot::transient, Pivot::keep}) {
    const Speed speed{.depth = 0.5f, .anchors = 1, .pivot = pivot};
    for (index_t layer = 0; layer < layers; ++layer) {
      index_t rows = 0;
      for (index_t token = 0; token < prompt + 3; ++token) {
        const bool expected = layer < 2 || token == 0 || token >= prompt || (pivot == Pivot::keep && token == prompt - 1);
        REQUIRE(visible(speed, layer, layers, token, prompt) == expected);
        REQUIRE(computed(speed, layer, layers, token, prompt) == (expected || token == prompt - 1));
        rows += expected ? 1 : 0;
      }
      REQUIRE(kv_length(speed, layer, layers, prompt, 3) == rows);
    }
  }
}

TEST_CASE("full depth is full visibility", "[kv][speed]") {
  const Speed speed{.depth = 1.0f};
  for (index_t layer = 0; layer < 3; ++layer) {
    for (index_t token = 0; token < 9; ++token) {
      REQUIRE(visible(speed, layer, 3, token, 6) == visible(FullVisibility{}, layer, 3, token, 6));
    }
    REQUIRE(kv_length(speed, layer, 3, 6, 3) == kv_length(FullVisibility{}, layer, 3, 6, 3));
  }
}

TEST_CASE("SPEED's KV ratios and the paper's GiB table", "[kv][speed]") {
  const index_t layers = 32, row = 4096;
  const Speed quarter{.depth = 0.75f};
  const auto ratio = [&](index_t n, index_t t) {
    return static_cast<double>(kv_bytes(quarter, layers, n, t, row)) /
           static_cast<double>(kv_bytes(FullVisibility{}, layers, n, t, row));
  };
  REQUIRE(ratio(131072, 0) == Approx(0.75000).margin(5e-6));
  REQUIRE(ratio(131072, 1024) == Approx(0.75194).margin(5e-6));
  REQUIRE(ratio(8192, 1024) == Approx(0.77781).margin(5e-6));
  REQUIRE(ratio(1024, 256) == Approx(0.80020).margin(5e-6));

  const struct {
    index_t prompt;
    double gib[5];  // K = 32, 28, 24, 20, 16, with 128 decoded tokens
  } table[] = {{1024, {0.141, 0.125, 0.109, 0.094, 0.078}},
               {8192, {1.016, 0.891, 0.766, 0.641, 0.516}},
               {131072, {16.016, 14.016, 12.016, 10.016, 8.016}}};
  for (const auto& line : table) {
    for (int i = 0; i < 5; ++i) {
      const Speed speed{.depth = static_cast<float>(32 - 4 * i) / 32};
      const double gib = static_cast<double>(kv_bytes(speed, layers, line.prompt, 128, row)) / (1 << 30);
      REQUIRE(gib == Approx(line.gib[i]).margin(5.1e-4));
    }
  }
}

TEST_CASE("SPEED's prefill cost counts the pivot once", "[kv][speed]") {
  const Speed speed{.depth = 0.75f};
  REQUIRE(prefill_layer_tokens(speed, 32, 1000) == 24 * 1000 + 8 * (1 + 1));
  REQUIRE(prefill_layer_tokens(FullVisibility{}, 32, 1000) == 32000);
  // A prompt of one token is BoS, anchor and pivot at once; an empty one costs nothing.
  REQUIRE(prefill_layer_tokens(speed, 32, 1) == 32);
  REQUIRE(kv_length(Speed{.pivot = Pivot::keep}, 31, 32, 1, 0) == 1);
  REQUIRE(prefill_layer_tokens(speed, 32, 0) == 0);
}

TEST_CASE("SPEED refuses parameters without a meaning", "[kv][speed]") {
  REQUIRE_THROWS_WITH(validate(Speed{.depth = 1.5f}),
                      "decant::kv::Speed: argument `depth`: expected a share of layers between 0 and 1, got 1.5");
  REQUIRE_THROWS_AS(validate(Speed{.anchors = -1}), decant::ArgumentError);
}

}  // namespace visibility_test
