// A scorer of the user's own, in the user's own namespace, joins the pipeline: one function, found by its argument.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <decant/decant.hpp>

namespace mine {

// Keeps what the engine has marked as important, the later the better among equals.
struct Marked {
  const float* importance;  // [tokens]
};

template <class Layer>
void score(decant::Cpu&, const Marked& m, const Layer& layer, decant::View<float, 2> scores) {
  for (decant::index_t h = 0; h < layer.kv_heads(); ++h) {
    for (decant::index_t t = 0; t < layer.length(h); ++t) {
      scores(h, t) = m.importance[t] + 1e-6f * static_cast<float>(t);
    }
  }
}

}  // namespace mine

int main() {
  namespace kv = decant::kv;
  std::vector<float> rows(2 * 16 * 8, 1.0f), importance(16, 0.0f);
  importance[5] = importance[9] = 1.0f;
  std::int32_t length = 16;
  const kv::DenseKV<float> cache{{rows.data(), 1, 2, 16, 8}, {rows.data(), 1, 2, 16, 8}, {&length, 1}};

  decant::Cpu cpu;
  const mine::Marked marked{importance.data()};
  // By itself, and with stages of the library around it: two sinks and the last three tokens are kept whatever happens.
  const kv::Kept alone = select(cpu, marked, kv::LayerView{cache}, kv::Budget::tokens(3));
  const kv::Eviction guarded{marked, kv::NoSmoothing{}, kv::SinkRecent{.sinks = 2, .recent = 3}};
  const kv::Kept with = select(cpu, guarded, kv::LayerView{cache}, kv::Budget::tokens(8));

  for (const kv::Kept* kept : {&alone, &with}) {
    for (decant::index_t i = 0; i < kept->count(0); ++i) std::printf("%d ", static_cast<int>(kept->token(0, i)));
    std::printf("\n");
  }
  return alone.token(0, 0) == 5 && with.token(0, 2) == 5 ? 0 : 1;
}
