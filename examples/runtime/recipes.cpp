#include "recipes.hpp"

#include <utility>

#include <decant/quant/aaac.hpp>
#include <decant/quant/awq.hpp>
#include <decant/quant/codebook.hpp>
#include <decant/quant/fp4.hpp>
#include <decant/quant/fp8.hpp>
#include <decant/quant/ggml_blocks.hpp>
#include <decant/quant/ggml_k_blocks.hpp>
#include <decant/quant/gptq.hpp>
#include <decant/quant/if4.hpp>
#include <decant/quant/int_group.hpp>
#include <decant/quant/nf4.hpp>
#include <decant/quant/rtn.hpp>
#if RUNTIME_EIGEN
#include <decant/quant/osaq.hpp>
#endif

#include "any_policy.hpp"
#include "packed_formats.hpp"

namespace runtime {

namespace quant = decant::quant;

namespace {

/// Importance is what any fit that can weigh errors gets, whether it needs it or not.
template <class Q>
Recipe recipe(std::string name, Q q, bool weighs_errors = false) {
  quant::Needs wanted = needs(q);
  wanted.importance |= weighs_errors;
  return {std::move(name), wanted,
          [q](decant::Cpu& cpu, View<const float, 2> w, const quant::Calibration& calibration) {
            using F = typename Q::Format;
            const F format = q.format();
            const index_t rows = w.extent(0);
            const index_t cols = w.extent(1);
            validate(q, cols);
            const auto bytes = std::make_shared<std::vector<std::byte>>(
                static_cast<std::size_t>(quant::packed_bytes(format, rows, cols)));
            const quant::Packed<F, std::byte> packed(format, rows, cols, View<std::byte, 1>(*bytes));
            quantize(cpu, q, w, calibration, packed);
            return hold(quant::Packed<F>(packed), bytes);
          }};
}

template <int Bits>
Recipe rtn() {
  return recipe("rtn" + std::to_string(Bits), quant::Rtn{quant::Int<Bits>{}});
}
template <int Bits>
Recipe gptq() {
  return recipe("gptq" + std::to_string(Bits), quant::Gptq<quant::Int<Bits>>{});
}

}  // namespace

const std::vector<Recipe>& known_recipes() {
  static const std::vector<Recipe> known = {
      rtn<2>(),
      rtn<3>(),
      rtn<4>(),
      rtn<8>(),
      recipe("nf4", quant::Rtn{quant::Nf4{}}),
      recipe("fp8", quant::Rtn{quant::Fp8<decant::fp8_e4m3>{}}),
      recipe("mxfp4", quant::Rtn{quant::MxFp4{}}),
      recipe("nvfp4", quant::Rtn{quant::NvFp4{}}),
      recipe("if4", quant::Rtn{quant::If4{}}, true),
      recipe("q4_0", quant::Rtn{quant::ggml::Q4_0{}}),
      recipe("q4_1", quant::Rtn{quant::ggml::Q4_1{}}),
      recipe("q8_0", quant::Rtn{quant::ggml::Q8_0{}}),
      recipe("iq4_nl", quant::Rtn{quant::ggml::IQ4_NL{}}),
      recipe("q4_k", quant::Rtn{quant::ggml::Q4_K{}}),
      recipe("q6_k", quant::Rtn{quant::ggml::Q6_K{}}),
      recipe("awq4", quant::AwqScale<quant::Rtn<quant::Int<4>>>{}),
      gptq<2>(),
      gptq<3>(),
      gptq<4>(),
      gptq<5>(),
      gptq<6>(),
      gptq<7>(),
      gptq<8>(),
#if RUNTIME_EIGEN
      recipe("osaq+gptq2", quant::Osaq<quant::Gptq<quant::Int<2>>>{}),
      recipe("osaq+gptq3", quant::Osaq<quant::Gptq<quant::Int<3>>>{}),
#endif
      recipe("aaac4", quant::Aaac<>{}, true),
      recipe("aaac4-nvfp4", quant::Aaac<decant::fp8_e4m3>{}, true),
      recipe("awq+aaac4", quant::AwqScale<quant::Aaac<>>{}, true),
      recipe("gptq+aaac4", quant::Gptq<quant::Aaac<>>{}, true),
  };
  return known;
}

std::string recipe_names() {
  std::string names;
  for (const Recipe& r : known_recipes()) names += (names.empty() ? "" : ", ") + r.name;
  return names;
}

const Recipe& find_recipe(const std::string& name) {
  for (const Recipe& r : known_recipes())
    if (r.name == name) return r;
  detail::refuse("weights", "one of: " + recipe_names(), name);
}

}  // namespace runtime
