#pragma once
// For mutated DKVC files: checksums that fit again, so that what lies behind them is reached; and what must hold of
// whatever a Reader then accepts.
#include <string>
#include <vector>

#include "decant/codec/cache_card.hpp"
#include "decant/codec/dkvc.hpp"

namespace dkvc_test {

namespace dkvc = decant::codec::dkvc;
using decant::Cpu;
using decant::index_t;
using decant::View;
using Bytes = std::vector<std::byte>;

/// Makes the block CRCs of a section and the checksum in its entry fit the payload; returns that.
inline View<const std::byte, 1> repair_section(std::byte* entry, std::byte* stored, index_t stored_size) {
  const auto check = static_cast<dkvc::Check>(entry[13]);
  const int log2 = decant::load_le<std::uint16_t>(entry + 14);
  if (check == dkvc::Check::crc32c && (log2 < 6 || log2 > 30)) return {};
  const index_t size = dkvc::payload_size(stored_size, check, log2);
  if (size < 0) return {};
  const View<const std::byte, 1> body(stored + (stored_size - size), size);
  if (check == dkvc::Check::crc32c) {
    const index_t blocks = dkvc::block_count(size, log2);
    for (index_t b = 0; b < blocks; ++b) {
      decant::store_le(stored + 4 * b, decant::codec::crc32c(dkvc::detail::block(body, log2, b)));
    }
    const std::uint64_t sum = decant::codec::crc32c(View<const std::byte, 1>(stored, 4 * blocks));
    decant::store_le(entry + 48, sum);
  } else if (check == dkvc::Check::xxh3) {
    decant::store_le(entry + 48, decant::codec::xxh3_64(body));
  }
  return body;
}

/// Recomputes block CRCs, checksums, content id, table, prologue and trailer, of whatever can be found.
inline void repair(std::byte* file, index_t size) {
  if (size < dkvc::prologue_size + dkvc::trailer_size) return;
  const index_t room = (size - dkvc::prologue_size - dkvc::trailer_size) / dkvc::entry_size;
  const index_t claimed = decant::load_le<std::uint32_t>(file + 24);
  const index_t count = claimed < room ? claimed : room;
  std::uint64_t content_id = 0;
  std::uint32_t checksums = 0;
  for (index_t i = 0; i < count; ++i) {
    std::byte* const entry = file + dkvc::prologue_size + dkvc::entry_size * i;
    const auto offset = decant::load_le<std::uint64_t>(entry + 16);
    const auto stored = decant::load_le<std::uint64_t>(entry + 24);
    const auto whole = static_cast<std::uint64_t>(size);
    if (offset <= whole && stored <= whole - offset) {
      const auto payload = repair_section(entry, file + offset, static_cast<index_t>(stored));
      const bool card = i == 0 && decant::load_le<std::uint32_t>(entry) == dkvc::meta_type;
      if (card) content_id = decant::codec::xxh3_64(payload);
    }
    checksums = decant::codec::crc32c(View<const std::byte, 1>(entry + 48, 8), checksums);
  }
  decant::store_le(file + 32, content_id);
  const View<const std::byte, 1> table(file + dkvc::prologue_size, dkvc::entry_size * count);
  decant::store_le(file + 56, decant::codec::crc32c(table));
  decant::store_le(file + 60, decant::codec::crc32c(View<const std::byte, 1>(file, 60)));
  decant::store_le(file + size - dkvc::trailer_size, checksums);
}

/// A section decoded and encoded again with the codec that its payload names.
template <class T>
dkvc::SectionData encoded_again(Cpu& cpu, const dkvc::Reader& reader, index_t i) {
  const dkvc::Section& s = reader.section(i);
  std::vector<T> y(static_cast<std::size_t>(s.element_count));
  reader.decode(cpu, i, View<T, 1>(y), dkvc::Verify::no);
  const dkvc::Checks checks{s.check, s.check == dkvc::Check::crc32c ? s.block_log2 : 16};
  const dkvc::Place place{s.layer, s.kind, s.token_begin, s.token_count, s.params_ref};
  dkvc::SectionData again;
  if constexpr (decant::codec::SplitZipElement<T>) {
    using Codec = decant::codec::SplitZip<T>;
    if (s.codec == Codec::codec_id) {
      dkvc::encode(cpu, codec_of(Codec{}, reader.payload(i)), place, y, again, checks);
      return again;
    }
  }
  dkvc::encode(cpu, decant::codec::Stored<T>{}, place, y, again, checks);
  return again;
}

/// The file that the contents of `reader` make; FormatError when they cannot be decoded.
inline Bytes written_again(Cpu& cpu, const dkvc::Reader& reader) {
  dkvc::Writer writer;
  for (index_t i = 0; i < reader.size(); ++i) {
    const dkvc::Section& s = reader.section(i);
    const bool ours = s.is_tensor() && s.codec < decant::codec::CodecId::user;
    if (ours && s.dtype == 0) {
      writer.add(encoded_again<float>(cpu, reader, i));
    } else if (ours && s.dtype == 1) {
      writer.add(encoded_again<decant::fp16>(cpu, reader, i));
    } else if (ours && s.dtype == 2) {
      writer.add(encoded_again<decant::bf16>(cpu, reader, i));
    } else if (ours && s.dtype == 3) {
      writer.add(encoded_again<decant::fp8_e4m3>(cpu, reader, i));
    } else if (ours) {
      writer.add(encoded_again<decant::fp8_e5m2>(cpu, reader, i));
    } else {
      dkvc::SectionData copy;
      std::byte* const to = copy.front(s.stored_size);
      for (index_t b = 0; b < s.stored_size; ++b) to[b] = reader.stored(i)[b];
      copy.section = s;
      writer.add(std::move(copy));
    }
  }
  return writer.write();
}

/// What a mutated file did: it was refused, or all of it was read and is canonical; else, in words, what is wrong.
struct Outcome {
  bool accepted = false;
  std::string fault;
};

/// Reads all that there is. Any exception but FormatError goes through.
inline Outcome read_everything(Cpu& cpu, View<const std::byte, 1> bytes, const dkvc::Limits& limits) {
  try {
    const dkvc::Reader reader(bytes, limits);
    reader.verify(cpu);
    if (!reader.card().empty()) {
      try {
        const dkvc::CacheCard card = read_card(reader.card(), limits);
        if (read_card(write_card(card), limits) != card) return {true, "the card does not survive writing"};
      } catch (const decant::FormatError&) {
        // META may be anything.
      }
    }
    Bytes again = written_again(cpu, reader);
    // What a file of this version cannot say: a later minor version, flags that may be ignored.
    if (bytes.extent(0) == static_cast<index_t>(again.size())) {
      for (std::size_t i = 10; i < 16; ++i) again[i] = bytes[static_cast<index_t>(i)];
      decant::store_le(again.data() + 60, decant::codec::crc32c(View<const std::byte, 1>(again.data(), 60)));
    }
    bool same = bytes.extent(0) == static_cast<index_t>(again.size());
    for (index_t i = 0; same && i < bytes.extent(0); ++i) same = bytes[i] == again[static_cast<std::size_t>(i)];
    return {true, same ? "" : "what was read does not make the same bytes again"};
  } catch (const decant::FormatError&) {
    return {};
  }
}

}  // namespace dkvc_test
