// Every pattern of fp8, wherever it stands in a row of keys or of values, is to the kernels the float that dtype.hpp
// makes of it.

#include <cstring>
#include <vector>

#include "catch_compat.hpp"
#include "decant/attention/detail/dense_kernels.hpp"
#include "sanitizers.hpp"

using namespace decant;
using namespace decant::attention::detail;

namespace {

bool same(float a, float b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0;
}

/// Element d of a row has pattern (first + 5 d), so in 256 rows each place has all of them. How many come out wrong.
template <class T>
index_t wrong(Isa isa, index_t dim) {
  const DenseKernels<T>& kernels = dense_kernels<T>(isa);
  const std::size_t width = static_cast<std::size_t>((dim + 15) / 16 * 16);
  std::vector<T> row(static_cast<std::size_t>(dim));
  std::vector<float> q(width), o(width), s(dense_block), p(dense_block), widened(width);
  p[0] = 1;
  const float alpha = 1;
  const T* const key = row.data();
  index_t count = 0;
  for (unsigned pattern = 0; pattern < 256; ++pattern) {
    for (std::size_t d = 0; d < row.size(); ++d)
      row[d] = T::from_bits(static_cast<std::uint8_t>(pattern + 5 * d));
    for (auto& x : o) x = -0.0f;
    kernels.values(p.data(), &alpha, 1, &key, 1, dim, o.data(), static_cast<index_t>(width), {});
    kernels.widen(&key, 1, dim, widened.data(), static_cast<index_t>(width));
    for (std::size_t d = 0; d < row.size(); ++d) {
      const float expected = static_cast<float>(row[d]);
      count += !same(o[d], expected) || !same(widened[d], expected);
    }
    if (under_asan && pattern % 16 != 7) continue;  // what is read is the same for all
    // One pattern at a place, zeros elsewhere: the product with 1 is its value (the sign of a zero is lost).
    for (std::size_t d = 0; d < row.size(); ++d) {
      for (auto& x : row) x = T::from_bits(0);
      row[d] = T::from_bits(static_cast<std::uint8_t>(pattern));
      for (std::size_t i = 0; i < width; ++i) q[i] = i < row.size() ? 1.0f : 0.0f;
      kernels.arrange(q.data(), static_cast<index_t>(width), 1, dim);
      kernels.scores(q.data(), static_cast<index_t>(width), 1, &key, 1, dim, s.data(), {});
      count += !same(s[0] + 0.0f, static_cast<float>(row[d]) + 0.0f);
    }
  }
  return count;
}

}  // namespace

TEST_CASE("dense kernels read every pattern of fp8 at every place", "[attention][dense]") {
  for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) {
    for (const index_t dim : {1, 8, 16, 20, 47, 64, 96, 128, 200}) {
      INFO(name(static_cast<Isa>(isa)) << " " << dim);
      CHECK(wrong<fp8_e4m3>(static_cast<Isa>(isa), dim) == 0);
      CHECK(wrong<fp8_e5m2>(static_cast<Isa>(isa), dim) == 0);
    }
  }
}
