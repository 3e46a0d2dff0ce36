// Draft trees on the engine: every node sees its ancestors, lower layers need not run twice, and what is kept is as if
// it had been decoded.
#include <decant/kv/snapkv.hpp>
#include <decant/stack.hpp>

#include "catch_compat.hpp"
#include "llama.hpp"
#include "loaded_model.hpp"

namespace runtime_test {
namespace {

using decant::ArgumentError;
using decant::View;
using runtime::Logits;
using runtime::Tokens;
using Stack = decant::Stack<>;

/// Node i's token, and its parent; two levels are one call, so that extend() meets parents of both kinds.
struct Draft {
  Tokens tokens = {11, 12, 13, 14, 15, 16, 17, 18};
  std::vector<std::int32_t> parents = {-1, 0, 0, 1, 1, 2, 3, 5};

  Tokens path_to(std::int32_t node) const {
    Tokens path;
    for (; node >= 0; node = parents[static_cast<std::size_t>(node)])
      path.insert(path.begin(), tokens[static_cast<std::size_t>(node)]);
    return path;
  }
};

template <class L>
std::vector<float> run(L& llama, const Draft& d, index_t layers) {
  const auto part = [&](std::ptrdiff_t first, std::ptrdiff_t last) {
    llama.extend(Tokens(d.tokens.begin() + first, d.tokens.begin() + last),
                 std::vector<std::int32_t>(d.parents.begin() + first, d.parents.begin() + last), layers);
  };
  part(0, 1);
  part(1, 3);
  part(3, 8);
  return copy(llama.finish());
}

template <class Cache>
void trees_are_paths(const char* name) {
  INFO(name);
  const TemporaryFolder folder;
  const Shape shape;
  write_model(folder, shape);
  const Loaded model(folder);
  decant::Cpu cpu;
  runtime::Llama<Stack, Cache> llama(cpu, model.config, model.weights, Stack{}, {4});
  const Tokens prompt = random_prompt(20);
  const Draft d;
  const Tokens next = {90, 91};
  for (const index_t layers : {index_t{0}, index_t{1}, shape.layers}) {
    INFO(layers << " layers first");
    llama.prefill(prompt, 20);
    const std::vector<float> logits = run(llama, d, layers);
    for (std::int32_t node = 0; node < 8; ++node) {
      INFO("node " << node);
      Tokens tokens = prompt;
      for (const auto t : d.path_to(node)) tokens.push_back(t);
      const Row expected = NaiveLlama(shape).logits(tokens).back();
      CHECK(distance(View<const float, 1>(logits.data() + node * shape.vocab, shape.vocab), expected) < 2e-5);
    }
    // Nodes 0, 1, 3 and 6 of 8 stay: their rows, and what is decoded behind them.
    llama.keep({0, 1, 3, 6});
    CHECK(llama.length() == 24);
    CHECK(llama.kv_bytes() == 24 * shape.layers * shape.kv_heads * shape.head_dim * 2 *
                                  static_cast<index_t>(sizeof(typename decltype(llama.cache(0).view())::value_type)));
    Tokens tokens = prompt;
    for (const auto t : d.path_to(6)) tokens.push_back(t);
    for (const auto t : next) tokens.push_back(t);
    CHECK(distance(llama.decode(next)[0], NaiveLlama(shape).logits(tokens).back()) < 2e-5);
    // Nothing stays, of a finished draft and of one that is not.
    const index_t before = llama.kv_bytes();
    run(llama, d, layers);
    llama.keep({});
    llama.extend({5, 6}, {-1, 0}, layers);
    llama.keep({});
    CHECK(llama.kv_bytes() == before);
    CHECK(llama.length() == 26);
  }
}

TEST_CASE("llama: nodes of a draft tree are decoded paths, in every cache", "[llama][speculative]") {
  trees_are_paths<runtime::DenseCache<float>>("dense");
  trees_are_paths<runtime::PagedCache<float>>("paged");
  trees_are_paths<runtime::RaggedCache<float>>("ragged");
}

TEST_CASE("llama: a draft tree of more than 64 nodes", "[llama][speculative]") {
  const TemporaryFolder folder;
  const Shape shape;
  write_model(folder, shape);
  const Loaded model(folder);
  decant::Cpu cpu;
  runtime::Llama<Stack, runtime::RaggedCache<float>> llama(cpu, model.config, model.weights, Stack{});
  const Tokens prompt = random_prompt(10);
  llama.prefill(prompt, 100);
  // A chain of 70 and a leaf below node 2.
  Tokens tokens = random_prompt(71, 256, 8);
  std::vector<std::int32_t> parents;
  for (std::int32_t i = 0; i < 70; ++i) parents.push_back(i - 1);
  parents.push_back(2);
  llama.extend(tokens, parents, 0);
  const std::vector<float> logits = copy(llama.finish());
  Tokens chain = prompt;
  chain.insert(chain.end(), tokens.begin(), tokens.begin() + 70);
  Tokens leaf(chain.begin(), chain.begin() + 13);
  leaf.push_back(tokens[70]);
  const auto row = [&](index_t node) { return View<const float, 1>(logits.data() + node * shape.vocab, shape.vocab); };
  CHECK(distance(row(69), NaiveLlama(shape).logits(chain).back()) < 2e-5);
  CHECK(distance(row(70), NaiveLlama(shape).logits(leaf).back()) < 2e-5);
}

template <class Cache>
void masks_come_and_go(const char* name) {
  INFO(name);
  const TemporaryFolder folder;
  const Shape shape;
  write_model(folder, shape);
  const Loaded model(folder);
  decant::Cpu cpu;
  runtime::Llama<Stack, Cache> llama(cpu, model.config, model.weights, Stack{}, {4});
  const Tokens masked = {13, 14, 15};
  std::vector<float> rows(3 * static_cast<std::size_t>(shape.hidden));
  const View<float, 2> masks(rows.data(), 3, shape.hidden);
  runtime::embed(cpu, model.weights.embedding, masked, masks);
  llama.prefill(random_prompt(20), 20);
  const index_t before = llama.kv_bytes();
  // Masks that are embeddings of tokens have the states of these tokens.
  const std::vector<float> expected = copy(llama.extend({11, 12, 13, 14, 15}, {-1, 0, 1, 2, 3}, 2));
  llama.keep({});
  CHECK(llama.kv_bytes() == before);
  CHECK(copy(llama.extend({11, 12}, {-1, 0}, 2, masks)) == expected);
  // What follows is as if they had not been, and they may come again.
  CHECK(llama.draft_nodes() == 2);
  const index_t row = 2 * shape.kv_heads * shape.head_dim * static_cast<index_t>(sizeof(float));
  CHECK(llama.kv_bytes() == before + 2 * 2 * row);  // two nodes in two layers
  CHECK(copy(llama.extend({13}, {1}, 2, masks.slice(0, 1, 2))) ==
        std::vector<float>(expected.begin() + 2 * shape.hidden, expected.end()));
  llama.extend({21}, {0}, 2);
  const std::vector<float> got = copy(llama.finish());
  llama.keep({0, 1});
  CHECK(llama.kv_bytes() == before + 2 * shape.layers * row);
  const std::vector<float> next = copy(llama.decode({90}));
  llama.prefill(random_prompt(20), 20);
  llama.extend({11, 12, 13, 21}, {-1, 0, 1, 0}, 2);
  CHECK(got == copy(llama.finish()));
  llama.keep({0, 1});
  CHECK(next == copy(llama.decode({90})));
}

TEST_CASE("llama: masks in a draft are run and leave nothing, in every cache", "[llama][speculative]") {
  masks_come_and_go<runtime::DenseCache<float>>("dense");
  masks_come_and_go<runtime::PagedCache<float>>("paged");
  masks_come_and_go<runtime::RaggedCache<float>>("ragged");
}

TEST_CASE("llama: a draft behind an evicted prompt is what is decoded there", "[llama][speculative]") {
  const TemporaryFolder folder;
  const Shape shape;
  write_model(folder, shape);
  const Loaded model(folder);
  decant::Cpu cpu;
  decant::Stack stack{decant::kv::FullVisibility{}, decant::kv::SnapKV{}};
  stack.budget = decant::kv::Budget::keep(0.7);
  runtime::Llama<decltype(stack), runtime::RaggedCache<float>> llama(cpu, model.config, model.weights, stack);
  const Draft d;
  const Tokens prompt = random_prompt(100);
  for (const std::int32_t node : {6, 7}) {
    llama.prefill(prompt, 20);
    const std::vector<float> expected = copy(llama.decode(d.path_to(node)));
    llama.prefill(prompt, 20);
    const std::vector<float> logits = run(llama, d, 1);
    const Row row(expected.begin(), expected.end());
    CHECK(distance(View<const float, 1>(logits.data() + node * shape.vocab, shape.vocab), row) < 2e-5);
  }
}

TEST_CASE("llama: calls out of order in a draft are refused and change nothing", "[llama][speculative]") {
  const TemporaryFolder folder;
  write_model(folder, {});
  const Loaded model(folder);
  decant::Cpu cpu;
  runtime::Llama<Stack, runtime::DenseCache<float>> llama(cpu, model.config, model.weights, Stack{});
  const auto refused = [&](auto&& call) { CHECK(error_of<ArgumentError>(call) != "no error"); };
  refused([&] { llama.extend({1}, {-1}, 0); });  // no prompt
  llama.prefill(random_prompt(10), 10);
  refused([&] { llama.finish(); });
  refused([&] { llama.extend({}, {}, 0); });
  refused([&] { llama.extend({1}, {0}, 0); });
  refused([&] { llama.extend({1, 2}, {-1, -1}, 0); });
  refused([&] { llama.extend({1, 2}, {-1, 1}, 0); });
  refused([&] { llama.extend({1, 2}, {-1}, 0); });
  refused([&] { llama.extend({1}, {-1}, 5); });
  refused([&] { llama.extend({-1}, {-1}, 0); });
  const std::vector<float> narrow(31);
  refused([&] { llama.extend({1}, {-1}, 1, View<const float, 2>(narrow.data(), 1, 31)); });
  llama.extend({1, 2}, {-1, 0}, 1);
  refused([&] { llama.extend({3}, {1}, 2); });  // another number of layers
  refused([&] { llama.decode({3}); });
  refused([&] { llama.keep({0}); });  // not finished
  llama.finish();
  refused([&] { llama.extend({3}, {1}, 1); });
  refused([&] { llama.finish(); });
  refused([&] { llama.keep({1}); });
  refused([&] { llama.keep({0, 2}); });
  llama.keep({0, 1});
  CHECK(llama.length() == 12);
  llama.decode({3});
}

}  // namespace
}  // namespace runtime_test
