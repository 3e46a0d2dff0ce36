// decant: DKVC as a stream over a POSIX file descriptor (socket, pipe, file): sections go out one by one, as soon as
// each is encoded, and the receiver may decode one while the next is under way. Not part of decant.hpp.
//
//   stream  := prologue (64) | frame per section | closing frame
//   prologue: a file's, with critical flag 1 and no sizes, counts, content id or table
//   frame   := "FRME" | u32 CRC32C of the entry | entry (64; offset 0) | stored bytes
//   closing := "DONE" | u32 number of sections | trailer (16), as a file's
//
// A stream without the closing frame was cut. Order and rules of sections are those of a file; META comes first.
#ifndef DECANT_CODEC_DKVC_STREAM_HPP
#define DECANT_CODEC_DKVC_STREAM_HPP

#include <cstdint>

#include <sys/socket.h>

#include "detail/dkvc_descriptor.hpp"
#include "dkvc_reader.hpp"

namespace decant::codec::dkvc {

namespace detail {

inline constexpr std::uint32_t frame_tag = fourcc("FRME");
inline constexpr std::uint32_t closing_tag = fourcc("DONE");
inline constexpr index_t frame_head = 8 + entry_size;
inline constexpr index_t closing_size = 8 + trailer_size;

inline bool is_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

/// send() that raises no SIGPIPE when the peer is gone.
inline ssize_t send_quietly(int fd, const void* from, std::size_t size) {
#ifdef MSG_NOSIGNAL
  return ::send(fd, from, size, MSG_NOSIGNAL);
#else
  return ::send(fd, from, size, 0);
#endif
}

}  // namespace detail

/// Sends sections through a blocking descriptor, which it does not own. An IoError ends the stream: EPIPE when the
/// receiver is gone (on a pipe only where SIGPIPE is ignored; sockets raise none), EAGAIN when a timeout of the
/// socket's ran out.
class FrameWriter {
 public:
  /// Sends the prologue.
  explicit FrameWriter(int fd, const Checks& checks = {}) : fd_(fd), socket_(detail::is_socket(fd)), checks_(checks) {
    validate(checks);
    detail::Prologue p;
    p.flags = detail::flag_stream;
    std::byte bytes[prologue_size];
    detail::write_prologue(p, bytes);
    send({bytes, prologue_size});
    usable_ = true;
  }

  /// The cache card; before any tensor.
  void add_card(Cpu& cpu, View<const std::byte, 1> card) {
    encode_bytes(cpu, meta_type, card, data_, checks_);
    add(data_);
  }

  /// Encodes x as Writer::add does and sends it. Sections go by layer, kind and token, upwards. The second section of a
  /// size allocates nothing.
  template <class C>
  requires KVCodec<C, Cpu>
  void add(Cpu& cpu, const C& codec, const Place& place, View<const typename C::element, 1> x) {
    encode(cpu, codec, place, x, data_, checks_);
    add(data_);
  }

  /// Sends a section that was encoded elsewhere, on another thread perhaps.
  void add(const SectionData& data) {
    constexpr const char* where = "codec::dkvc::FrameWriter::add";
    require(usable_, where, "this", "a stream that is open", "one that was finished or failed");
    require(
        count_ == 0 || detail::may_follow(before_, data.section), where, "section",
        [&] { return "one that may follow " + detail::describe(before_); },
        [&] { return detail::describe(data.section); });
    Section s = data.section;
    s.offset = 0;
    std::byte head[detail::frame_head];
    store_le(head, detail::frame_tag);
    detail::write_entry(s, head + 8);
    store_le(head + 4, crc32c(View<const std::byte, 1>(head + 8, entry_size)));
    send({head, detail::frame_head});
    send(data.stored());
    usable_ = true;
    before_ = s;
    checksums_ = detail::add_checksum(checksums_, s);
    ++count_;
  }

  /// Sends the closing frame: without it the receiver takes the stream for a cut one.
  void finish() {
    require(usable_, "codec::dkvc::FrameWriter::finish", "this", "a stream that is open",
            "one that was finished or failed");
    std::byte closing[detail::closing_size];
    store_le(closing, detail::closing_tag);
    store_le(closing + 4, count_);
    detail::write_trailer(checksums_, closing + 8);
    send({closing, detail::closing_size});
  }

 private:
  /// What was sent in part cannot be gone on with: not usable until the caller says so.
  void send(View<const std::byte, 1> bytes) {
    usable_ = false;
    constexpr const char* where = "codec::dkvc::FrameWriter";
    if (socket_) return detail::write_all(where, "send", detail::send_quietly, fd_, bytes);
    detail::write_all(where, fd_, bytes);
  }

  int fd_;
  bool socket_;
  bool usable_ = false;
  Checks checks_;
  SectionData data_;
  Section before_;
  std::uint32_t count_ = 0;
  std::uint32_t checksums_ = 0;
};

/// Receives sections from a blocking descriptor, which it does not own. Errors: FormatError for bytes that are no
/// stream, for a cut one, and beyond the limits; IoError. After one, finished() stays false and next() only fails
/// again.
class FrameReader {
 public:
  /// Waits for the prologue.
  explicit FrameReader(int fd, const Limits& limits = {}) : fd_(fd), limits_(limits) {
    validate(limits);
    std::byte bytes[prologue_size];
    read({bytes, prologue_size}, "prologue");
    const detail::Prologue p = detail::read_prologue(where, bytes, detail::flag_stream);
    detail::expect(p.total_size == 0, where, "total_size", 0, p.total_size);
    detail::expect(p.section_count == 0, where, "section_count", 0, p.section_count);
    detail::expect(p.header_bytes == prologue_size, where, "header_bytes", prologue_size, p.header_bytes);
    detail::expect(p.content_id == 0, where, "content_id", 0, p.content_id);
    detail::expect(p.table_crc == 0, where, "table_crc32c", 0, p.table_crc);
    state_ = State::open;
  }

  /// Waits for the next section: true with `data` filled and verified, false after the closing frame. Sections of
  /// unknown, non-critical types are given too. On an error `data` holds no section. `data` keeps its memory, and two
  /// of them let one thread decode while this one receives.
  bool next(Cpu& cpu, SectionData& data) {
    data.clear();
    if (state_ == State::finished) return false;
    detail::expect(state_ == State::open, where, "stream", "no error before", "one");
    state_ = State::failed;
    std::byte head[detail::frame_head];
    read({head, 8}, "frame");
    const auto tag = load_le<std::uint32_t>(head);
    if (tag == detail::closing_tag) {
      close(load_le<std::uint32_t>(head + 4));
      state_ = State::finished;
      return false;
    }
    detail::expect(tag == detail::frame_tag, where, "frame", "FRME or DONE", tag);
    read({head + 8, entry_size}, "entry");
    const Section s = read_entry(head);
    receive(s, data);
    if (s.check <= Check::xxh3) verify(cpu, s, View<const std::byte, 1>(data.stored_data(), s.stored_size));
    data.section = s;
    before_ = s;
    checksums_ = detail::add_checksum(checksums_, s);
    ++count_;
    state_ = State::open;
    return true;
  }

  /// Whether the closing frame has come: all of the stream was received.
  bool finished() const { return state_ == State::finished; }
  /// How many sections have come.
  index_t count() const { return count_; }

 private:
  static constexpr const char* where = "codec::dkvc::FrameReader";
  enum class State : unsigned char { failed, open, finished };

  void read(View<std::byte, 1> to, const char* what) {
    const index_t got = detail::read_some(where, fd_, to.data(), to.extent(0));
    if (got != to.extent(0)) {
      decant::detail::fail_format(
          where, what, [&] { return std::to_string(to.extent(0)) + " bytes"; },
          [&] { return "the end of a cut stream after " + std::to_string(got); });
    }
  }

  Section read_entry(const std::byte* head) {
    const auto crc = crc32c(View<const std::byte, 1>(head + 8, entry_size));
    detail::expect(load_le<std::uint32_t>(head + 4) == crc, where, "entry_crc32c", crc,
                   load_le<std::uint32_t>(head + 4));
    detail::expect(
        count_ < limits_.max_sections, where, "sections", [&] { return detail::at_most(limits_.max_sections); },
        count_ + 1);
    const Section s = detail::read_entry(where, count_, head + 8);
    detail::expect_section(s.offset == 0, where, count_, "offset", 0, s.offset);
    detail::check_section(where, count_, s, limits_, totals_);
    if (count_ > 0) detail::check_order(where, count_, before_, s);
    const index_t room = limits_.max_total_bytes - received_;
    detail::expect_section(
        s.stored_size <= room, where, count_, "stored_size", [&] { return detail::at_most(room); }, s.stored_size);
    received_ += s.stored_size;
    return s;
  }

  /// The stored bytes. Memory grows with what has come, at most to twice that and a megabyte: a size that is only
  /// claimed costs nothing.
  void receive(const Section& s, SectionData& data) {
    index_t have = 0;
    while (have < s.stored_size) {
      const index_t most = 2 * have + (index_t{1} << 20);
      const index_t size = s.stored_size < most ? s.stored_size : most;
      read({data.front(size) + have, size - have}, "stored bytes");
      have = size;
    }
  }

  void close(std::uint32_t count) {
    std::byte trailer[trailer_size];
    read({trailer, trailer_size}, "closing frame");
    detail::expect(count == count_, where, "number of sections", count_, count);
    detail::check_trailer(where, trailer, checksums_);
  }

  int fd_;
  Limits limits_;
  State state_ = State::failed;
  detail::Totals totals_;
  Section before_;
  index_t received_ = 0;
  index_t count_ = 0;
  std::uint32_t checksums_ = 0;
};

}  // namespace decant::codec::dkvc

#endif
