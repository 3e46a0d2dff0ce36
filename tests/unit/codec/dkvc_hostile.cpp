// DKVC files from people who mean harm: cuts, flips, numbers that overflow, sections where none may be; and what a
// reader allocates for them.
#include "dkvc_data.hpp"
#include "dkvc_mutate.hpp"
#include "sanitizers.hpp"

namespace dkvc_test {
namespace {

using catch_compat::contains;

/// The file with one field of an entry changed, and checksums that fit.
Bytes with_entry(Bytes file, std::size_t entry, std::size_t field, std::size_t size, std::uint64_t value) {
  for (std::size_t i = 0; i < size; ++i) {
    file[64 + 64 * entry + field + i] = static_cast<std::byte>(value >> (8 * i));
  }
  repair(file.data(), static_cast<index_t>(file.size()));
  return file;
}

Bytes with_prologue(Bytes file, std::size_t field, std::size_t size, std::uint64_t value) {
  for (std::size_t i = 0; i < size; ++i) file[field + i] = static_cast<std::byte>(value >> (8 * i));
  repair(file.data(), static_cast<index_t>(file.size()));
  return file;
}

TEST_CASE("dkvc: repairing a whole file changes nothing", "[codec][dkvc][hostile]") {
  for (const Bytes& file : {plain_file(), coded_file(), plain_file({Check::xxh3}), coded_file({Check::none})}) {
    Bytes copy = file;
    repair(copy.data(), static_cast<index_t>(copy.size()));
    CHECK(copy == file);
    Cpu cpu;
    const Outcome outcome = read_everything(cpu, file, {});
    CHECK(outcome.accepted);
    CHECK(outcome.fault == "");
  }
  const Bytes coded = coded_file();
  const Reader reader(coded);
  for (index_t i = 0; i < reader.size(); ++i) CHECK(reader.section(i).codec != decant::codec::CodecId::stored);
}

TEST_CASE("dkvc: cut anywhere, a file is an error", "[codec][dkvc][hostile]") {
  for (const Bytes& file : {plain_file(), coded_file()}) {
    for (std::size_t size = 0; size < file.size(); ++size) {
      Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));  // exactly: ASan sees reads past it
      if (error_of(cut) == "none") FAIL("cut at " << size);
      // With all that can fit made to fit.
      if (size >= 80) {
        decant::store_le(cut.data() + 16, static_cast<std::uint64_t>(size));
        std::copy(file.end() - 16, file.end(), cut.end() - 16);
        repair(cut.data(), static_cast<index_t>(size));
        if (error_of(cut) == "none") FAIL("cut at " << size << " and repaired");
      }
    }
  }
}

TEST_CASE("dkvc: every flipped bit is found", "[codec][dkvc][hostile]") {
  for (const Bytes& file : {plain_file(), coded_file(), plain_file({Check::xxh3})}) {
    Bytes flipped = file;
    for (std::size_t i = 0; i < file.size(); i += under_asan ? 3 : 1) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        flipped[i] ^= static_cast<std::byte>(1u << bit);
        if (error_of(flipped) == "none") FAIL("byte " << i << ", bit " << bit);
        flipped[i] = file[i];
      }
    }
    CHECK(error_of(flipped) == "none");
  }
}

TEST_CASE("dkvc: the prologue's fields", "[codec][dkvc][hostile]") {
  const Bytes file = plain_file();
  CHECK_THAT(error_of(with_prologue(file, 0, 1, 0x88)), contains("`magic`: expected 137, got 136"));
  CHECK_THAT(error_of(with_prologue(file, 8, 2, 2)), contains("`major version`: expected 1, got 2"));
  CHECK_THAT(error_of(with_prologue(file, 12, 4, 1)), contains("`critical flags`: expected 0, got 1"));
  CHECK_THAT(error_of(with_prologue(file, 12, 4, 0x8000)), contains("`critical flags`"));
  CHECK_THAT(error_of(with_prologue(file, 16, 8, file.size() - 1)), contains("`total_size`"));
  CHECK_THAT(error_of(with_prologue(file, 16, 8, std::uint64_t{1} << 63)), contains("`total_size`"));
  CHECK_THAT(error_of(with_prologue(file, 24, 4, 5)), contains("`header_bytes`: expected 384, got 448"));
  CHECK_THAT(error_of(with_prologue(file, 24, 4, 0xffffffffu)),
             contains("`section_count`: expected at most 4096, got 4294967295"));
  CHECK_THAT(error_of(with_prologue(file, 28, 4, 449)), contains("`header_bytes`: expected 448, got 449"));
  CHECK_THAT(error_of(with_prologue(file, 40, 1, 1)), contains("`reserved`"));
  CHECK_THAT(error_of(with_prologue(file, 55, 1, 1)), contains("`reserved`"));
  // A later minor version, and flags that may be ignored.
  CHECK(error_of(with_prologue(file, 10, 2, 9)) == "none");
  CHECK(Reader(with_prologue(file, 10, 2, 9)).minor_version() == 9);
  CHECK(error_of(with_prologue(file, 12, 4, 0xffff0000u)) == "none");
  // More sections than there is room for.
  Bytes few = file;
  decant::store_le(few.data() + 24, std::uint32_t{4000});
  decant::store_le(few.data() + 28, std::uint32_t{64 * 4001});
  decant::store_le(few.data() + 60, decant::codec::crc32c(View<const std::byte, 1>(few.data(), 60)));
  CHECK_THAT(error_of(few), contains("`header_bytes`: expected at most"));
  Bytes trailer = file;
  trailer[trailer.size() - 12] = std::byte{1};
  CHECK_THAT(error_of(trailer), contains("`trailer reserved`"));
  trailer = file;
  trailer.back() = std::byte{0};
  CHECK_THAT(error_of(trailer), contains("`trailer magic`"));
  Bytes id = file;
  id[32] ^= std::byte{1};
  decant::store_le(id.data() + 60, decant::codec::crc32c(View<const std::byte, 1>(id.data(), 60)));
  CHECK_THAT(error_of(id), contains("`content_id`"));
}

TEST_CASE("dkvc: the entries' fields", "[codec][dkvc][hostile]") {
  const Bytes file = plain_file();
  constexpr std::uint64_t huge = std::uint64_t{1} << 63;
  const auto error = [&](std::size_t entry, std::size_t field, std::size_t size, std::uint64_t value) {
    return error_of(with_entry(file, entry, field, size, value));
  };
  // Type.
  CHECK_THAT(error(5, 0, 4, dkvc::fourcc("NOTE") | dkvc::critical), contains("`section 5: type`"));
  CHECK(error(5, 0, 4, dkvc::fourcc("LATE")) == "none");
  CHECK_THAT(error(0, 0, 4, dkvc::fourcc("LATE")), contains("`section 1: order`"));
  // Codec and dtype.
  CHECK_THAT(error(1, 4, 2, 4), contains("`section 1: codec`"));
  CHECK_THAT(error(1, 4, 2, 31), contains("`section 1: codec`"));
  CHECK_THAT(error(1, 4, 2, 1), contains("`section 1: payload size`: expected less than 320, got 320"));
  CHECK_THAT(error(1, 4, 2, 2), contains("`section 1: dtype`: expected e5m2, got bf16"));
  CHECK_THAT(error(1, 6, 2, 5), contains("`section 1: dtype`"));
  CHECK_THAT(error(1, 6, 2, 3), contains("`section 1: payload size`: expected 160, got 320"));
  CHECK_THAT(error(0, 4, 2, 1), contains("`section 0: codec`"));
  CHECK_THAT(error(0, 6, 2, 2), contains("`section 0: dtype`"));
  // Layer, kind.
  CHECK_THAT(error(1, 8, 4, 0xffffffffu), contains("`section 1: layer`: expected at most 1023"));
  CHECK_THAT(error(1, 8, 4, 1024), contains("`section 1: layer`"));
  CHECK_THAT(error(3, 8, 4, 0), contains("`section 3: order`: expected a section that may follow layer 0 values, 10 "
                                         "tokens from 0, got layer 0 keys"));
  CHECK_THAT(error(0, 8, 4, 0), contains("`section 0: layer`"));
  CHECK_THAT(error(1, 12, 1, 4), contains("`section 1: kind`"));
  CHECK_THAT(error(0, 12, 1, 0), contains("`section 0: kind`"));
  // Checks.
  CHECK_THAT(error(1, 13, 1, 3), contains("`section 1: check_alg`"));
  CHECK(error(5, 13, 1, 3) == "none");  // not known, and neither is the section's type
  CHECK_THAT(error(1, 13, 1, 2), contains("`section 1: block_log2`: expected 0, got 6"));
  CHECK_THAT(error(1, 14, 2, 5), contains("`section 1: block_log2`: expected 6 to 30, got 5"));
  CHECK_THAT(error(5, 14, 2, 0xffff), contains("`section 5: block_log2`: expected 6 to 30, got 65535"));
  CHECK_THAT(error(1, 14, 2, 31), contains("`section 1: block_log2`"));
  // Offsets and sizes.
  for (const std::uint64_t bad : {huge, ~std::uint64_t{0}, (std::uint64_t{1} << 61) + 1}) {
    CHECK_THAT(error(1, 16, 8, bad), contains("`section 1: offset`: expected a size below 2^61"));
    CHECK_THAT(error(1, 24, 8, bad), contains("`section 1: stored_size`: expected a size below 2^61"));
    CHECK_THAT(error(1, 32, 8, bad), contains("`section 1: element_count`: expected a size below 2^61"));
  }
  const auto first = decant::load_le<std::uint64_t>(file.data() + 64 + 16);
  const auto second = decant::load_le<std::uint64_t>(file.data() + 128 + 16);
  CHECK_THAT(error(1, 16, 8, first), contains("`section 1: offset`"));
  CHECK_THAT(error(1, 16, 8, second + 64), contains("`section 1: offset`"));
  CHECK_THAT(error(1, 16, 8, second + 1), contains("`section 1: offset`"));
  CHECK_THAT(error_of(with_entry(plain_file({Check::none}), 0, 16, 8, 0)), contains("`section 0: offset`"));
  CHECK_THAT(error(5, 24, 8, 64 + 4096), contains("`section 5: stored_size`"));
  CHECK_THAT(error(1, 24, 8, 64), contains("`section 1: stored_size`: expected block CRCs"));
  CHECK_THAT(error(1, 24, 8, std::uint64_t{1} << 61), contains("`section 1: stored_size`: expected at most"));
  CHECK_THAT(error(1, 32, 8, 161), contains("`section 1: payload size`: expected 322, got 320"));
  CHECK_THAT(error(0, 32, 8, 0), contains("`section 0: element_count`"));
  // Tokens.
  CHECK_THAT(error(1, 40, 4, 0xffffffffu), contains("`section 1: tokens`: expected at most 16777216"));
  CHECK_THAT(error(1, 44, 4, 0xffffffffu), contains("`section 1: tokens`"));
  CHECK_THAT(error(0, 44, 4, 1), contains("`section 0: tokens`"));
  // Parameters within the card.
  const auto card = static_cast<std::uint64_t>(Reader(file).card().extent(0));
  CHECK(error(1, 56, 8, (card - 1) | std::uint64_t{1} << 40) == "none");
  CHECK_THAT(error(1, 56, 8, card | std::uint64_t{1} << 40), contains("`section 1: params_ref`"));
  CHECK_THAT(error(1, 56, 8, ~std::uint64_t{0}), contains("`section 1: params_ref`"));
  CHECK_THAT(error(0, 56, 8, 1), contains("`section 0: params_ref`"));
  // What nothing checks has no checksum.
  CHECK_THAT(error_of(with_entry(plain_file({Check::none}), 1, 48, 8, 1)), contains("`section 1: checksum`"));
  Bytes high = file;  // CRC32C has 32 bits; repair() would set them
  high[64 + 64 + 48 + 4] = std::byte{1};
  decant::store_le(high.data() + 56, decant::codec::crc32c(View<const std::byte, 1>(high).slice(0, 64, 6 * 64)));
  decant::store_le(high.data() + 60, decant::codec::crc32c(View<const std::byte, 1>(high.data(), 60)));
  CHECK_THAT(error_of(high), contains("`section 1: checksum`: expected 32 bits"));
}

TEST_CASE("dkvc: gaps and padding are zeros", "[codec][dkvc][hostile]") {
  const Bytes file = plain_file();
  const Reader reader(file);
  for (index_t i = 0; i < reader.size(); ++i) {
    const Section& s = reader.section(i);
    const index_t end = s.offset + s.stored_size;
    for (index_t b = end; b < dkvc::padded(end); ++b) {
      Bytes dirty = file;
      dirty[at(b)] = std::byte{1};
      CHECK_THAT(error_of(dirty), contains("`gap`: expected 0, got 1"));
    }
    // Block CRCs of four bytes each, and what pads them to 64.
    const index_t size = dkvc::payload_size(s);
    for (index_t b = 4 * dkvc::block_count(size, s.block_log2); b < s.stored_size - size; ++b) {
      Bytes dirty = file;
      dirty[at(s.offset + b)] = std::byte{1};
      repair(dirty.data(), static_cast<index_t>(dirty.size()));
      CHECK_THAT(error_of(dirty), contains("`padding of the block checksums`"));
    }
  }
}

TEST_CASE("dkvc: every limit holds", "[codec][dkvc][hostile]") {
  const Bytes file = plain_file();
  const auto error = [&](auto&& change) {
    Limits limits;
    change(limits);
    return error_of(file, limits);
  };
  const auto size = static_cast<index_t>(file.size());
  CHECK(error([&](Limits& l) { l.max_total_bytes = size; }) == "none");
  CHECK_THAT(error([&](Limits& l) { l.max_total_bytes = size - 1; }), contains("`size`"));
  CHECK(error([](Limits& l) { l.max_elements = 640; }) == "none");
  CHECK_THAT(error([](Limits& l) { l.max_elements = 639; }),
             contains("`section 4: element_count`: expected at most 159, got 160"));
  CHECK(error([](Limits& l) { l.max_sections = 6; }) == "none");
  CHECK_THAT(error([](Limits& l) { l.max_sections = 5; }), contains("`section_count`: expected at most 5, got 6"));
  CHECK(error([](Limits& l) { l.max_layers = 2; }) == "none");
  CHECK_THAT(error([](Limits& l) { l.max_layers = 1; }), contains("`section 3: layer`: expected at most 0, got 1"));
  CHECK(error([](Limits& l) { l.max_tokens = 10; }) == "none");
  CHECK_THAT(error([](Limits& l) { l.max_tokens = 9; }), contains("`section 1: tokens`: expected at most 9, got 10"));
  CHECK(error([](Limits& l) { l.max_decoded_bytes = 1280; }) == "none");
  CHECK_THAT(error([](Limits& l) { l.max_decoded_bytes = 1279; }), contains("`section 4: decoded bytes`"));
  // More sections than the format has.
  Limits limits;
  limits.max_sections = 1 << 20;
  CHECK_THAT(error_of(with_prologue(file, 24, 4, 65536), limits), contains("`section_count`: expected at most 65535"));
}

TEST_CASE("dkvc: claims allocate nothing", "[codec][dkvc][hostile]") {
  // 4096 sections claimed, with a header that is there, and then all kinds of lies.
  Bytes file(64 + 64 * 4096 + 16);
  dkvc::detail::Prologue p;
  p.total_size = static_cast<index_t>(file.size());
  p.section_count = 4096;
  p.header_bytes = 64 * 4097;
  dkvc::detail::write_prologue(p, file.data());
  dkvc::detail::write_trailer(0, file.data() + file.size() - 16);
  repair(file.data(), p.total_size);
  largest_allocation = 0;
  CHECK(error_of(file) != "none");
  CHECK(largest_allocation < 4096);

  Mutator mutator(7);
  const Bytes base = coded_file();
  std::size_t worst = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes mutated = base;
    mutator.mutate(mutated, base);
    repair(mutated.data(), static_cast<index_t>(mutated.size()));
    largest_allocation = 0;
    error_of(mutated);
    worst = std::max(worst, largest_allocation);
  }
  CHECK(worst <= 4096);  // the table of a few sections, the words of an error, a workspace
}

TEST_CASE("dkvc: mutated files are refused or canonical", "[codec][dkvc][hostile]") {
  const char* const wanted = std::getenv("DECANT_FUZZ_MUTATIONS");
  const long rounds = wanted ? std::atol(wanted) : under_asan ? 15000 : 60000;
  const std::vector<Bytes> bases = {plain_file(), coded_file(), coded_file({Check::none}), plain_file({Check::xxh3}),
                                    coded_file({Check::crc32c, 6})};
  Limits limits;
  limits.max_total_bytes = 1 << 16;
  limits.max_decoded_bytes = 1 << 16;
  limits.max_elements = 1 << 16;
  Cpu cpu;
  Mutator mutator(2);
  long accepted = 0;
  std::size_t worst = 0;
  for (long round = 0; round < rounds; ++round) {
    const Bytes& base = bases[mutator.below(bases.size())];
    const Bytes& other = bases[mutator.below(bases.size())];
    Bytes file = base;
    for (std::uint64_t changes = 1 + mutator.below(3); changes > 0; --changes) mutator.mutate(file, other);
    if (mutator.below(4) == 0 && file.size() >= 80) {
      decant::store_le(file.data() + 16, static_cast<std::uint64_t>(file.size()));
    }
    if (mutator.below(16) != 0) repair(file.data(), static_cast<index_t>(file.size()));
    largest_allocation = 0;
    const Outcome outcome = read_everything(cpu, file, limits);
    worst = std::max(worst, largest_allocation);
    if (outcome.fault != "") FAIL("round " << round << ": " << outcome.fault);
    accepted += outcome.accepted && file != base;
  }
  CHECK(worst <= 2 << 16);        // what the decoder's caller asks for; the writer's copy of it
  CHECK(accepted > rounds / 50);  // the mutations do get past the checks
}

}  // namespace
}  // namespace dkvc_test
