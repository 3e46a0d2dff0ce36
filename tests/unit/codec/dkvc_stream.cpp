// DKVC streams: through a socket while both sides work, cut at every byte, every bit flipped, peers that vanish, stall
// or lie.
#include "decant/codec/dkvc_stream.hpp"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <fcntl.h>
#include <sys/time.h>

#include "dkvc_data.hpp"
#include "dkvc_mutate.hpp"
#include "dkvc_repair_stream.hpp"

namespace dkvc_test {
namespace {

using catch_compat::contains;
using dkvc::FrameReader;
using dkvc::FrameWriter;

/// Two connected sockets, or the two ends of a pipe: [0] to read, [1] to write.
class Pair {
 public:
  explicit Pair(bool socket) { REQUIRE((socket ? ::socketpair(AF_UNIX, SOCK_STREAM, 0, fds_) : ::pipe(fds_)) == 0); }
  ~Pair() {
    close(0);
    close(1);
  }
  int in() const { return fds_[0]; }
  int out() const { return fds_[1]; }
  void close(int end) {
    if (fds_[end] >= 0) ::close(fds_[end]);
    fds_[end] = -1;
  }

 private:
  int fds_[2] = {-1, -1};
};

/// A small stream: a card, keys and values of one layer, a note.
void send_small(FrameWriter& out) {
  Cpu cpu;
  out.add_card(cpu, bytes_of("a card"));
  out.add(cpu, SplitZip<bf16>{64}, {0, Kind::key, 0, 10}, elements<bf16>(300, 1));
  out.add(cpu, Stored<fp16>{}, {0, Kind::value, 0, 10}, elements<fp16>(30, 2));
  SectionData note;
  dkvc::encode_bytes(cpu, dkvc::fourcc("NOTE"), bytes_of("note"), note);
  out.add(note);
}

Bytes small_stream(bool finished = true) {
  Pair pair(false);
  FrameWriter out(pair.out(), {Check::crc32c, 7});
  send_small(out);
  if (finished) out.finish();
  pair.close(1);
  Bytes bytes(1 << 16);
  bytes.resize(at(dkvc::detail::read_some("test", pair.in(), bytes.data(), 1 << 16)));
  return bytes;
}

/// What came out of a stream.
struct Received {
  std::vector<SectionData> sections;
  bool finished = false;
  std::string error = "none";
};

/// Receives from a descriptor until the end or an error. After an error nothing may be left that looks like a section.
Received receive(int fd, const Limits& limits = {}) {
  Received r;
  try {
    Cpu cpu;
    FrameReader in(fd, limits);
    SectionData data;
    try {
      while (in.next(cpu, data)) r.sections.push_back(data);
      r.finished = in.finished();
    } catch (const decant::Error& e) {
      r.error = e.what();
      CHECK(data.section == Section());
      CHECK(!in.finished());
      CHECK_THROWS_AS(in.next(cpu, data), FormatError);
    }
  } catch (const decant::Error& e) {
    r.error = e.what();
  }
  return r;
}

/// The same from bytes (fewer than a pipe holds), after which the sender is gone.
Received receive(const Bytes& bytes, const Limits& limits = {}) {
  Pair pair(false);
  dkvc::detail::write_all("test", pair.out(), bytes);
  pair.close(1);
  return receive(pair.in(), limits);
}

bool same(const SectionData& a, const SectionData& b) {
  return a.section == b.section && a.stored().extent(0) == b.stored().extent(0) &&
         std::memcmp(a.stored().data(), b.stored().data(), at(a.stored().extent(0))) == 0;
}

TEST_CASE("dkvc stream: one section is decoded while the next is sent", "[codec][dkvc][stream][threads]") {
  for (const bool socket : {true, false}) {
    Pair pair(socket);
    const index_t layers = 6;
    const index_t size = 100000;
    std::atomic<bool> sent{false};
    std::thread sender([&] {
      Cpu cpu;
      FrameWriter out(pair.out());
      out.add_card(cpu, dkvc::write_card(sample_card()));
      for (index_t layer = 0; layer < layers; ++layer) {
        for (const Kind kind : {Kind::key, Kind::value}) {
          out.add(cpu, SplitZip<bf16>{}, {layer, kind, 0, 10},
                  elements<bf16>(size, static_cast<std::uint64_t>(2 * layer + static_cast<int>(kind))));
        }
      }
      out.finish();
      sent = true;
      pair.close(1);
    });
    Cpu cpu;
    FrameReader in(pair.in());
    SectionData data;
    REQUIRE(in.next(cpu, data));
    CHECK(dkvc::read_card(payload(data.section, data.stored())) == sample_card());
    // Fewer bytes fit between the two than are sent: here the sender cannot be done.
    CHECK(!sent);
    std::vector<bf16> y(at(size));
    for (std::uint64_t i = 0; i < 2 * static_cast<std::uint64_t>(layers); ++i) {
      REQUIRE(in.next(cpu, data));
      CHECK(data.section.layer == i / 2);
      CHECK(data.section.codec == decant::codec::CodecId::splitzip_bf16);
      dkvc::decode(cpu, data.section, data.stored(), View<bf16, 1>(y));
      CHECK(same_bits(y, elements<bf16>(size, i)));
    }
    CHECK(!in.finished());
    CHECK(!in.next(cpu, data));
    CHECK(in.finished());
    CHECK(!in.next(cpu, data));
    CHECK(in.count() == 1 + 2 * layers);
    sender.join();
  }
}

TEST_CASE("dkvc stream: its sections make the file that they would have made", "[codec][dkvc][stream]") {
  const Received r = receive(small_stream());
  CHECK(r.finished);
  REQUIRE(r.sections.size() == 4);
  Writer writer;
  for (const SectionData& data : r.sections) writer.add(data);
  const Bytes file = writer.write();
  Cpu cpu;
  const Reader reader(file);
  reader.verify(cpu);
  CHECK(written_again(cpu, reader) == file);
  std::vector<fp16> y(30);
  reader.decode(cpu, 2, View<fp16, 1>(y));
  CHECK(same_bits(y, elements<fp16>(30, 2)));
}

TEST_CASE("dkvc stream: the bytes of an empty one", "[codec][dkvc][stream]") {
  Pair pair(false);
  FrameWriter(pair.out()).finish();
  std::byte bytes[89];
  REQUIRE(dkvc::detail::read_some("test", pair.in(), bytes, 88) == 88);
  unsigned char expected[88] = {0x89, 'D', 'K', 'V', '\r', '\n', 0x1a, '\n', 1, 0, 0, 0, 1};
  expected[28] = 64;
  decant::store_le(reinterpret_cast<std::byte*>(expected) + 60,
                   decant::codec::crc32c(View<const std::byte, 1>(reinterpret_cast<const std::byte*>(expected), 60)));
  const unsigned char closing[] = {'D', 'O', 'N', 'E', 0,    0,    0,    0,    0,   0,   0,   0,
                                   0,   0,   0,   0,   '\n', 0x1a, '\n', '\r', 'V', 'K', 'D', 0x89};
  std::memcpy(expected + 64, closing, sizeof closing);
  CHECK(std::memcmp(bytes, expected, 88) == 0);
}

TEST_CASE("dkvc stream: the sender closes at any byte", "[codec][dkvc][stream]") {
  const Bytes stream = small_stream();
  const Received whole = receive(stream);
  REQUIRE(whole.finished);
  for (std::size_t size = 0; size < stream.size(); ++size) {
    INFO("after " << size << " bytes");
    Pair pair(true);
    const View<const std::byte, 1> part(stream.data(), static_cast<index_t>(size));
    dkvc::detail::write_all("test", pair.out(), part);
    pair.close(1);
    const Received cut = receive(pair.in());
    if (cut.finished || cut.error.find("the end of a cut stream") == std::string::npos) FAIL(cut.error);
    // What came before the cut is whole.
    REQUIRE(cut.sections.size() <= whole.sections.size());
    for (std::size_t i = 0; i < cut.sections.size(); ++i) REQUIRE(same(cut.sections[i], whole.sections[i]));
  }
}

TEST_CASE("dkvc stream: every flipped bit is found", "[codec][dkvc][stream]") {
  Bytes stream = small_stream();
  for (std::size_t i = 0; i < stream.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      stream[i] ^= static_cast<std::byte>(1u << bit);
      const Received r = receive(stream);
      if (r.finished || r.error == "none") FAIL("byte " << i << ", bit " << bit);
      stream[i] ^= static_cast<std::byte>(1u << bit);
    }
  }
}

TEST_CASE("dkvc stream: byte by byte, and with signals between", "[codec][dkvc][stream][threads]") {
  // A handler without SA_RESTART: calls that wait are interrupted.
  struct sigaction action = {};
  struct sigaction before;
  action.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGALRM, &action, &before) == 0);
  const itimerval often = {{0, 500}, {0, 500}};
  const itimerval never = {};
  ::setitimer(ITIMER_REAL, &often, nullptr);

  const Bytes stream = small_stream();
  Pair slow(true);
  std::thread sender([&] {
    for (const std::byte& b : stream) {
      dkvc::detail::write_all("test", slow.out(), View<const std::byte, 1>(&b, 1));
      if (&b - stream.data() < 200) std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  const Received r = receive(slow.in());
  sender.join();
  CHECK(r.error == "none");
  CHECK(r.finished);

  // A sender that waits for its receiver is interrupted too.
  Pair full(true);
  std::string error = "none";
  std::thread waiting([&] {
    try {
      Cpu cpu;
      FrameWriter out(full.out());
      out.add(cpu, Stored<bf16>{}, {}, std::vector<bf16>(1000000, bf16(1.0f)));
      out.finish();
    } catch (const decant::Error& e) {
      error = e.what();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(receive(full.in()).finished);
  waiting.join();
  CHECK(error == "none");

  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST_CASE("dkvc stream: the receiver is gone", "[codec][dkvc][stream]") {
  Cpu cpu;
  Pair pair(true);
  FrameWriter out(pair.out());
  pair.close(0);
  int code = 0;
  try {  // without SIGPIPE, which would end this program
    out.add(cpu, Stored<bf16>{}, {}, std::vector<bf16>(100));
  } catch (const dkvc::IoError& e) {
    code = e.code();
  }
  CHECK(code == EPIPE);
  CHECK_THROWS_WITH(out.add_card(cpu, bytes_of("card")), contains("a stream that is open"));
  CHECK_THROWS_AS(out.finish(), decant::ArgumentError);
  CHECK_THROWS_AS(FrameWriter(pair.out()), dkvc::IoError);
}

TEST_CASE("dkvc stream: the sender stalls, a timeout of the socket's ends the wait", "[codec][dkvc][stream]") {
  Pair pair(true);
  const timeval soon = {0, 20000};
  REQUIRE(::setsockopt(pair.in(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
  const Bytes stream = small_stream();
  dkvc::detail::write_all("test", pair.out(), View<const std::byte, 1>(stream.data(), 300));
  const Received r = receive(pair.in());
  CHECK(!r.finished);
  CHECK_THAT(r.error, contains("read: Resource temporarily unavailable"));
}

TEST_CASE("dkvc stream: senders keep the order, once finished they are", "[codec][dkvc][stream]") {
  Cpu cpu;
  Pair pair(false);
  FrameWriter out(pair.out());
  out.add(cpu, Stored<bf16>{}, {1, Kind::key, 0, 4}, std::vector<bf16>(4));
  CHECK_THROWS_WITH(out.add(cpu, Stored<bf16>{}, {1, Kind::key, 3, 4}, std::vector<bf16>(4)),
                    contains("one that may follow layer 1 keys, 4 tokens from 0"));
  CHECK_THROWS_AS(out.add_card(cpu, bytes_of("card")), decant::ArgumentError);
  out.add(cpu, Stored<bf16>{}, {1, Kind::value, 0, 4}, std::vector<bf16>(4));  // the refused ones were not sent
  out.finish();
  CHECK_THROWS_AS(out.finish(), decant::ArgumentError);
  pair.close(1);
  const Received r = receive(pair.in());
  CHECK(r.finished);
  CHECK(r.sections.size() == 2);
}

/// The entry in frame `frame` of a stream.
std::byte* entry_of(Bytes& stream, std::size_t frame) {
  std::byte* at = stream.data() + 64;
  for (; frame > 0; --frame) at += 72 + decant::load_le<std::uint64_t>(at + 8 + 24);
  return at + 8;
}

/// Makes the CRC before an entry fit it.
void repair_entry(std::byte* entry) {
  decant::store_le(entry - 4, decant::codec::crc32c(View<const std::byte, 1>(entry, 64)));
}

/// The small stream with one field of the entry of frame `frame` changed, its CRC with it.
Bytes with_entry(std::size_t frame, std::size_t field, std::size_t size, std::uint64_t value) {
  Bytes stream = small_stream();
  std::byte* const entry = entry_of(stream, frame);
  for (std::size_t i = 0; i < size; ++i) entry[field + i] = static_cast<std::byte>(value >> (8 * i));
  repair_entry(entry);
  return stream;
}

TEST_CASE("dkvc stream: lies", "[codec][dkvc][stream]") {
  const auto error = [](std::size_t frame, std::size_t field, std::size_t size, std::uint64_t value) {
    return receive(with_entry(frame, field, size, value)).error;
  };
  CHECK_THAT(error(1, 24, 8, std::uint64_t{1} << 63), contains("`section 1: stored_size`"));
  CHECK_THAT(error(1, 32, 8, std::uint64_t{1} << 60), contains("`section 1: element_count`"));
  CHECK_THAT(error(2, 8, 4, 0xfffffffeu), contains("`section 2: layer`"));
  CHECK_THAT(error(2, 12, 1, 0), contains("`section 2: order`"));
  CHECK_THAT(error(1, 16, 8, 64), contains("`section 1: offset`"));
  CHECK_THAT(error(3, 0, 4, dkvc::fourcc("NOTE") | dkvc::critical), contains("`section 3: type`"));
  CHECK_THAT(error(1, 48, 4, 0), contains("`checksum of the block checksums`"));
  CHECK_THAT(receive(plain_file()).error, contains("`critical flags`: expected 1, got 0"));
  CHECK_THAT(error_of(small_stream()), contains("`critical flags`: expected 0, got 1"));
  CHECK_THAT(receive(small_stream(false)).error, contains("the end of a cut stream"));
  Bytes count = small_stream();
  count[count.size() - 20] = std::byte{3};
  CHECK_THAT(receive(count).error, contains("`number of sections`: expected 4, got 3"));

  // 32 GiB of bytes that never come cost a megabyte.
  Bytes liar = with_entry(2, 13, 3, 0);  // nothing checks, and any stored size is a payload's
  std::byte* const entry = entry_of(liar, 2);
  decant::store_le(entry + 24, std::uint64_t{1} << 35);
  decant::store_le(entry + 32, std::uint64_t{1} << 34);
  decant::store_le(entry + 48, std::uint64_t{0});
  repair_entry(entry);
  largest_allocation = 0;
  CHECK_THAT(receive(liar).error, contains("the end of a cut stream"));
  CHECK(largest_allocation <= 1 << 20);
}

TEST_CASE("dkvc stream: every limit holds", "[codec][dkvc][stream]") {
  const Bytes stream = small_stream();
  const auto error = [&](auto&& change) {
    Limits limits;
    change(limits);
    return receive(stream, limits).error;
  };
  index_t stored = 0;
  for (const SectionData& data : receive(stream).sections) stored += data.section.stored_size;
  CHECK(error([&](Limits& l) { l.max_total_bytes = stored; }) == "none");
  CHECK_THAT(error([&](Limits& l) { l.max_total_bytes = stored - 1; }), contains("`section 3: stored_size`"));
  CHECK_THAT(error([](Limits& l) { l.max_sections = 3; }), contains("`sections`: expected at most 3, got 4"));
  CHECK_THAT(error([](Limits& l) { l.max_elements = 329; }), contains("`section 2: element_count`"));
  CHECK_THAT(error([](Limits& l) { l.max_decoded_bytes = 659; }), contains("`section 2: decoded bytes`"));
  CHECK_THAT(error([](Limits& l) { l.max_tokens = 9; }), contains("`section 1: tokens`"));
  CHECK_THAT(error([](Limits& l) { l.max_layers = 0; }), contains("`section 1: layer`"));
}

TEST_CASE("dkvc stream: mutated streams are refused or whole", "[codec][dkvc][stream]") {
  const char* const wanted = std::getenv("DECANT_FUZZ_MUTATIONS");
  const long rounds = wanted ? std::atol(wanted) : 20000;
  const Bytes base = small_stream();
  Bytes repaired = base;
  std::vector<std::size_t> entries;
  for (std::size_t i = 0; i < 4; ++i) {
    entries.push_back(static_cast<std::size_t>(entry_of(repaired, i) - repaired.data()));
  }
  repair_stream(repaired.data(), static_cast<index_t>(repaired.size()));
  CHECK(repaired == base);
  Limits limits;
  limits.max_total_bytes = 1 << 16;
  limits.max_decoded_bytes = 1 << 16;
  Cpu cpu;
  Mutator mutator(3);
  long accepted = 0;
  for (long round = 0; round < rounds; ++round) {
    Bytes stream = base;
    for (std::uint64_t changes = 1 + mutator.below(2); changes > 0; --changes) {
      if (mutator.below(3) == 0) {
        mutator.mutate(stream, base);
      } else {
        mutator.mutate_field(stream, entries[mutator.below(4)]);
      }
    }
    if (mutator.below(16) != 0) repair_stream(stream.data(), static_cast<index_t>(stream.size()));
    const Outcome outcome = receive_everything(cpu, stream, limits);
    if (outcome.fault != "") FAIL("round " << round << ": " << outcome.fault);
    accepted += outcome.accepted && stream != base;
  }
  CHECK(accepted > rounds / 50);
}

}  // namespace
}  // namespace dkvc_test
