// decant: dkvc::Writer collects encoded sections and writes them as one DKVC file, in memory or piece by piece into any
// sink. Sections may be added in any order: they are written in the canonical one, so that the same sections make the
// same bytes.
#ifndef DECANT_CODEC_DKVC_WRITER_HPP
#define DECANT_CODEC_DKVC_WRITER_HPP

#include <cstdint>
#include <utility>
#include <vector>

#include "dkvc_reader.hpp"
#include "dkvc_section.hpp"

namespace decant::codec::dkvc {

class Writer {
 public:
  explicit Writer(const Checks& checks = {}) : checks_(checks) { validate(checks); }

  /// The cache card, or any other bytes that describe the cache: the META section. At most once.
  void add_card(Cpu& cpu, View<const std::byte, 1> card) { add_bytes(cpu, meta_type, card); }

  /// Elements x, contiguous, coded by `codec`, or plain when that is not larger. See dkvc::encode.
  template <class C>
  requires KVCodec<C, Cpu>
  void add(Cpu& cpu, const C& codec, const Place& place, View<const typename C::element, 1> x) {
    SectionData data;
    encode(cpu, codec, place, x, data, checks_);
    add(std::move(data));
  }

  /// A section of a type of your own: see encode_bytes.
  void add_bytes(Cpu& cpu, std::uint32_t type, View<const std::byte, 1> bytes) {
    SectionData data;
    encode_bytes(cpu, type, bytes, data, checks_);
    add(std::move(data));
  }

  /// A section encoded elsewhere, on other threads perhaps. ArgumentError when its place is taken.
  void add(SectionData data) {
    constexpr const char* where = "codec::dkvc::Writer::add";
    require(size() < most_sections, where, "this", "at most 65535 sections", size() + 1);
    index_t at = size();
    while (at > 0 && comes_before(data.section, section(at - 1))) --at;
    const bool fits = (at == 0 || detail::may_follow(section(at - 1), data.section)) &&
                      (at == size() || detail::may_follow(data.section, section(at)));
    require(fits, where, "section", "a place that no other has", [&] { return detail::describe(data.section); });
    sections_.insert(sections_.begin() + at, std::move(data));
  }

  index_t size() const { return static_cast<index_t>(sections_.size()); }

  /// Of the file.
  index_t total_size() const {
    index_t total = header_bytes() + trailer_size;
    for (const SectionData& data : sections_) total += padded(data.section.stored_size);
    return total;
  }

  /// The file, in pieces from front to back: sink(View<const std::byte, 1>) takes them one after another.
  template <class Sink>
  void write(Sink&& sink) const {
    const std::vector<std::byte> header = make_header();
    sink(View<const std::byte, 1>(header));
    static constexpr std::byte zeros[alignment] = {};
    std::uint32_t checksums = 0;
    for (const SectionData& data : sections_) {
      const index_t size = data.section.stored_size;
      if (size > 0) sink(data.stored());
      if (padded(size) > size) sink(View<const std::byte, 1>(zeros, padded(size) - size));
      checksums = detail::add_checksum(checksums, data.section);
    }
    std::byte trailer[trailer_size];
    detail::write_trailer(checksums, trailer);
    sink(View<const std::byte, 1>(trailer, trailer_size));
  }

  /// The file in memory.
  std::vector<std::byte> write() const {
    std::vector<std::byte> file;
    file.reserve(static_cast<std::size_t>(total_size()));
    write(
        [&](View<const std::byte, 1> piece) { file.insert(file.end(), piece.data(), piece.data() + piece.extent(0)); });
    return file;
  }

 private:
  const Section& section(index_t i) const { return sections_[static_cast<std::size_t>(i)].section; }
  index_t header_bytes() const { return prologue_size + entry_size * size(); }

  /// The order alone; whether ranges overlap is may_follow's business.
  static bool comes_before(const Section& a, const Section& b) {
    if (detail::rank(a) != detail::rank(b)) return detail::rank(a) < detail::rank(b);
    if (!a.is_tensor()) return a.type < b.type;
    if (a.layer != b.layer) return a.layer < b.layer;
    if (a.kind != b.kind) return a.kind < b.kind;
    return a.token_begin < b.token_begin;
  }

  std::vector<std::byte> make_header() const {
    std::vector<std::byte> header(static_cast<std::size_t>(header_bytes()));
    index_t at = header_bytes();
    for (index_t i = 0; i < size(); ++i) {
      Section s = section(i);
      s.offset = at;
      at += padded(s.stored_size);
      detail::write_entry(s, header.data() + prologue_size + entry_size * i);
    }
    detail::Prologue p;
    p.total_size = at + trailer_size;
    p.section_count = size();
    p.header_bytes = header_bytes();
    if (!sections_.empty() && section(0).is_meta()) p.content_id = xxh3_64(payload(section(0), sections_[0].stored()));
    p.table_crc = crc32c(View<const std::byte, 1>(header).slice(0, prologue_size, entry_size * size()));
    detail::write_prologue(p, header.data());
    return header;
  }

  Checks checks_;
  std::vector<SectionData> sections_;
};

}  // namespace decant::codec::dkvc

#endif
