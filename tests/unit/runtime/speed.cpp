// SPEED in the forward pass (arXiv 2605.06105): the compact execution against the mask that defines it, and its counts.
#include <decant/kv/full.hpp>
#include <decant/kv/visibility.hpp>
#include <decant/stack.hpp>

#include "catch_compat.hpp"
#include "llama.hpp"
#include "loaded_model.hpp"

namespace runtime_test {
namespace {

using decant::kv::Pivot;
using decant::kv::Speed;
using runtime::DenseCache;
using FullStack = decant::Stack<>;
using SpeedStack = decant::Stack<Speed>;
using FullLlama = runtime::Llama<FullStack, DenseCache<float>>;
using SpeedLlama = runtime::Llama<SpeedStack, DenseCache<float>>;

SpeedStack stack_of(const Speed& speed) {
  SpeedStack stack;
  stack.visibility = speed;
  return stack;
}

/// Logits before each token that follows the prompt's first `prompt` ones.
std::vector<std::vector<float>> run(const Loaded& model, const Speed& speed, const runtime::Tokens& tokens,
                                    index_t prompt) {
  decant::Cpu cpu;
  SpeedLlama llama(cpu, model.config, model.weights, stack_of(speed));
  std::vector<std::vector<float>> all;
  all.push_back(copy(llama.prefill({tokens.begin(), tokens.begin() + prompt}, index_t(tokens.size()) - prompt)));
  for (std::size_t t = static_cast<std::size_t>(prompt); t < tokens.size(); ++t) {
    all.push_back(copy(llama.decode({tokens[t]})));
  }
  return all;
}

/// The same by definition: all tokens at full depth under the mask, with NaN for every state that must not matter.
Rows definition(const Shape& shape, const Speed& speed, const runtime::Tokens& tokens, index_t prompt, bool self_only) {
  const index_t lower = speed.lower_layers(shape.layers);
  const auto seen = [&](index_t layer, index_t query, index_t key) {
    if (layer >= lower && self_only) return key == query || key < speed.anchors;
    return key == query || visible(speed, layer, shape.layers, key, prompt);
  };
  const auto needed = [&](index_t layer, index_t token) { return computed(speed, layer, shape.layers, token, prompt); };
  const Rows all = NaiveLlama(shape).logits(tokens, seen, needed);
  return {all.begin() + prompt - 1, all.end()};
}

double worst_distance(const std::vector<std::vector<float>>& got, const Rows& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::fmax(worst, distance(decant::View<const float, 1>(got[i]), expected[i]));
  }
  return worst;
}

TEST_CASE("speed: the compact run equals the masked run at full depth, which hides NaN", "[speed]") {
  const Shape shape;
  const TemporaryFolder folder;
  write_model(folder, shape);
  const Loaded model(folder);
  const runtime::Tokens tokens = random_prompt(12);
  for (const float depth : {0.0f, 0.25f, 0.5f, 0.75f, 1.0f}) {
    for (const index_t anchors : {0, 1, 3}) {
      for (const Pivot pivot : {Pivot::transient, Pivot::keep}) {
        for (const index_t prompt : {1, 2, 3, 9}) {
          const Speed speed{.depth = depth, .anchors = anchors, .pivot = pivot};
          INFO("depth " << depth << ", " << anchors << " anchors, " << name(pivot) << ", prompt " << prompt);
          CHECK(worst_distance(run(model, speed, tokens, prompt), definition(shape, speed, tokens, prompt, false)) <
                2e-5);
        }
      }
    }
  }
}

TEST_CASE("speed: the lower layers hold what the full model's do, bit for bit", "[speed]") {
  const Shape shape;
  const TemporaryFolder folder;
  write_model(folder, shape);
  const Loaded model(folder);
  const runtime::Tokens prompt = random_prompt(33);
  decant::Cpu cpu;
  FullLlama full(cpu, model.config, model.weights, {});
  SpeedLlama speed(cpu, model.config, model.weights, stack_of({.depth = 0.5f}));
  full.prefill(prompt, 0);
  speed.prefill(prompt, 0);
  for (index_t l = 0; l < 4; ++l) {
    const auto a = full.cache(l).view();
    const auto b = speed.cache(l).view();
    REQUIRE(b.length(0, 0) == (l < 2 ? 33 : 1));
    for (index_t h = 0; h < 2; ++h) {
      for (index_t t = 0; t < b.length(0, h); ++t) {
        for (index_t i = 0; i < 8; ++i) {
          // Above the lower layers only the anchor is left, and it sees itself alone in both models.
          REQUIRE(a.key(0, h, t)[i] == b.key(0, h, t)[i]);
          REQUIRE(a.value(0, h, t)[i] == b.value(0, h, t)[i]);
        }
      }
    }
  }
}

TEST_CASE("speed: at full depth it is the full model", "[speed]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const runtime::Tokens tokens = random_prompt(30);
  decant::Cpu cpu;
  FullLlama full(cpu, model.config, model.weights, {});
  const auto got = run(model, {.depth = 1.0f}, tokens, 20);
  CHECK(got[0] == copy(full.prefill({tokens.begin(), tokens.begin() + 20}, 10)));
  for (std::size_t t = 20; t < 30; ++t) CHECK(got[t - 19] == copy(full.decode({tokens[t]})));
}

TEST_CASE("speed: transient and keep differ from the second logits on", "[speed]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  const runtime::Tokens tokens = random_prompt(30);
  const auto transient = run(model, {.depth = 0.5f}, tokens, 25);
  const auto keep = run(model, {.depth = 0.5f, .pivot = Pivot::keep}, tokens, 25);
  CHECK(transient[0] == keep[0]);
  for (std::size_t i = 1; i < transient.size(); ++i) CHECK(transient[i] != keep[i]);
}

TEST_CASE("speed: a prompt token changes later logits, but nothing that is cached above the lower layers", "[speed]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  runtime::Tokens prompt = random_prompt(25);
  decant::Cpu cpu;
  SpeedLlama llama(cpu, model.config, model.weights, stack_of({.depth = 0.5f}));
  const auto upper_rows = [&] {
    std::vector<float> rows;
    for (index_t l = 2; l < 4; ++l) {
      const auto view = llama.cache(l).view();
      for (index_t h = 0; h < 2; ++h) {
        for (index_t t = 0; t < view.length(0, h); ++t)
          rows.insert(rows.end(), view.key(0, h, t), view.key(0, h, t) + 8);
      }
    }
    return rows;
  };
  const auto before = copy(llama.prefill(prompt, 0));
  const auto rows_before = upper_rows();
  prompt[7] += 1;
  CHECK(copy(llama.prefill(prompt, 0)) != before);
  CHECK(upper_rows() == rows_before);
}

TEST_CASE("speed: seeing only anchors and itself above equals it for the first decoded token, not later", "[speed]") {
  const Shape shape;
  const TemporaryFolder folder;
  write_model(folder, shape);
  const Loaded model(folder);
  const runtime::Tokens tokens = random_prompt(30);
  const Speed speed{.depth = 0.5f};
  const auto got = run(model, speed, tokens, 25);
  const Rows self = definition(shape, speed, tokens, 25, true);
  CHECK(distance(decant::View<const float, 1>(got[0]), self[0]) < 2e-5);
  CHECK(distance(decant::View<const float, 1>(got[1]), self[1]) < 2e-5);
  CHECK(distance(decant::View<const float, 1>(got[2]), self[2]) > 1e-3);
}

TEST_CASE("speed: the bytes in use are the formula's", "[speed]") {
  const TemporaryFolder folder;
  const Shape shape;
  write_model(folder, shape);
  const Loaded model(folder);
  const runtime::Tokens tokens = random_prompt(60);
  const index_t row = 2 * shape.kv_heads * shape.head_dim * 4;
  decant::Cpu cpu;
  for (const float depth : {0.0f, 0.25f, 0.75f, 1.0f}) {
    for (const Pivot pivot : {Pivot::transient, Pivot::keep}) {
      const Speed speed{.depth = depth, .anchors = 2, .pivot = pivot};
      SpeedLlama llama(cpu, model.config, model.weights, stack_of(speed));
      for (const index_t n : {1, 2, 3, 50}) {
        const index_t k = speed.lower_layers(4), a = n < 2 ? n : 2;
        const index_t kept = pivot == Pivot::keep && n > a ? 4 - k : 0;
        llama.prefill({tokens.begin(), tokens.begin() + n}, 10);
        for (index_t t = 0; t <= 10; ++t) {
          INFO("depth " << depth << ", n " << n << ", t " << t);
          CHECK(llama.kv_bytes() == row * (k * (n - a) + 4 * a + 4 * t + kept));
          CHECK(llama.kv_bytes() == kv_bytes(speed, 4, n, t, row));
          if (t < 10) llama.decode({tokens[static_cast<std::size_t>(n + t)]});
        }
      }
    }
  }
}

TEST_CASE("speed: the share of KV and the sizes that the paper states", "[speed]") {
  const auto ratio = [](index_t n, index_t t) {
    const Speed speed{.depth = 0.75f};
    return static_cast<double>(kv_bytes(speed, 32, n, t, 1)) /
           static_cast<double>(kv_bytes(decant::kv::FullVisibility{}, 32, n, t, 1));
  };
  CHECK(ratio(131072, 0) == Approx(0.75000).margin(5e-6));
  CHECK(ratio(131072, 1024) == Approx(0.75194).margin(5e-6));
  CHECK(ratio(8192, 1024) == Approx(0.77781).margin(5e-6));
  CHECK(ratio(1024, 256) == Approx(0.80020).margin(5e-6));

  const double table[3][5] = {{0.141, 0.125, 0.109, 0.094, 0.078},
                              {1.016, 0.891, 0.766, 0.641, 0.516},
                              {16.016, 14.016, 12.016, 10.016, 8.016}};
  const index_t lengths[3] = {1024, 8192, 131072};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 5; ++j) {
      const Speed speed{.depth = static_cast<float>(32 - 4 * j) / 32};
      const double gib = static_cast<double>(kv_bytes(speed, 32, lengths[i], 128, 4096)) / (1 << 30);
      CHECK(gib == Approx(table[i][j]).margin(5.1e-4));
    }
  }
}

}  // namespace
}  // namespace runtime_test
