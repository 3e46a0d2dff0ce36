// config.json: what is read, in the old and the new spelling, and what is refused.
#include "config.hpp"

#include "catch_compat.hpp"
#include "model_files.hpp"
#include "tokenizer.hpp"

namespace runtime_test {
namespace {

using decant::FormatError;
using runtime::Config;

Config read(const TemporaryFolder& folder, const Json& json) {
  write_file(folder.file("config.json"), json.dump());
  return runtime::read_config(folder.file("config.json"));
}

TEST_CASE("config: sizes, defaults and both places of the RoPE base", "[config]") {
  const TemporaryFolder folder;
  Json json = config_of({});
  Config c = read(folder, json);
  CHECK(c.hidden == 32);
  CHECK(c.ffn == 48);
  CHECK(c.layers == 4);
  CHECK(c.heads == 4);
  CHECK(c.kv_heads == 2);
  CHECK(c.head_dim == 8);
  CHECK(c.context == 512);
  CHECK(c.tied);
  CHECK(c.norm_eps == 1e-5f);
  CHECK(c.rope_theta == 10000.0);
  CHECK(c.speed.pivot.empty());

  json.erase("head_dim");
  json.erase("num_key_value_heads");
  json.erase("rope_theta");
  json.erase("tie_word_embeddings");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  json["rope_scaling"] = nullptr;
  json["bos_token_id"] = nullptr;
  c = read(folder, json);
  CHECK(c.head_dim == 8);
  CHECK(c.kv_heads == 4);
  CHECK(c.rope_theta == 5e5);
  CHECK_FALSE(c.tied);
  CHECK(c.bos == 0);
}

TEST_CASE("config: the block about SPEED", "[config]") {
  const TemporaryFolder folder;
  Json json = config_of({});
  json["decant"] = {{"speed_depth", 0.75}, {"speed_anchors", 2}, {"speed_pivot", "keep"}};
  const Config c = read(folder, json);
  CHECK(c.speed.depth == 0.75);
  CHECK(c.speed.anchors == 2);
  CHECK(c.speed.pivot == "keep");
  json["decant"]["speed_pivot"] = "both";
  CHECK_THAT(error_of<FormatError>([&] { read(folder, json); }),
             catch_compat::contains("\"speed_pivot\": expected \"transient\" or \"keep\", got \"both\""));
  json["decant"] = {{"speed_depth", 1.5}, {"speed_pivot", "keep"}};
  CHECK_THAT(error_of<FormatError>([&] { read(folder, json); }), catch_compat::contains("expected at most 1"));
}

TEST_CASE("config: Llama 3's frequencies", "[config]") {
  // Llama 3.1: high frequencies stay, low ones are divided by 8, and between them they blend without a step.
  const TemporaryFolder folder;
  Json json = config_of({});
  json["head_dim"] = 128;
  json["rope_theta"] = 500000.0;
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  const Config c = read(folder, json);
  REQUIRE(c.rope_frequencies.size() == 64);
  for (std::size_t f = 0; f < 64; ++f) {
    const double plain = std::pow(500000.0, -static_cast<double>(f) / 64);
    const double length = 2 * 3.14159265358979323846 / plain;
    if (length < 8192.0 / 4) {
      CHECK(c.rope_frequencies[f] == Approx(plain).epsilon(1e-12));
    } else if (length > 8192.0) {
      CHECK(c.rope_frequencies[f] == Approx(plain / 8).epsilon(1e-12));
    } else {
      const double smooth = (8192.0 / length - 1) / (4 - 1);
      CHECK(c.rope_frequencies[f] == Approx((1 - smooth) * plain / 8 + smooth * plain).epsilon(1e-12));
    }
  }
  CHECK(c.rope().frequency(63, 128) == c.rope_frequencies[63]);
}

TEST_CASE("config: what cannot be run is refused by name", "[config]") {
  const TemporaryFolder folder;
  struct Case {
    const char* name;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"model_type", "mamba", "\"model_type\": expected \"llama\", got \"mamba\""},
      {"model_type", nullptr, "expected a string, got null"},
      {"attention_bias", true, "\"attention_bias\": expected false, got true"},
      {"mlp_bias", 1, "expected true or false, got 1"},
      {"hidden_act", "gelu", "expected \"silu\", got \"gelu\""},
      {"vocab_size", 0, "\"vocab_size\": expected a whole number from 1"},
      {"vocab_size", "256", "got \"256\""},
      {"hidden_size", -3, "got -3"},
      {"hidden_size", 3.5, "got 3.5"},
      {"hidden_size", 1e18, "got 1e+18"},
      {"hidden_size", 18446744073709551615u, "got 18446744073709551615"},
      {"num_hidden_layers", 1000000, "from 1 to 4096"},
      {"num_key_value_heads", 3, "a divisor of num_attention_heads = 4, got 3"},
      {"num_key_value_heads", 5, "from 1 to 4, got 5"},
      {"head_dim", 7, "an even number of at least 2, got 7"},
      {"rms_norm_eps", 0, "a number above 0, got 0"},
      {"rope_theta", -1, "a number above 0, got -1"},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}, "\"default\" or \"llama3\", got \"yarn\""},
      {"rope_scaling", {{"type", "linear"}}, "\"type\": expected \"default\" or \"llama3\", got \"linear\""},
      {"rope_scaling", {{"rope_type", "llama3"}}, "\"factor\": expected a number above 0, got nothing"},
      {"rope_scaling", 8, "expected an object, got 8"},
      {"bos_token_id", 256, "from 0 to 255, got 256"},
      {"tie_word_embeddings", "yes", "expected true or false"},
  };
  for (const Case& c : cases) {
    Json json = config_of({});
    json[c.name] = c.value;
    INFO(c.name << " = " << c.value.dump());
    const std::string said = error_of<FormatError>([&] { read(folder, json); });
    CHECK_THAT(said, catch_compat::contains(c.message));
    CHECK_THAT(said, catch_compat::contains("config.json"));
  }
  for (const char* name : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                           "num_attention_heads", "rms_norm_eps"}) {
    Json json = config_of({});
    json.erase(name);
    INFO(name);
    CHECK_THAT(error_of<FormatError>([&] { read(folder, json); }), catch_compat::contains("got nothing"));
  }
  write_file(folder.file("config.json"), "{\"model_type\": \"llama\"");
  CHECK_THAT(error_of<FormatError>([&] { runtime::read_config(folder.file("config.json")); }),
             catch_compat::contains("config.json: expected JSON"));
  CHECK_THAT(error_of<FormatError>([&] { runtime::read_config(folder.file("none.json")); }),
             catch_compat::contains("none.json: expected a readable file"));
}

TEST_CASE("tokenizer: bytes, the beginning of the sequence, and text that is safe to print", "[tokenizer]") {
  Config c;
  c.vocab = 256;
  CHECK(runtime::prompt_tokens(c, std::string("a\xff\0", 3)) == runtime::Tokens{0, 97, 255, 0});
  CHECK(runtime::tokens_to_bytes({97, 255, 0}) == std::string("a\xff\0", 3));
  CHECK(runtime::escaped(std::string("a\n\x1b[2J\xc3\xa9\x7f\t\0", 11)) == "a\n\\x1b[2J\\xc3\\xa9\\x7f\\x09\\x00");
  c.vocab = 32000;
  CHECK_THAT(error_of<decant::ArgumentError>([&] { runtime::require_byte_vocabulary(c); }),
             catch_compat::contains("got 32000"));
}

}  // namespace
}  // namespace runtime_test
