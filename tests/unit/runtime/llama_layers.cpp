// Llama's two doors for a cache that leaves or comes: on_layer() and adopt().
#include <decant/kv/global_top_k.hpp>
#include <decant/kv/knorm.hpp>
#include <decant/kv/snapkv.hpp>
#include <decant/stack.hpp>

#include "catch_compat.hpp"
#include "kv_rows.hpp"
#include "llama.hpp"
#include "loaded_model.hpp"

namespace runtime_test {
namespace {

using decant::ArgumentError;
using decant::bf16;
using runtime::both_kinds;
using runtime::rows_of;
using Cache = runtime::DenseCache<bf16>;
using Rows16 = std::vector<std::vector<bf16>>;

bool same(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 2 * a.size()) == 0;
}

template <class Stack>
void check_rows(const Stack& stack) {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  decant::Cpu cpu;
  runtime::Llama<Stack, Cache> llama(cpu, model.config, model.weights, stack);
  Rows16 seen;
  std::vector<index_t> layers;
  llama.on_layer([&](index_t layer) {
    layers.push_back(layer);
    for (const auto kind : both_kinds) seen.push_back(rows_of<bf16>(llama.cache(layer).view(), kind));
    // Of the caches that there are so far: no later one.
    CHECK(llama.kv_bytes() == 2 * static_cast<index_t>(seen.size() * seen[0].size()));
  });
  llama.prefill(random_prompt(150), 10);
  CHECK(layers == std::vector<index_t>{0, 1, 2, 3});
  for (std::size_t i = 0; i < seen.size(); ++i) {
    CHECK(same(seen[i], rows_of<bf16>(llama.cache(static_cast<index_t>(i / 2)).view(), both_kinds[i % 2])));
  }
}

TEST_CASE("llama: on_layer shows each layer's final rows while later ones are still to run", "[llama]") {
  check_rows(decant::Stack<>{});
  decant::Stack snapkv{decant::kv::FullVisibility{}, decant::kv::SnapKV{}};
  snapkv.budget = decant::kv::Budget::tokens(100);
  check_rows(snapkv);
}

TEST_CASE("llama: on_layer waits for an eviction that needs all layers", "[llama]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  decant::Cpu cpu;
  decant::Stack stack{decant::kv::FullVisibility{},
                      decant::kv::Eviction{decant::kv::KNorm{}, decant::kv::NoSmoothing{}, decant::kv::SinkRecent{},
                                           decant::kv::NoNormalisation{}, decant::kv::GlobalTopK{}}};
  stack.budget = decant::kv::Budget::tokens(20);
  runtime::Llama<decltype(stack), runtime::RaggedCache<float>> llama(cpu, model.config, model.weights, stack);
  std::vector<index_t> bytes;
  llama.on_layer([&](index_t) { bytes.push_back(llama.kv_bytes()); });
  llama.prefill(random_prompt(60), 10);
  CHECK(bytes == std::vector<index_t>(4, llama.kv_bytes()));
  CHECK(llama.kv_bytes() == 20 * 4 * 2 * 8 * 2 * 4);
}

TEST_CASE("llama: decoding goes on from adopted caches as from its own", "[llama]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  decant::Cpu cpu;
  using Llama = runtime::Llama<decant::Stack<>, Cache>;
  Llama one(cpu, model.config, model.weights, {}), other(cpu, model.config, model.weights, {});
  one.prefill(random_prompt(60), 4);
  std::vector<Cache> caches;
  for (index_t l = 0; l < 4; ++l) caches.push_back(one.cache(l));
  other.adopt(60, caches);
  CHECK(other.length() == 60);
  for (const std::int32_t token : {7, 8, 9}) CHECK(copy(other.decode({token})) == copy(one.decode({token})));
  CHECK(other.length() == 63);

  CHECK_THROWS_AS(other.adopt(0, caches), ArgumentError);
  CHECK_THROWS_AS(other.adopt(513, caches), ArgumentError);
  caches.pop_back();
  CHECK_THROWS_AS(other.adopt(60, caches), ArgumentError);
}

}  // namespace
}  // namespace runtime_test
