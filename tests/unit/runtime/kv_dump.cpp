// KV dumps: what is written is read back, and files that are no dumps are refused by name.
#include "kv_dump.hpp"

#include <filesystem>

#include "catch_compat.hpp"
#include "model_files.hpp"
#include "weights.hpp"

namespace runtime_test {
namespace {

using decant::FormatError;
using runtime::both_kinds;
using runtime::KVDump;
using runtime::KVShape;
using runtime::SafetensorsWriter;

/// What the reader says to a file of these tensors.
std::string verdict(const std::vector<NamedTensor>& tensors, DType dtype = DType::bf16) {
  const TemporaryFolder folder;
  write_file(folder.file("d"), safetensors(tensors, dtype));
  return error_of<FormatError>([&] { KVDump dump(folder.file("d")); });
}

NamedTensor rows(const char* name, std::vector<index_t> shape) {
  index_t size = 1;
  for (const index_t n : shape) size *= n;
  return {name, std::move(shape), std::vector<float>(static_cast<std::size_t>(size))};
}

TEST_CASE("kv dump: what SafetensorsWriter writes comes back, in each dtype", "[kv_dump]") {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    const KVShape shape = {dtype, 11, 5, 2, 3, 4};
    std::vector<std::vector<std::byte>> written;
    SafetensorsWriter writer(folder.file("d"), runtime::dump_entries(shape));
    for (index_t layer = 0; layer < shape.layers; ++layer) {
      for (const auto kind : both_kinds) {
        written.emplace_back();
        for (index_t i = 0; i < shape.elements(kind) * decant::size_of(dtype); ++i) {
          written.back().push_back(static_cast<std::byte>(i * 7 + layer * 13 + static_cast<int>(kind)));
        }
        writer.add(written.back());
      }
    }
    writer.commit();
    const KVDump dump(folder.file("d"));
    REQUIRE(dump.shape() == shape);
    CHECK(shape.bytes() == 11 * 5 * 2 * 7 * decant::size_of(dtype));
    runtime::with_dtype(dtype, [&](auto zero) {
      for (std::size_t i = 0; i < written.size(); ++i) {
        const auto got = dump.rows<decltype(zero)>(static_cast<index_t>(i / 2), both_kinds[i % 2]);
        REQUIRE(got.extent(0) * decant::size_of(dtype) == static_cast<index_t>(written[i].size()));
        CHECK(std::memcmp(got.data(), written[i].data(), written[i].size()) == 0);
      }
    });
  }
}

TEST_CASE("kv dump: a file appears when it is whole and leaves nothing otherwise", "[kv_dump]") {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder.file("d"), runtime::dump_entries({DType::bf16, 1, 5, 2, 3, 4}));
    CHECK_THROWS_AS(writer.commit(), decant::ArgumentError);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK_THROWS_AS(SafetensorsWriter(folder.file("no/d"), {}), decant::Error);
}

TEST_CASE("kv dump: files that are no dumps are refused", "[kv_dump]") {
  const NamedTensor k0 = rows("layers.0.k", {3, 2, 4}), v0 = rows("layers.0.v", {3, 2, 5});
  CHECK(verdict({k0, v0}) == "no error");
  CHECK(verdict({k0, v0, rows("layers.1.k", {3, 2, 4}), rows("layers.1.v", {3, 2, 5})}) == "no error");
  CHECK_THAT(verdict({}), catch_compat::contains("a tensor \"layers.0.k\", got no tensor"));
  CHECK_THAT(verdict({k0}), catch_compat::contains("a tensor \"layers.0.v\" among 1, got none"));
  CHECK_THAT(verdict({k0, v0, rows("layers.1.k", {3, 2, 4})}), catch_compat::contains("layers, got 3 tensors"));
  CHECK_THAT(verdict({k0, v0, rows("layers.1.k", {3, 2, 4}), rows("other", {1})}),
             catch_compat::contains("a tensor \"layers.1.v\""));
  CHECK_THAT(verdict({k0, v0, rows("layers.2.k", {3, 2, 4}), rows("layers.2.v", {3, 2, 5})}),
             catch_compat::contains("a tensor \"layers.1.k\""));
  CHECK_THAT(verdict({rows("layers.0.k", {3, 8}), v0}), catch_compat::contains("[tokens, kv_heads, dim], got [3, 8]"));
  CHECK_THAT(verdict({k0, rows("layers.0.v", {2, 2, 5})}),
             catch_compat::contains("\"layers.0.v\": expected shape [3, 2, 5], got [2, 2, 5]"));
}

TEST_CASE("kv dump: weights in FP8 are refused", "[kv_dump]") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.file("model.safetensors"), {{"model.embed_tokens.weight", DType::e4m3, {2, 2}}});
  const std::vector<std::byte> bytes(4);
  writer.add(bytes);
  writer.commit();
  runtime::Config config;
  config.vocab = config.hidden = 2;
  const runtime::Checkpoint checkpoint(folder.path());
  CHECK_THAT(error_of<FormatError>([&] { runtime::Weights weights(config, checkpoint); }),
             catch_compat::contains("expected weights in F32, F16 or BF16, got e4m3"));
}

TEST_CASE("kv dump: a card that claims more than there are numbers for is refused", "[kv_dump]") {
  runtime::dkvc::CacheCard card;
  card.layers = card.token_count = card.kv_heads = card.key_dim = 0xffffffff;
  CHECK_THROWS_AS(runtime::shape_of(card), FormatError);
}

}  // namespace
}  // namespace runtime_test
