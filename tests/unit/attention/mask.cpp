// Masks against their definitions, pair by pair.

#include "catch_compat.hpp"
#include "decant/attention/mask.hpp"

#include <vector>

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

/// What the mask allows, asked as the kernels do: inside its range.
template <class M>
bool sees(const M& mask, index_t sequence, index_t i, index_t j, index_t m, index_t n) {
  const KeyRange range = mask.range(sequence, i, m, n);
  return j >= range.first && j < range.last && mask.allowed(sequence, i, j, m, n);
}

TEST_CASE("masks: Full, Causal and Window by definition, for every pair") {
  for (index_t n = 0; n <= 7; ++n)
    for (index_t m = 0; m <= 9; ++m)
      for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < n; ++j) {
          CHECK(sees(Full{}, 0, i, j, m, n));
          CHECK(sees(Causal{}, 0, i, j, m, n) == (j <= n - m + i));
          for (index_t left = 0; left < 4; ++left) {
            // FlashInfer's wording: kv_idx + q_len + window_left >= kv_len + q_idx.
            CHECK(sees(Window{left}, 0, i, j, m, n) == (j <= n - m + i && j + m + left >= n + i));
          }
          CHECK(sees(Window{}, 0, i, j, m, n) == (j <= n - m + i));
        }
}

TEST_CASE("masks: ranges that are said to be whole are") {
  for (index_t i = 0; i < 5; ++i)
    for (index_t j = 0; j < 9; ++j) {
      const auto agrees = [&](const auto& mask) {
        const KeyRange r = mask.range(0, i, 5, 9);
        return mask.allowed(0, i, j, 5, 9) == (j >= r.first && j < r.last);
      };
      CHECK((agrees(Full{}) && agrees(Causal{}) && agrees(Window{0}) && agrees(Window{2}) && agrees(Window{})));
    }
}

TEST_CASE("masks: BitMask reads little-endian bits, row-major, each sequence from a byte of its own") {
  // Sequence 0: 2 queries x 5 keys, rows 10110 and 00101. Sequence 1: 1 query x 3 keys, row 011.
  // Bits 0-4 are row 0 (lowest first), 5-9 row 1: 0b10001101, 0b10; then a new byte: 0b110.
  const std::vector<std::uint8_t> bits{0x8d, 0x02, 0x06};
  const std::vector<index_t> offsets{0, 2, 3};
  const BitMask mask{bits, offsets};
  const char* rows[] = {"10110", "00101"};
  for (index_t i = 0; i < 2; ++i)
    for (index_t j = 0; j < 5; ++j) CHECK(mask.allowed(0, i, j, 2, 5) == (rows[i][j] == '1'));
  for (index_t j = 0; j < 3; ++j) CHECK(mask.allowed(1, 0, j, 1, 3) == (j > 0));
  CHECK_NOTHROW(validate(mask, 2, 0, 2, 5));
  CHECK_NOTHROW(validate(mask, 2, 1, 1, 3));
}

TEST_CASE("masks: a BitMask that is too small is refused by name") {
  const std::vector<std::uint8_t> bits(3);
  const std::vector<index_t> offsets{0, 2, 3}, backwards{0, 3, 2}, beyond{0, 2, 4}, few{0, 3};
  using catch_compat::contains;
  CHECK_THROWS_WITH(validate(BitMask{bits, offsets}, 2, 0, 2, 9), contains("`bits`"));
  CHECK_THROWS_WITH(validate(BitMask{bits, backwards}, 2, 1, 1, 3), contains("`offsets`"));
  CHECK_THROWS_WITH(validate(BitMask{bits, beyond}, 2, 1, 1, 3), contains("`offsets`"));
  CHECK_THROWS_WITH(validate(BitMask{bits, few}, 2, 1, 1, 3), contains("`offsets`"));
  CHECK_THROWS_WITH(validate(BitMask{bits}, 2, 0, 1, 3), contains("`offsets`"));
  CHECK_THROWS_WITH(validate(BitMask{bits}, 1, 0, 5, 5), contains("`bits`"));
  CHECK_NOTHROW(validate(BitMask{bits}, 1, 0, 4, 6));
}

}  // namespace
}  // namespace attention_test
