// The cache card: bytes, round trips, what is refused, and every mismatch by itself.
#include "decant/codec/cache_card.hpp"

#include <limits>

#include "catch_compat.hpp"

namespace cache_card_test {

namespace dkvc = decant::codec::dkvc;
using dkvc::CacheCard;
using dkvc::check;
using dkvc::Mismatch;
using dkvc::read_card;
using dkvc::write_card;
using Bytes = std::vector<std::byte>;

CacheCard full_card() {
  CacheCard card;
  for (std::size_t i = 0; i < 32; ++i) {
    card.model[i] = static_cast<std::byte>(i + 1);
    card.tokenizer[i] = static_cast<std::byte>(0xff - i);
  }
  card.layers = 3;
  card.query_heads = 8;
  card.kv_heads = 2;
  card.key_dim = 16;
  card.value_dim = 8;
  card.dtype = decant::DType::f16;
  card.rope.interleaved = true;
  card.rope.scaling = dkvc::RopeScaling::llama3;
  card.rope.dim = 8;
  card.rope.theta = 5e5;
  card.rope.parameters = {8.0, 1.0, 4.0, 8192.0};
  card.positions = {5, 6, 9, 1000};
  card.position_begin = 5;
  card.token_count = 4;
  card.token_ids = {100, 200, 300, 0xffffffff};
  card.token_hash[3] = std::byte{7};
  card.creator = "test";
  card.sinks = 4;
  card.hops = 2;
  card.parent = 0x0123456789abcdefu;
  card.budget = 5.5;
  return card;
}

CacheCard small_card() {
  CacheCard card;
  card.layers = 1;
  card.query_heads = 1;
  card.kv_heads = 1;
  card.key_dim = 2;
  card.value_dim = 2;
  card.token_count = 7;
  return card;
}

std::string error_of(const Bytes& bytes, const dkvc::Limits& limits = {}) {
  try {
    read_card(bytes, limits);
  } catch (const decant::FormatError& e) {
    return e.what();
  }
  return "none";
}

// Where the value of a record begins.
std::size_t value_of(const Bytes& bytes, int tag) {
  std::size_t at = 0;
  while (decant::load_le<std::uint16_t>(bytes.data() + at) != tag) {
    at += 8 + decant::load_le<std::uint32_t>(bytes.data() + at + 4);
  }
  return at + 8;
}

TEST_CASE("cache card: the bytes of a small card", "[codec][cache_card]") {
  const Bytes bytes = write_card(small_card());
  Bytes expected;
  const auto put = [&](std::initializer_list<int> values) {
    for (const int v : values) expected.push_back(static_cast<std::byte>(v));
  };
  put({1, 0, 0, 0, 32, 0, 0, 0});
  expected.resize(expected.size() + 32);
  put({2, 0, 0, 0, 32, 0, 0, 0});
  expected.resize(expected.size() + 32);
  put({3, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0});
  put({4, 0, 0, 0, 2, 0, 0, 0, 2, 0});
  put({5, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0xc3, 0x40});  // 10000.0
  put({6, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0});
  CHECK(bytes == expected);
}

TEST_CASE("cache card: what is written is read back", "[codec][cache_card]") {
  for (const CacheCard& card : {full_card(), small_card()}) {
    const Bytes bytes = write_card(card);
    CHECK(read_card(bytes) == card);
    CHECK(write_card(read_card(bytes)) == bytes);
  }
}

TEST_CASE("cache card: records of unknown tags are skipped", "[codec][cache_card]") {
  Bytes bytes = write_card(full_card());
  for (const int b : {99, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 100, 0, 0, 0, 0, 0, 0, 0}) {
    bytes.push_back(static_cast<std::byte>(b));
  }
  CHECK(read_card(bytes) == full_card());
}

TEST_CASE("cache card: every cut is an error or a shorter card", "[codec][cache_card]") {
  const Bytes bytes = write_card(full_card());
  const std::size_t needed = value_of(bytes, 8) - 8;  // all before the token ids
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    if (error_of(cut) != "none") continue;
    const bool whole_records = size >= needed && write_card(read_card(cut)) == cut;
    if (!whole_records) FAIL("cut at " << size << " was read");
  }
}

TEST_CASE("cache card: bad bytes are named", "[codec][cache_card]") {
  using catch_compat::contains;
  const Bytes good = write_card(full_card());
  const auto with = [&](int tag, std::size_t offset, std::initializer_list<int> values) {
    Bytes bytes = good;
    std::size_t at = value_of(bytes, tag) + offset;
    for (const int v : values) bytes[at++] = static_cast<std::byte>(v);
    return error_of(bytes);
  };
  const std::size_t header = static_cast<std::size_t>(-8);
  CHECK_THAT(with(2, header, {1}), contains("`tag`: expected more than 1, got 1"));
  CHECK_THAT(with(2, header + 2, {1}), contains("`record reserved`: expected 0, got 1"));
  CHECK_THAT(with(14, header + 4, {9}), contains("`record length`: expected at most 8, got 9"));
  CHECK_THAT(with(1, header, {0}), contains("`model`: expected its record, got none"));
  CHECK_THAT(with(3, 0, {0xff, 0xff}), contains("`layers`: expected at most 1024, got 65535"));
  CHECK_THAT(with(4, 0, {5}), contains("`dtype`: expected 0 to 4, got 5"));
  CHECK_THAT(with(5, 0, {2}), contains("`rope.rotated`"));
  CHECK_THAT(with(5, 1, {2}), contains("`rope.interleaved`"));
  CHECK_THAT(with(5, 2, {7}), contains("`rope.scaling`"));
  CHECK_THAT(with(5, 15, {0xff}), contains("`rope.theta`"));
  CHECK_THAT(with(5, 22, {0xf0, 0x7f}), contains("`rope.parameters`: expected finite numbers"));
  CHECK_THAT(with(11, 0, {0}), contains("`sinks`: expected not 0"));
  CHECK_THAT(with(12, 0, {0}), contains("`hops`: expected not 0"));
  CHECK_THAT(with(13, 0, {0, 0, 0, 0, 0, 0, 0, 0}), contains("`parent`: expected not 0"));
  CHECK_THAT(with(14, 7, {0xc0}), contains("`budget`"));
  dkvc::Limits limits;
  limits.max_tokens = 3;
  CHECK_THAT(error_of(good, limits), contains("`position_list`"));
  CHECK_THAT(error_of(write_card(small_card()), limits), contains("`positions`: expected at most 3, got 7"));

  Bytes both = write_card(small_card());
  for (const int b : {7, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0}) both.push_back(static_cast<std::byte>(b));
  CHECK_THAT(error_of(both), contains("`positions`: expected a range or a list, got both"));
  Bytes ids = write_card(small_card());
  for (const int b : {8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0}) ids.push_back(static_cast<std::byte>(b));
  CHECK_THAT(error_of(ids), contains("`token_ids`: expected 7, got 1"));
}

TEST_CASE("cache card: strings of 4096 bytes and no more", "[codec][cache_card]") {
  CacheCard card = small_card();
  card.creator = std::string(4096, 'x');
  Bytes bytes = write_card(card);
  CHECK(read_card(bytes) == card);
  bytes.push_back(std::byte{'x'});
  decant::store_le(bytes.data() + value_of(bytes, 10) - 4, std::uint32_t{4097});
  CHECK_THAT(error_of(bytes), catch_compat::contains("`creator`: expected 1 to 4096 bytes, got 4097"));
  card.creator += 'x';
  CHECK_THROWS_AS(write_card(card), decant::ArgumentError);
}

TEST_CASE("cache card: what could not be read back is not written", "[codec][cache_card]") {
  const auto refused = [](auto&& change) {
    CacheCard card = full_card();
    change(card);
    CHECK_THROWS_AS(write_card(card), decant::ArgumentError);
  };
  refused([](CacheCard& c) { c.token_count = 5; });
  refused([](CacheCard& c) { c.position_begin = 6; });
  refused([](CacheCard& c) { c.token_ids.pop_back(); });
  refused([](CacheCard& c) { c.rope.theta = 0.0; });
  refused([](CacheCard& c) { c.rope.parameters[0] = std::numeric_limits<double>::infinity(); });
  refused([](CacheCard& c) { c.rope.parameters.resize(4097); });
  refused([](CacheCard& c) { c.budget = -1.0; });
}

TEST_CASE("cache card: every field that must agree has its own mismatch", "[codec][cache_card]") {
  CacheCard expected = full_card();
  CHECK(check(full_card(), expected) == Mismatch::none);
  const auto mismatch = [&](auto&& change) {
    CacheCard card = full_card();
    change(card);
    return check(card, expected);
  };
  for (std::size_t i = 0; i < 32; ++i) {
    CHECK(mismatch([&](CacheCard& c) { c.model[i] ^= std::byte{0x10}; }) == Mismatch::model);
    CHECK(mismatch([&](CacheCard& c) { c.tokenizer[i] ^= std::byte{1}; }) == Mismatch::tokenizer);
  }
  CHECK(mismatch([](CacheCard& c) { c.rope.rotated = false; }) == Mismatch::rope);
  CHECK(mismatch([](CacheCard& c) { c.rope.interleaved = false; }) == Mismatch::rope);
  CHECK(mismatch([](CacheCard& c) { c.rope.scaling = dkvc::RopeScaling::yarn; }) == Mismatch::rope);
  CHECK(mismatch([](CacheCard& c) { c.rope.dim = 0; }) == Mismatch::rope);
  CHECK(mismatch([](CacheCard& c) { c.rope.theta += 1.0; }) == Mismatch::rope);
  CHECK(mismatch([](CacheCard& c) { c.rope.parameters[2] += 1.0; }) == Mismatch::rope);
  CHECK(mismatch([](CacheCard& c) { ++c.layers; }) == Mismatch::shape);
  CHECK(mismatch([](CacheCard& c) { ++c.query_heads; }) == Mismatch::shape);
  CHECK(mismatch([](CacheCard& c) { ++c.kv_heads; }) == Mismatch::shape);
  CHECK(mismatch([](CacheCard& c) { ++c.key_dim; }) == Mismatch::shape);
  CHECK(mismatch([](CacheCard& c) { ++c.value_dim; }) == Mismatch::shape);
  CHECK(mismatch([](CacheCard& c) { c.dtype = decant::DType::bf16; }) == Mismatch::shape);
  CHECK(mismatch([](CacheCard& c) { c.positions[0] = 4; }) == Mismatch::position_gap);
  CHECK(mismatch([](CacheCard& c) { c.positions[2] = 6; }) == Mismatch::position_gap);
  CHECK(mismatch([](CacheCard& c) { c.positions.clear(); }) == Mismatch::none);
  CHECK(mismatch([](CacheCard& c) { c.positions.clear(), c.position_begin = 6; }) == Mismatch::position_gap);
  CHECK(mismatch([](CacheCard& c) { c.token_count = 3; }) == Mismatch::corrupt);
  CHECK(mismatch([](CacheCard& c) { c.token_ids.pop_back(); }) == Mismatch::corrupt);
  CHECK(mismatch([](CacheCard& c) { c.positions[3] = 1u << 24; }) == Mismatch::limits);
  // What may differ.
  CHECK(mismatch([](CacheCard& c) { c.creator = "other", c.hops = 9, c.parent = 1, c.budget = 0, c.sinks = 0; }) ==
        Mismatch::none);
  CHECK(std::string(name(Mismatch::position_gap)) == "position_gap");
  CHECK(std::string(name(Mismatch::limits)) == "limits");
}

TEST_CASE("cache card: sections that are not of the card's cache", "[codec][cache_card]") {
  const CacheCard card = full_card();
  dkvc::Section s;
  s.type = dkvc::tensor_type;
  s.dtype = static_cast<std::uint16_t>(decant::DType::f16);
  s.layer = 2;
  s.kind = dkvc::Kind::key;
  s.token_count = 4;
  s.element_count = 4 * 2 * 16;
  CHECK(check(card, s) == Mismatch::none);
  const auto mismatch = [&](auto&& change) {
    dkvc::Section changed = s;
    change(changed);
    return check(card, changed);
  };
  CHECK(mismatch([](dkvc::Section& c) { c.element_count -= 16; }) == Mismatch::none);
  CHECK(mismatch([](dkvc::Section& c) { c.type = dkvc::meta_type; }) == Mismatch::none);
  CHECK(mismatch([](dkvc::Section& c) { c.kind = dkvc::Kind::value; }) == Mismatch::corrupt);
  CHECK(mismatch([](dkvc::Section& c) { c.element_count -= 1; }) == Mismatch::corrupt);
  CHECK(mismatch([](dkvc::Section& c) { c.element_count += 16; }) == Mismatch::corrupt);
  CHECK(mismatch([](dkvc::Section& c) { c.layer = 3; }) == Mismatch::corrupt);
  CHECK(mismatch([](dkvc::Section& c) { c.token_begin = 1; }) == Mismatch::corrupt);
  CHECK(mismatch([](dkvc::Section& c) { c.dtype = 2; }) == Mismatch::corrupt);
}

}  // namespace cache_card_test
