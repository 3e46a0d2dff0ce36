// Policies and cache layouts from text, and what a wrong one is told.
#include "catch_compat.hpp"
#include "engine.hpp"
#include "../runtime/model_files.hpp"

namespace runtime_test {
namespace {

using decant::ArgumentError;
using runtime::Config;
using runtime::parse_composition;
namespace kv = decant::kv;

Config tuned() {
  Config c;
  c.layers = 8;
  c.speed = {0.75, 1, "transient"};
  return c;
}

std::string refused(const std::string& text, const Config& config = tuned()) {
  return error_of<ArgumentError>([&] { parse_composition(text, config); });
}

TEST_CASE("policies: compositions from text", "[policies]") {
  auto c = parse_composition("full", tuned());
  CHECK(c.text == "full");
  CHECK(c.stack.visibility == runtime::AnyVisibility{kv::FullVisibility{}});
  CHECK(std::holds_alternative<kv::Full>(c.stack.eviction.policy));

  c = parse_composition("visibility=speed:0.5,evict=capkv:0.25", tuned());
  CHECK(c.text == "visibility=speed:0.5 evict=capkv:0.25");
  CHECK(c.stack.visibility == runtime::AnyVisibility{kv::Speed{.depth = 0.5f}});
  CHECK(std::holds_alternative<kv::CapKV>(c.stack.eviction.policy));
  CHECK(c.stack.budget == kv::Budget::keep(0.25));

  c = parse_composition("evict=streaming:256t visibility=full", tuned());
  CHECK(c.text == "evict=streaming:256t");
  CHECK(c.stack.budget == kv::Budget::tokens(256));
  CHECK(parse_composition("", tuned()).text == "full");

  for (const auto& [name, policy] : runtime::known_evictions()) {
    if (name == "full") continue;
    CHECK(parse_composition("evict=" + name + ":1", tuned()).stack.eviction.policy.index() == policy.policy.index());
  }
}

TEST_CASE("policies: SPEED takes from the checkpoint what only its tuning decides", "[policies]") {
  Config c = tuned();
  c.speed = {0.5, 2, "keep"};
  const kv::Speed expected{.depth = 0.5f, .anchors = 2, .pivot = kv::Pivot::keep};
  CHECK(parse_composition("visibility=speed", c).stack.visibility == runtime::AnyVisibility{expected});
  CHECK(parse_composition("visibility=speed:0.5:keep", c).stack.visibility == runtime::AnyVisibility{expected});
  CHECK_THAT(refused("visibility=speed:0.5:transient", c), catch_compat::contains("tuned with, keep"));
  c.speed = {};
  CHECK(parse_composition("visibility=speed:0.25:keep", c).stack.visibility ==
        runtime::AnyVisibility{kv::Speed{.depth = 0.25f, .pivot = kv::Pivot::keep}});
  CHECK_THAT(refused("visibility=speed:0.3"), catch_compat::contains("a whole number of 8 layers"));
}

TEST_CASE("policies: attention from text", "[policies]") {
  using decant::attention::Dense;
  using decant::attention::Santa;
  using decant::attention::SantaScheme;
  using runtime::AnyAttention;
  using runtime::parse_attention;
  using runtime::SampledAttention;
  CHECK(parse_attention("dense") == AnyAttention{Dense{}});
  CHECK(parse_attention("santa:128", 7) == AnyAttention{SampledAttention{Santa{.samples = 128, .seed = 7}}});
  CHECK(parse_attention("santa:n/16") == AnyAttention{SampledAttention{Santa{}, 1.0 / 16}});
  CHECK(parse_attention("santa:n") == AnyAttention{SampledAttention{Santa{}, 1}});
  CHECK(parse_attention("santa:64n") == AnyAttention{SampledAttention{Santa{}, 64}});
  for (const SantaScheme scheme : runtime::known_schemes) {
    CHECK(parse_attention("santa:1048576," + std::string(name(scheme))) ==
          AnyAttention{SampledAttention{Santa{.samples = 1 << 20, .scheme = scheme}}});
  }

  auto c = parse_composition("attention=santa:n/16,stratified", tuned(), 9);
  CHECK(c.text == "attention=santa:n/16,stratified");
  CHECK(c.stack.attention ==
        AnyAttention{SampledAttention{Santa{.scheme = SantaScheme::stratified, .seed = 9}, 1.0 / 16}});
  c = parse_composition("attention=santa:4,flash,evict=capkv:0.25 visibility=speed:0.5", tuned());
  CHECK(c.text == "visibility=speed:0.5 evict=capkv:0.25 attention=santa:4,flash");
  CHECK(parse_composition("attention=dense evict=full", tuned()).text == "full");
}

TEST_CASE("policies: attention that is none is refused, and its option named", "[policies]") {
  for (const char* text : {"", "dens", "dense:1", "santa", "louver:8"}) {
    INFO(text);
    CHECK_THAT(refused("attention=" + std::string(text)),
               catch_compat::contains("`attention`: expected dense, or santa:SAMPLES[,SCHEME]"));
  }
  for (const char* samples : {"", "0", "-3", "1.5", "1048577", "x", "n/", "n/0", "/16", "2n/3", "n16", "nn", "-n",
                              "n/-2", "1e99n", "nan", "0x8", "n/x", "2000000n", "n/1e-9"}) {
    INFO(samples);
    CHECK_THAT(refused("attention=santa:" + std::string(samples)),
               catch_compat::contains("`attention`: expected a whole number of samples from 1 to 1048576, or one for n "
                                      "keys as n/16, n or 64n"));
  }
  CHECK_THAT(refused("attention=santa:8,sistematic"),
             catch_compat::contains("`attention`: expected one of the schemes plain, stratified, systematic, flash, "
                                    "prop, prop_exact, threshold_systematic, got \"santa:8,sistematic\""));
  CHECK(refused("attention=santa:8,plain,flash") != "no error");
  CHECK_THAT(refused("evict=capkv:0.25,flash"), catch_compat::contains("`composition`"));  // no scheme's place
}

TEST_CASE("policies: unknown names are answered with the known ones", "[policies]") {
  for (const char* text : {"evict=capvk:0.25", "evict=:0.25", "evict=", "evict=:"}) {
    INFO(text);
    const std::string said = refused(text);
    CHECK_THAT(said, catch_compat::contains("expected one of: full, streaming, h2o, snapkv, tova, knorm, keydiff, "
                                            "expected, pyramid, ada, capkv, random"));
  }
  CHECK_THAT(refused("evict=capvk:0.25"), catch_compat::contains("got \"capvk:0.25\""));
  CHECK_THAT(refused("visibility=sped:0.75"), catch_compat::contains("one of: full, speed[:DEPTH[:transient|keep]]"));
  CHECK_THAT(refused("visibility=full:1"), catch_compat::contains("one of: full, speed"));
  CHECK_THAT(refused("visibility=speed:0.75:keep:1"), catch_compat::contains("one of: full, speed"));
  CHECK_THAT(refused("visibility=speed:x"), catch_compat::contains("a share of layers"));
  CHECK_THAT(refused("visibility=speed:2"), catch_compat::contains("between 0 and 1"));
  CHECK_THAT(refused("visibility=speed:0.75:maybe"), catch_compat::contains("transient or keep"));
  CHECK_THAT(refused("capkv:0.25"),
             catch_compat::contains("parts visibility=POLICY, evict=POLICY:BUDGET, attention=POLICY and weights=NAME"));
  CHECK_THAT(refused("cache=paged"), catch_compat::contains("got \"cache=paged\""));
  CHECK_THAT(refused("evict=capkv"), catch_compat::contains("capkv:BUDGET"));
  CHECK_THAT(refused("evict=full:0.5"), catch_compat::contains("full, which has no budget"));
  CHECK_THAT(refused("evict=capkv:0.25:7"), catch_compat::contains("capkv:BUDGET"));
  for (const char* budget : {"1.5", "-0.1", "x", "0.25x", "nan", "inf", "0x1", "t", "-1t", "1.5t", "1e99t", " "}) {
    INFO(budget);
    CHECK(refused(std::string("evict=capkv:") + budget) != "no error");
  }
}

TEST_CASE("policies: cache layouts from text", "[policies]") {
  using runtime::CacheLayout;
  using runtime::parse_cache;
  CHECK(parse_cache("dense", "f32").layout == CacheLayout::dense);
  CHECK(parse_cache("ragged", "f16").dtype == DType::f16);
  CHECK(parse_cache("paged", "bf16").page_size == 16);
  CHECK(parse_cache("paged:64", "bf16").page_size == 64);
  for (const char* text :
       {"", "page", "paged:", "paged:0", "paged:-1", "paged:1.5", "paged:70000", "paged:16x", "dense:1"}) {
    INFO(text);
    CHECK_THAT(error_of<ArgumentError>([&] { parse_cache(text, "f32"); }), catch_compat::contains("paged:PAGE_SIZE"));
  }
  CHECK_THAT(error_of<ArgumentError>([&] { parse_cache("dense", "fp32"); }),
             catch_compat::contains("f32, f16 or bf16"));
}

}  // namespace
}  // namespace runtime_test
