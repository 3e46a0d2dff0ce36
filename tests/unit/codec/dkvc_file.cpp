// DKVC files on disk: written whole or not at all, mapped, read by several threads at once.
#include "decant/codec/dkvc_file.hpp"
#include "decant/codec/mapped_file.hpp"

#include <csignal>
#include <cstdlib>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>

#include "dkvc_data.hpp"
#include "sanitizers.hpp"
#include "temporary_folder.hpp"

namespace dkvc_test {
namespace {

Writer writer_of(index_t layers, index_t size, std::uint64_t seed) {
  Cpu cpu;
  Writer writer;
  writer.add_card(cpu, dkvc::write_card(sample_card()));
  for (index_t layer = 0; layer < layers; ++layer) {
    for (const Kind kind : {Kind::key, Kind::value}) {
      const auto name = static_cast<std::uint64_t>(2 * layer + static_cast<int>(kind));
      writer.add(cpu, SplitZip<bf16>{}, {layer, kind, 0, 10}, elements<bf16>(size, seed + name));
    }
  }
  return writer;
}

TEST_CASE("dkvc file: written, mapped, read", "[codec][dkvc][file]") {
  const TemporaryFolder folder;
  const Writer writer = writer_of(2, 5000, 1);
  dkvc::write_file(folder.file("cache"), writer);
  CHECK(folder.names() == std::vector<std::string>{"cache"});
  dkvc::MappedFile file(folder.file("cache"));
  const View<const std::byte, 1> bytes = file.bytes();
  CHECK(copy_of(bytes) == writer.write());
  // Replaced while it is mapped: the mapping keeps what it had.
  dkvc::write_file(folder.file("cache"), writer_of(1, 10, 2));
  CHECK(copy_of(bytes) == writer.write());
  // Moving moves the mapping.
  dkvc::MappedFile moved(std::move(file));
  CHECK(moved.bytes().data() == bytes.data());
  moved = dkvc::MappedFile(folder.file("cache"));
  Cpu cpu;
  Reader(moved.bytes()).verify(cpu);
}

TEST_CASE("dkvc file: what cannot be opened or written", "[codec][dkvc][file]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(dkvc::MappedFile(folder.file("none")), catch_compat::contains("No such file"));
  CHECK_THROWS_AS(dkvc::MappedFile(folder.path()), dkvc::IoError);
  CHECK_THROWS_AS(dkvc::write_file(folder.file("none/cache"), Writer()), dkvc::IoError);
  // An empty file maps, and is no DKVC file.
  ::close(::open(folder.file("empty").c_str(), O_CREAT | O_WRONLY, 0600));
  CHECK_THROWS_AS(Reader(dkvc::MappedFile(folder.file("empty")).bytes()), FormatError);
}

TEST_CASE("dkvc file: a write that fails leaves what was there", "[codec][dkvc][file]") {
  const TemporaryFolder folder;
  const Writer old = writer_of(1, 100, 1);
  dkvc::write_file(folder.file("cache"), old);
  // Files larger than 64 KiB are forbidden for a moment.
  rlimit before;
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 1 << 16;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  int code = 0;
  try {
    dkvc::write_file(folder.file("cache"), writer_of(2, 100000, 2));
  } catch (const dkvc::IoError& e) {
    code = e.code();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(code == EFBIG);
  CHECK(folder.names() == std::vector<std::string>{"cache"});
  const dkvc::MappedFile file(folder.file("cache"));
  CHECK(copy_of(file.bytes()) == old.write());
}

TEST_CASE("dkvc file: under its name there is never half of one", "[codec][dkvc][file]") {
  const TemporaryFolder folder;
  const Writer writers[2] = {writer_of(2, 300000, 1), writer_of(2, 300000, 2)};
  const Bytes files[2] = {writers[0].write(), writers[1].write()};
  std::uint64_t random = 5;
  for (int round = 0; round < (under_asan ? 8 : 30); ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        for (int i = 0;; ++i) dkvc::write_file(folder.file("cache"), writers[i % 2]);
      } catch (const decant::Error&) {
        ::_exit(1);
      }
    }
    REQUIRE(child > 0);
    ::usleep(static_cast<useconds_t>(random_word(random) % 15000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    if (::access(folder.file("cache").c_str(), F_OK) != 0) continue;
    const dkvc::MappedFile file(folder.file("cache"));
    const Bytes bytes = copy_of(file.bytes());
    if (bytes != files[0] && bytes != files[1]) FAIL("round " << round);
  }
}

TEST_CASE("dkvc file: several threads share one reader of one mapped file", "[codec][dkvc][file][threads]") {
  const TemporaryFolder folder;
  const index_t layers = 4;
  const index_t size = 60000;
  dkvc::write_file(folder.file("cache"), writer_of(layers, size, 9));
  const dkvc::MappedFile file(folder.file("cache"));
  const Reader reader(file.bytes());
  bool right[4] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Cpu cpu;
      reader.verify(cpu);
      bool all = dkvc::read_card(reader.card()) == sample_card();
      std::vector<bf16> y(at(size));
      for (index_t layer = 0; layer < layers; ++layer) {
        for (const Kind kind : {Kind::key, Kind::value}) {
          const dkvc::SectionRange found = reader.find(layer, kind);
          reader.decode(cpu, found.first, View<bf16, 1>(y));
          const auto name = static_cast<std::uint64_t>(2 * layer + static_cast<int>(kind));
          all = all && found.count == 1 && same_bits(y, elements<bf16>(size, 9 + name));
        }
      }
      right[t] = all;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool ok : right) CHECK(ok);
}

}  // namespace
}  // namespace dkvc_test
