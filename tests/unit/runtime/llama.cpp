// The forward pass against its definition in double, from every kind of checkpoint.
#include "llama.hpp"

#include <decant/kv/snapkv.hpp>
#include <decant/stack.hpp>

#include "catch_compat.hpp"
#include "loaded_model.hpp"

namespace runtime_test {
namespace {

using decant::ArgumentError;
using decant::FormatError;
using runtime::Logits;
using Stack = decant::Stack<>;
using Llama = runtime::Llama<Stack, runtime::DenseCache<float>>;

constexpr double bound = 2e-5;  // float against double through 4 layers

TEST_CASE("llama: all logits of prompt and decoded tokens are those of the definition", "[llama]") {
  const Shape shapes[] = {
      {},
      {.heads = 3, .kv_heads = 1, .head_dim = 16, .tied = false},  // hidden is not heads * head_dim
      {.vocab = 259, .hidden = 36, .ffn = 50, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 10}};
  for (const Shape& shape : shapes) {
    const TemporaryFolder folder;
    write_model(folder, shape);
    const Loaded model(folder);
    runtime::Tokens tokens = random_prompt(40, shape.vocab);
    const Rows expected = NaiveLlama(shape).logits(tokens);
    decant::Cpu cpu;
    Llama llama(cpu, model.config, model.weights, Stack{});

    const runtime::Tokens prompt(tokens.begin(), tokens.begin() + 30);
    auto logits = llama.prefill(prompt, 10, Logits::all);
    REQUIRE(logits.extent(0) == 30);
    for (index_t t = 0; t < 30; ++t) CHECK(distance(logits[t], expected[static_cast<std::size_t>(t)]) < bound);
    logits = llama.decode({tokens.begin() + 30, tokens.begin() + 36}, Logits::all);  // several at once
    REQUIRE(logits.extent(0) == 6);
    for (index_t t = 0; t < 6; ++t) CHECK(distance(logits[t], expected[static_cast<std::size_t>(30 + t)]) < bound);
    for (std::size_t t = 36; t < 40; ++t) {  // and one by one
      logits = llama.decode({tokens[t]});
      REQUIRE(logits.extent(0) == 1);
      CHECK(distance(logits[0], expected[t]) < bound);
    }
    CHECK(llama.length() == 40);
    CHECK(llama.kv_bytes() == 40 * shape.layers * shape.kv_heads * shape.head_dim * 2 * 4);
    // A second prompt starts anew.
    logits = llama.prefill({prompt.begin(), prompt.begin() + 7}, 0);
    CHECK(distance(logits[0], expected[6]) < bound);
  }
}

TEST_CASE("llama: the stored type, shards, and a head of its own that repeats the embedding change nothing",
          "[llama]") {
  const Shape tied;
  const runtime::Tokens prompt = random_prompt(20);
  const auto logits_of = [&](const TemporaryFolder& folder) {
    const Loaded model(folder);
    decant::Cpu cpu;
    Llama llama(cpu, model.config, model.weights, Stack{});
    return copy(llama.prefill(prompt, 0));
  };
  const TemporaryFolder f32, f16, bf16, untied, sharded, stored;
  write_model(f32, tied, DType::f32);
  write_model(f16, tied, DType::f16);
  write_model(bf16, tied, DType::bf16);
  const std::vector<float> expected = logits_of(f32);
  CHECK(logits_of(f16) == expected);
  CHECK(logits_of(bf16) == expected);

  std::vector<NamedTensor> tensors = tensors_of(tied);
  NamedTensor head = tensors[0];
  head.name = "lm_head.weight";
  tensors.push_back(head);
  Json config = config_of(tied);
  config["tie_word_embeddings"] = false;
  write_file(untied.file("config.json"), config.dump());
  write_file(untied.file("model.safetensors"), safetensors(tensors, DType::f32));
  CHECK(logits_of(untied) == expected);
  CHECK(Loaded(untied).weights.bytes == Loaded(f32).weights.bytes + 256 * 32 * 4);

  // A tied model whose file also holds a head, with other numbers in it: the config decides.
  for (float& v : tensors.back().values) v = 1;
  config["tie_word_embeddings"] = true;
  write_file(stored.file("config.json"), config.dump());
  write_file(stored.file("model.safetensors"), safetensors(tensors, DType::f32));
  CHECK(logits_of(stored) == expected);

  tensors = tensors_of(tied);
  const auto half = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() / 2);
  Json map;
  for (auto t = tensors.begin(); t != tensors.end(); ++t) {
    map[t->name] = t < half ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  write_file(sharded.file("config.json"), config.dump());
  write_file(sharded.file("model.safetensors.index.json"), Json{{"weight_map", map}}.dump());
  write_file(sharded.file("model-00001-of-00002.safetensors"), safetensors({tensors.begin(), half}, DType::bf16));
  write_file(sharded.file("model-00002-of-00002.safetensors"), safetensors({half, tensors.end()}, DType::f32));
  CHECK(logits_of(sharded) == expected);
}

TEST_CASE("llama: a tensor that is missing or has another shape is named", "[llama]") {
  const Shape shape;
  for (const NamedTensor& victim : tensors_of(shape)) {
    const TemporaryFolder folder;
    std::vector<NamedTensor> tensors;
    for (const NamedTensor& t : tensors_of(shape)) {
      if (t.name != victim.name) tensors.push_back(t);
    }
    write_file(folder.file("config.json"), config_of(shape).dump());
    write_file(folder.file("model.safetensors"), safetensors(tensors, DType::f32));
    std::string said = error_of<FormatError>([&] { Loaded model(folder); });
    CHECK_THAT(said, catch_compat::contains(("tensor \"" + victim.name + "\"").c_str()));
    CHECK_THAT(said, catch_compat::contains("got nothing"));

    tensors.push_back({victim.name, {1, 1}, {0}});
    write_file(folder.file("model.safetensors"), safetensors(tensors, DType::f32));
    said = error_of<FormatError>([&] { Loaded model(folder); });
    CHECK_THAT(said, catch_compat::contains(("tensor \"" + victim.name + "\"").c_str()));
    CHECK_THAT(said, catch_compat::contains("got [1, 1]"));
  }
}

TEST_CASE("llama: a prefill that throws leaves nothing that could be decoded", "[llama]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  decant::Cpu cpu;
  using Evicting = decant::Stack<decant::kv::FullVisibility, decant::kv::SnapKV>;
  Evicting stack;
  stack.budget = decant::kv::Budget::tokens(1);  // less than SnapKV protects
  runtime::Llama<Evicting, runtime::DenseCache<float>> llama(cpu, model.config, model.weights, stack);
  CHECK_THAT(error_of<ArgumentError>([&] { llama.prefill(random_prompt(100), 5); }),
             catch_compat::contains("protected"));
  CHECK_THAT(error_of<ArgumentError>([&] { llama.decode({1}); }), catch_compat::contains("a prompt first"));
}

TEST_CASE("llama: wrong calls are refused", "[llama]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  decant::Cpu cpu;
  Llama llama(cpu, model.config, model.weights, Stack{});
  const auto refused = [](auto&& call) { return error_of<ArgumentError>(call); };
  CHECK_THAT(refused([&] { llama.decode({1}); }), catch_compat::contains("a prompt first"));
  CHECK_THAT(refused([&] { llama.prefill({}, 1); }), catch_compat::contains("at least 1 token"));
  CHECK_THAT(refused([&] { llama.prefill({0, 256}, 1); }), catch_compat::contains("ids below 256, got 256"));
  CHECK_THAT(refused([&] { llama.prefill({0, -1}, 1); }), catch_compat::contains("got -1"));
  CHECK_THAT(refused([&] { llama.prefill({0, 1}, 511); }), catch_compat::contains("context of 512 tokens, got 513"));
  llama.prefill({0, 1}, 2);
  CHECK_THAT(refused([&] { llama.decode({}); }), catch_compat::contains("at least 1 token"));
  CHECK_THAT(refused([&] { llama.decode({300}); }), catch_compat::contains("got 300"));
  llama.decode({1, 2});
  CHECK_THAT(refused([&] { llama.decode({3}); }), catch_compat::contains("tokens that are free"));
  llama.prefill(random_prompt(512), 0);
  CHECK_THAT(refused([&] { llama.decode({3}); }), catch_compat::contains("context of 512 tokens in all, got 513"));
  CHECK_THAT(refused([&] { llama.evict(decant::kv::Full{}, decant::kv::Budget::keep(1)); }),
             catch_compat::contains("left for later"));
}

}  // namespace
}  // namespace runtime_test
