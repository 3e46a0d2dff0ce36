// Evicts from KV buffers that the program already owns: CapKV chooses which rows of a layer stay, compact moves them.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <decant/decant.hpp>

int main() {
  using namespace decant;
  constexpr index_t kv_heads = 2, query_heads = 4, tokens = 512, dim = 64, budget = 128;

  // What an engine has after a prompt's prefill: keys and values [head, token, dim], and the queries before RoPE.
  std::vector<bf16> keys(kv_heads * tokens * dim), values(keys.size());
  std::vector<float> queries(query_heads * tokens * dim);
  const Philox random{7};
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    keys[i] = bf16(random.uniform(i, 0) - 0.5f);
    values[i] = bf16(random.uniform(i, 1) - 0.5f);
  }
  for (std::uint32_t i = 0; i < queries.size(); ++i) queries[i] = random.uniform(i, 2) - 0.5f;

  std::int32_t length = tokens;
  const kv::DenseKV<bf16> cache{
      {keys.data(), 1, kv_heads, tokens, dim}, {values.data(), 1, kv_heads, tokens, dim}, {&length, 1}};
  kv::LayerView layer{cache};
  layer.queries_pre_rope = {queries.data(), query_heads, tokens, dim};

  Cpu cpu;
  kv::Kept kept = select(cpu, kv::CapKV{}, layer, kv::Budget::tokens(budget));
  compact(cpu, cache, kept);

  std::printf("kept %d of %d tokens; head 0 starts with", static_cast<int>(length), static_cast<int>(tokens));
  for (index_t i = 0; i < 6; ++i) std::printf(" %d", static_cast<int>(kept.token(0, i)));
  std::printf("\n");
  return length == budget && kept.token(0, 3) == 3 ? 0 : 1;  // CapKV protects the first four
}
