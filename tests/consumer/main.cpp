// What a consumer's first program does: takes decant by its one header, hands it tensors of its own, and checks what
// comes back.
#include <decant/decant.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr int tokens = 3, dim = 2;
  std::vector<float> query{0, 0}, out(dim), lse(1);
  std::vector<float> keys{1, 0, 0, 1, 1, 1}, values{3, 0, 0, 3, 3, 3};
  std::vector<std::int32_t> lengths{tokens};

  // Scores are all 0, so the answer is the mean of the values, and the log-sum-exp is log(3).
  const decant::kv::DenseKV<float> cache{.keys = {keys.data(), 1, 1, tokens, dim},
                                         .values = {values.data(), 1, 1, tokens, dim},
                                         .lengths = {lengths.data(), 1}};
  decant::Cpu cpu;
  attend(cpu, decant::attention::Dense{}, decant::View{query.data(), 1, 1, dim}, cache,
         decant::View{out.data(), 1, 1, dim}, decant::View{lse.data(), 1, 1});

  std::printf("decant %d.%d.%d: attends to (%g, %g)\n", DECANT_VERSION_MAJOR, DECANT_VERSION_MINOR, DECANT_VERSION_PATCH,
              static_cast<double>(out[0]), static_cast<double>(out[1]));
  const auto near = [](float a, float b) { return std::fabs(a - b) < 1e-6f; };
  return near(out[0], 2) && near(out[1], 2) && near(lse[0], std::log(3.0f)) ? 0 : 1;
}
