// KV caches between two processes: every bit arrives or an error does, whoever is killed and whenever.
#include "kv_transfer.hpp"

#include <sys/wait.h>

#include <csignal>

#include "catch_compat.hpp"
#include "model_files.hpp"
#include "socket.hpp"

namespace runtime_test {
namespace {

using decant::bf16;
using runtime::both_kinds;
using runtime::KVCodecs;
using runtime::KVRows;
using runtime::KVSender;
using runtime::KVShape;
using runtime::ReceivedKV;
using runtime::Socket;
namespace dkvc = runtime::dkvc;

/// Whatever the card says is welcome.
const auto anything = [](const dkvc::CacheCard&) {};

struct Pair {
  Pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throw std::runtime_error("socketpair failed");
    sending = Socket(fds[0]);
    receiving = Socket(fds[1]);
    runtime::limit_waits(sending, 60);
    runtime::limit_waits(receiving, 60);
  }
  Socket sending, receiving;
};

struct Case {
  KVShape shape;
  KVRows rows;
  std::optional<KVCodecs<bf16>> codecs;
  std::int32_t next = 0;
};

/// Small caches of all sorts: numbers, arbitrary bits, constants; plain, with default and with fitted codecs.
Case random_case(std::uint64_t seed) {
  const decant::Philox random{seed};
  const auto below = [&](std::uint32_t draw, std::uint32_t n) { return random(draw, 1000).word[0] % n; };
  Case c;
  c.shape = {DType::bf16, 1 + below(0, 4), 1 + below(1, 40), 1 + below(2, 3), 1 + below(3, 48), 1 + below(4, 48)};
  const std::uint32_t sort = below(5, 4);
  for (index_t tensor = 0; tensor < 2 * c.shape.layers; ++tensor) {
    const dkvc::Kind kind = both_kinds[tensor % 2];
    std::vector<bf16> rows(static_cast<std::size_t>(c.shape.elements(kind)));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto word = random(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(tensor)).word[0];
      const auto bits = static_cast<std::uint16_t>(word);
      rows[i] = sort == 0   ? bf16::from_bits(bits)
                : sort == 1 ? bf16::from_bits(0x7fc1)  // NaN with a payload
                : sort == 2 ? bf16(word % 3 == 0 ? 0.0f : 1e-3f * static_cast<float>(bits))
                            : bf16(decant::Philox::to_unit(word) - 0.5f);
    }
    (kind == dkvc::Kind::key ? c.rows.keys : c.rows.values).push_back(std::move(rows));
  }
  if (below(6, 3) > 0) c.codecs = KVCodecs<bf16>{};
  if (below(6, 3) > 1) {
    decant::Cpu cpu;
    c.codecs = runtime::fit_codecs<bf16>(cpu, c.shape.layers, [&](index_t layer, dkvc::Kind kind) {
      return decant::View<const bf16, 1>(c.rows.of(layer, kind));
    });
  }
  c.next = static_cast<std::int32_t>(below(7, 1u << 31));
  return c;
}

void push_layers(KVSender& sender, const KVRows& rows) {
  for (std::size_t l = 0; l < rows.keys.size(); ++l) sender.push(rows.keys[l], rows.values[l]);
}

void send(int fd, const Case& c) {
  KVSender sender(fd, runtime::card_of(c.shape), c.codecs);
  push_layers(sender, c.rows);
  sender.finish(c.next);
}

bool same_bits(const std::vector<std::vector<bf16>>& a, const std::vector<std::vector<bf16>>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) {
    same = a[i].size() == b[i].size() && std::memcmp(a[i].data(), b[i].data(), 2 * a[i].size()) == 0;
  }
  return same;
}

bool arrived(const ReceivedKV& received, const Case& c) {
  return runtime::shape_of(received.card) == c.shape && received.next == c.next &&
         same_bits(received.rows.keys, c.rows.keys) && same_bits(received.rows.values, c.rows.values);
}

/// f in a process of its own, whose exit code is 0 if f returns.
template <class F>
pid_t in_child(F&& f) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 1;
  try {
    f();
    code = 0;
  } catch (...) {
  }
  std::_Exit(code);
}

int status_of(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

/// The bytes that a sender sends.
std::string stream_of(const Case& c) {
  Pair pair;
  std::string bytes;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n; (n = ::read(pair.receiving.fd(), buffer, sizeof buffer)) > 0;)
      bytes.append(buffer, static_cast<std::size_t>(n));
  });
  const bool answered = ::send(pair.receiving.fd(), runtime::receipt, sizeof runtime::receipt, 0) == 4;
  send(pair.sending.fd(), c);
  pair.sending.close();
  reader.join();
  REQUIRE(answered);
  return bytes;
}

/// A small cache in which all sections are coded.
Case small_case() {
  Case c;
  c.shape = {DType::bf16, 2, 20, 2, 8, 8};
  c.codecs = KVCodecs<bf16>{};
  for (int l = 0; l < 2; ++l) {
    for (auto* side : {&c.rows.keys, &c.rows.values}) {
      side->emplace_back();
      for (std::uint32_t i = 0; i < 320; ++i) side->back().push_back(bf16(decant::Philox{1}.uniform(i) - 0.5f));
    }
  }
  c.next = 77;
  return c;
}

/// What the receiver says to these bytes and the end of the stream behind them.
std::string verdict(const std::string& bytes) {
  Pair pair;
  std::thread writer([&] {
    ::send(pair.sending.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(pair.sending.fd(), SHUT_WR);
  });
  std::string said = "no error";
  try {
    runtime::receive_kv(pair.receiving.fd(), anything);
  } catch (const decant::Error& error) {
    said = error.what();
  }
  pair.receiving.close();
  writer.join();
  return said;
}

TEST_CASE("kv transfer: 1,000 random caches from another process arrive bit for bit", "[kv_transfer]") {
  constexpr std::uint64_t caches = 1000;
  Pair pair;
  const pid_t sender = in_child([&] {
    pair.receiving.close();
    for (std::uint64_t seed = 0; seed < caches; ++seed) send(pair.sending.fd(), random_case(seed));
  });
  pair.sending.close();
  std::uint64_t good = 0;
  std::string error = "no error";
  try {
    for (std::uint64_t seed = 0; seed < caches; ++seed) {
      const ReceivedKV received = runtime::receive_kv(pair.receiving.fd(), anything);
      good += arrived(received, random_case(seed)) ? 1 : 0;
    }
  } catch (const std::exception& e) {
    error = e.what();
  }
  pair.receiving.close();
  CHECK(error == "no error");
  CHECK(good == caches);
  CHECK(status_of(sender) == 0);
}

TEST_CASE("kv transfer: over TCP and Unix sockets, and again over the same connection", "[kv_transfer]") {
  const TemporaryFolder folder;
  for (const std::string& address : {std::string("127.0.0.1:0"), "unix:" + folder.file("s")}) {
    runtime::Listener listener(address);
    const pid_t sender = in_child([&] {
      const Socket s = runtime::connect_to(listener.address(), 60);
      for (std::uint64_t seed = 0; seed < 3; ++seed) send(s.fd(), random_case(seed));
    });
    const Socket peer = listener.accept(60);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CHECK(arrived(runtime::receive_kv(peer.fd(), anything), random_case(seed)));
    }
    CHECK(status_of(sender) == 0);
  }
  CHECK_THROWS_AS(runtime::Listener("no address"), decant::ArgumentError);
  CHECK_THROWS_AS(runtime::connect_to("unix:" + folder.file("nobody"), 0), decant::Error);
  runtime::Listener lonely("unix:" + folder.file("lonely"));
  CHECK_THROWS_AS(lonely.accept(0.01), decant::Error);
}

TEST_CASE("kv transfer: a sender killed at any moment before its last frame leaves an error, never a cache",
          "[kv_transfer]") {
  Case c = random_case(3);
  for (int run = 0; run < 100; ++run) {
    Pair pair;
    const pid_t sender = in_child([&] {
      pair.receiving.close();
      // Slow, so that the blow falls anywhere; and it never comes to the closing frame.
      KVSender slow(pair.sending.fd(), runtime::card_of(c.shape), c.codecs, run % 2 == 0 ? 2e6 : 0);
      push_layers(slow, c.rows);
      ::pause();
    });
    pair.sending.close();
    std::thread killer([&] {
      const auto delay = decant::Philox{9}(static_cast<std::uint32_t>(run)).word[0] % 12000;
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      ::kill(sender, SIGKILL);
    });
    std::string said = "a cache";
    try {
      runtime::receive_kv(pair.receiving.fd(), anything);
    } catch (const decant::Error& error) {
      said = error.what();
    }
    killer.join();
    INFO(said);
    CHECK(WIFSIGNALED(status_of(sender)));
    CHECK_THAT(said, catch_compat::contains("the end of a cut stream"));
  }
}

TEST_CASE("kv transfer: a receiver killed at any moment leaves the sender with an error", "[kv_transfer]") {
  const Case c = random_case(3);
  const std::size_t total = stream_of(c).size();
  for (int run = 0; run < 100; ++run) {
    Pair pair;
    const std::size_t most = decant::Philox{11}(static_cast<std::uint32_t>(run)).word[0] % (total + 1);
    const pid_t receiver = in_child([&] {
      pair.sending.close();
      std::vector<char> bytes(most + 1);
      for (std::size_t have = 0; have < most;) {
        const ssize_t n = ::read(pair.receiving.fd(), bytes.data(), most - have);
        if (n <= 0) break;
        have += static_cast<std::size_t>(n);
      }
      ::kill(::getpid(), SIGKILL);
    });
    pair.receiving.close();
    std::string said = "sent";
    try {
      send(pair.sending.fd(), c);
    } catch (const decant::Error& error) {
      said = error.what();
    }
    INFO(said);
    CHECK(said != "sent");
    CHECK(WIFSIGNALED(status_of(receiver)));
  }
}

TEST_CASE("kv transfer: cut after any byte, and with any byte changed, a stream is refused", "[kv_transfer]") {
  const std::string whole = stream_of(small_case());
  REQUIRE(verdict(whole) == "no error");
  std::size_t refused = 0;
  for (std::size_t size = 0; size < whole.size(); ++size)
    refused += verdict(whole.substr(0, size)) != "no error" ? 1 : 0;
  CHECK(refused == whole.size());
  refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    refused += verdict(flipped) != "no error" ? 1 : 0;
  }
  CHECK(refused == whole.size());
}

/// Both sides' words when `send_as` sends what `accept` receives.
template <class SendAs, class Accept>
std::pair<std::string, std::string> words(SendAs&& send_as, Accept&& accept) {
  Pair pair;
  std::pair<std::string, std::string> said = {"no error", "no error"};
  std::thread sender([&] { said.first = error_of<decant::Error>([&] { send_as(pair.sending.fd()); }); });
  said.second = error_of<decant::Error>([&] { runtime::receive_kv(pair.receiving.fd(), accept); });
  pair.receiving.close();
  sender.join();
  return said;
}

TEST_CASE("kv transfer: streams in good order that are no whole cache are refused", "[kv_transfer]") {
  const Case c = small_case();
  const auto card = runtime::card_of(c.shape);
  const auto with_card = [&](const dkvc::CacheCard& other) {
    return [&c, other](int fd) {
      KVSender sender(fd, other, c.codecs);
      push_layers(sender, c.rows);
      sender.finish(c.next);
    };
  };
  CHECK(words(with_card(card), anything).second == "no error");
  const auto refusal = words(with_card(card), [](const dkvc::CacheCard&) { throw decant::FormatError("not mine"); });
  CHECK(refusal.second == "not mine");
  CHECK(refusal.first != "no error");

  auto other = card;
  other.layers = 3;
  CHECK_THAT(words(with_card(other), anything).second, catch_compat::contains("6 tensors and a token, got 4 tensors"));
  other.layers = 1;
  CHECK_THAT(words(with_card(other), anything).second, catch_compat::contains("tensor 2"));
  other = card;
  other.kv_heads = 3;
  CHECK_THAT(words(with_card(other), anything).second, catch_compat::contains("tensor 0"));
  other = card;
  other.token_count = 19;
  CHECK_THAT(words(with_card(other), anything).second, catch_compat::contains("tensor 0"));
  other = card;
  other.dtype = DType::f16;
  CHECK_THAT(words(with_card(other), anything).second, catch_compat::contains("expected bf16, got f16"));

  const auto without_token = [&](int fd) {
    decant::Cpu cpu;
    dkvc::FrameWriter writer(fd);
    const std::vector<std::byte> bytes = dkvc::write_card(card);
    writer.add_card(cpu, bytes);
    for (index_t l = 0; l < 2; ++l) {
      for (const dkvc::Kind kind : both_kinds) {
        writer.add(cpu, c.codecs->of(kind), {l, kind, 0, 20}, decant::View<const bf16, 1>(c.rows.of(l, kind)));
      }
    }
    writer.finish();
  };
  CHECK_THAT(words(without_token, anything).second, catch_compat::contains("tensors and a token"));
  const auto without_card = [&](int fd) {
    dkvc::FrameWriter writer(fd);
    writer.finish();
  };
  CHECK_THAT(words(without_card, anything).second, catch_compat::contains("a card first"));
}

TEST_CASE("kv transfer: a link carries its bandwidth and no more", "[kv_transfer]") {
  const auto start = runtime::Clock::now();
  runtime::Link link(1e6);
  for (int i = 0; i < 10; ++i) link.carry(start, 2000);  // 20 ms in all, whatever the sleeps overshoot by
  const double seconds = std::chrono::duration<double>(runtime::Clock::now() - start).count();
  CHECK(seconds >= 0.0199);
}

TEST_CASE("kv transfer: a listener takes the place of a killed one, not of a living one", "[kv_transfer]") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder.path() + "/kv.sock";
  const pid_t child = ::fork();
  if (child == 0) {
    const runtime::Listener killed(address);
    std::_Exit(0);  // without its destructor
  }
  ::waitpid(child, nullptr, 0);
  const runtime::Listener listener(address);
  const Socket peer = runtime::connect_to(listener.address(), 5);
  CHECK(peer.fd() >= 0);
  CHECK_THROWS_WITH(runtime::Listener(address), catch_compat::contains("bind"));
}

}  // namespace
}  // namespace runtime_test
