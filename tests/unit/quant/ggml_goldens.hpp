#pragma once
// One block each of weights that a formula gives, as ggml's encoders write it (quantize_row_*_ref, built for x86-64
// without fused multiply-adds, commit d99724f; iq4_nl: quantize_iq4_nl without an importance matrix).
#include <cmath>
#include <cstdint>
#include <vector>

namespace quant_ggml_test {

enum class Weights { ramp, constant, spike, zeros, waves };

/// The i-th of n weights.
inline float weight(Weights kind, int i, int n) {
  if (kind == Weights::ramp) return static_cast<float>(i - n / 2);
  if (kind == Weights::constant) return 0.3f;
  if (kind == Weights::spike) return i == 5 ? -3.0f : 0.0f;
  if (kind == Weights::zeros) return 0;
  return static_cast<float>((i * i * 7 + 3 * i) % 257 - 128) * static_cast<float>(1 + i / 32) / 64.0f;
}

/// `blocks` blocks of n weights from a linear congruence: of many sizes, even and uneven, every fifth full of ties.
inline std::vector<float> many_weights(int blocks, int n) {
  std::vector<float> w;
  std::uint32_t state = 1;
  for (int b = 0; b < blocks; ++b) {
    for (int i = 0; i < n; ++i) {
      state = state * 1664525u + 1013904223u;
      const int k = static_cast<int>(state >> 20) - 2048;
      const int value = b % 5 == 4 ? k / 128 : b % 3 == 2 ? k * (k < 0 ? -k : k) : k;
      w.push_back(std::ldexp(static_cast<float>(value), b % 7 * 4 - 24));
    }
  }
  return w;
}

struct Golden {
  Weights weights;
  const char* bytes;  // in hexadecimal
};

constexpr Golden q8_0[] = {
    {Weights::ramp, "083081899199a1a9b1b9c0c8d0d8e0e8f0f8000810182028303840474f575f676f77"},
    {Weights::constant, "d6187f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f"},
    {Weights::spike, "0c260000000000810000000000000000000000000000000000000000000000000000"},
    {Weights::zeros, "00000000000000000000000000000000000000000000000000000000000000000000"},
    {Weights::waves, "0824818ba3c8fc3e8eeb56d057ed914101ceaa938a8fa2c2f12e78d138ad2fc05d0a"},
};
constexpr Golden q4_0[] = {
    {Weights::ramp, "0040809191a2a2b3b3c4c4d5d5e6e6f7f7f8"},
    {Weights::constant, "cda800000000000000000000000000000000"},
    {Weights::spike, "003688888888888088888888888888888888"},
    {Weights::zeros, "008088888888888888888888888888888888"},
    {Weights::waves, "003430111215284c71b7fd55ce37b14ce895"},
};
constexpr Golden q4_1[] = {
    {Weights::ramp, "224000cc80809191a2a2b3b3c4c4d5d5e6e6f7f7"},
    {Weights::constant, "0000cd3400000000000000000000000000000000"},
    {Weights::spike, "663200c2fffffffffff0ffffffffffffffffffff"},
    {Weights::zeros, "0000000000000000000000000000000000000000"},
    {Weights::waves, "263400c020111214274b71a6fd55bd37b14cd885"},
};
constexpr Golden iq4_nl[] = {
    {Weights::ramp, "fa2f809091a1b1b2c2c3d3d4e4e5e5f6f6f7"},
    {Weights::constant, "d69800000000000000000000000000000000"},
    {Weights::spike, "cca688888888888f88888888888888888888"},
    {Weights::zeros, "000088888888888888888888888888888888"},
    {Weights::waves, "492420111214283c71b6fe44ce26b13de894"},
};
constexpr Golden iq4_nl_ref[] = {
    {Weights::ramp, "fa2f809091a1b1b2c2c3d3d4e4e5e5f6f7f7"},
    {Weights::constant, "d69800000000000000000000000000000000"},
    {Weights::spike, "0c2688888888888088888888888888888888"},
    {Weights::waves, "102420100214183d71c6fe44ce26c13de894"},
};
constexpr Golden mxfp4[] = {
    {Weights::ramp, "810e0e1d1d2d2d3c3c4c4b4b5a5a595960"},
    {Weights::constant, "7b66666666666666666666666666666666"},
    {Weights::spike, "7e00000000000f00000000000000000000"},
    {Weights::zeros, "0000000000000000000000000000000000"},
    {Weights::waves, "7ededeedebd0c49e3965bb35d93dc4501b"},
};
constexpr Golden nvfp4[] = {
    {Weights::ramp, "4b43424aefefefefefdedededfdfcfcebeae9e9d50616262637474756565767676767676"},
    {Weights::constant, "151515157777777777777777777777777777777777777777777777777777777777777777"},
    {Weights::spike, "3000000000000000000f0000000000000000000000000000000000000000000000000000"},
    {Weights::zeros, "000000000000000000000000000000000000000000000000000000000000000000000000"},
    {Weights::waves, "2b2a32326fcf6eadf0550fca7ecf5fef4edd6914fddf1666d545e656fce7c4095dfeaf6f"},
};
constexpr Golden q4_k[] = {
    {Weights::ramp,
     "32300c404f4fcfcf3f2f1f10000f000f0000111122223333444455556666777788889999aaaabbbbccccddddeeeeffff00101021"
     "213232434354546565767687879899a9aababbcbccdcddedeefeffff80808191929293a3a4a4a5b5b6b6b7c7c8c8c9d9dadadaeb"
     "ebececfdfdfefeffcacacacbcbcbcbcbdbdcdcdcdcdcdcddedededededeeeeeefefefefeffffffff"},
    {Weights::spike,
     "801a182a3f0000003f000000000000000f0f0f0f0f000f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f00000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"},
    {Weights::waves,
     "1b28a133888fd7e1898fd9df47aa6aff4101e3c5b8bcc1e70e458ee732ac28b543f2a1613315070b0f264c73cb046ed9256eb711"
     "8c088522c1704011e3d6cadfe41b428ac33d97139f2dcb7a3a0bdcbf1bfbbc9e7175799fb5fc146dd721ad29c65504d39466584c"
     "40557ba2ea127ce6448cc52e9905811ebc6b2bebcda09397acc2f92179c32c9814a14eed9c6d3e11"},
};
constexpr Golden q6_k[] = {
    {Weights::ramp,
     "00001011212131324242525363637374001010213131425252627373839494a400102131415262728393a3b4c4d4e5f500204161"
     "81a2c2e30323446485a5c5e6606e5c5a474543313f2d2b1816140200505f4e4d4c3b3a3928272615141302014b4a4a3938382726"
     "26251414130202014837373636252524241313121201010000000000000000000000000000000000000000000000000040404040"
     "4040404002010101010101010000000000000000010000000000000000000000000000008090a0b0c0d0e0f00f2031404f5f6f7f"
     "f7a7"},
    {Weights::spike,
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000002020202020002020202020202020202000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000080000000000000000000000000000000"
     "0092"},
    {Weights::waves,
     "4053b942ffff249b3614266be49080a4175dcf8e79c0347400cc41868441d72d80a00b633f0f539b5010134afead89af0ca0d4c4"
     "80397ebf8d57adf01ffd55c9cfbe9a0279aa9720a9ebfcc761e717f6ae4681b1743c87c6d1a8036a8c6b16bc1c105f9a5103316a"
     "0fa08cd428b7828943c8017637cc7481c1561e3b7b874fdb1470dc0da91a9c0dc3854b0dc0dbe2f93bd3b75b3fcf6efd4cce195b"
     "d1df08016c80e0049b2ab904c2400ec8c2bfb49d4d3511fd9935c657e475c7084e80c7fdef10e120cc2ec04051b551a67271807b"
     "9a9b"},
};

/// FNV-1a, of 64 bits, of the bytes of 300 blocks of many_weights().
constexpr std::uint64_t q8_0_hash = 0x42779b34d80b29bc;
constexpr std::uint64_t q4_0_hash = 0x0618d517b192d3d9;
constexpr std::uint64_t q4_1_hash = 0xc3d9331d9889813a;
constexpr std::uint64_t iq4_nl_hash = 0xa0cca2cdc367b9f0;
constexpr std::uint64_t iq4_nl_ref_hash = 0x48282604a3d0c9c4;
constexpr std::uint64_t mxfp4_hash = 0x2aaeb0e3f286810c;
constexpr std::uint64_t nvfp4_hash = 0x388b39c99fd9b4a1;
constexpr std::uint64_t q4_k_hash = 0x237eeb2e3e4a00dc;
constexpr std::uint64_t q6_k_hash = 0x0e61355c02f52717;

}  // namespace quant_ggml_test
