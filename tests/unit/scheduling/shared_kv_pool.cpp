// SharedKvPool: the published saving, what it counts, who builds, who frees, from one thread and from several.
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "catch_compat.hpp"
#include "decant/scheduling/shared_kv_pool.hpp"
#include "threads.hpp"

namespace shared_kv_pool_test {

using namespace decant;
using namespace decant::scheduling;

// Codes that count how many of them are alive and how often one was freed.
struct Codes {
  std::vector<int> values;
  std::atomic<int>* freed = nullptr;

  Codes() = default;
  Codes(std::vector<int> v, std::atomic<int>* f) : values(std::move(v)), freed(f) {}
  Codes(Codes&& other) noexcept : values(std::move(other.values)), freed(std::exchange(other.freed, nullptr)) {}
  Codes& operator=(Codes&& other) noexcept {
    values = std::move(other.values);
    freed = std::exchange(other.freed, nullptr);
    return *this;
  }
  ~Codes() {
    if (freed) ++*freed;
  }
};

using Pool = SharedKvPool<Codes, NoMutex>;

SegmentKey key(std::uint64_t content, std::uint32_t first = 0, std::uint32_t tokens = 100) {
  return {.content = content, .first_token = first, .tokens = tokens, .codec = 1, .first_layer = 0, .last_layer = 31};
}

TEST_CASE("shared_kv_saving: fifteen agents at a ratio of 2.91") {
  CHECK(shared_kv_saving(15, 2.91) == Approx(.9771).margin(.00005));
  CHECK(shared_kv_saving(1, 2, 0) == Approx(.5));
  CHECK(shared_kv_saving(4, 1e12, 1) == Approx(.5));
  CHECK_THROWS_AS(shared_kv_saving(0, 2), ArgumentError);
  CHECK_THROWS_AS(shared_kv_saving(1, 0), ArgumentError);
  CHECK_THROWS_AS(shared_kv_saving(1, 2, -1), ArgumentError);
}

TEST_CASE("SharedKvPool: the ledger is the closed form, and says nothing remains at the end") {
  std::atomic<int> freed{0};
  Pool pool;
  {
    Pool::Segment mine = pool.open(key(1));
    REQUIRE(mine.builds());
    CHECK_FALSE(pool.find_sealed(key(1)));
    mine.publish({{1, 2, 3}, &freed}, 100'000, 291'000);
    CHECK_FALSE(mine.builds());
    std::vector<Pool::Reader> readers;
    for (int i = 0; i < 15; ++i) {
      readers.emplace_back(pool, 10u);
      readers.back().append(pool.find_sealed(key(1)));
    }
    CHECK(pool.ledger().saving() == Approx(shared_kv_saving(15, 2.91)));
    for (Pool::Reader& r : readers) {
      r.set_tail(2910);
      CHECK(r.segments()[0].payload().values == std::vector<int>{1, 2, 3});
      CHECK(&r.segments()[0].payload() == &mine.payload());  // the same bytes for any number of readers
    }
    CHECK(pool.ledger() == SharedKvLedger{1, 100'000, 15 * 29'100, 1'500'000, 15 * 291'000});
    CHECK(pool.ledger().saving() == Approx(shared_kv_saving(15, 2.91, .1)));
    CHECK(pool.ledger().read_once() == 536'500);
    CHECK(pool.ledger().read_by_each() == 1'936'500);
    readers[0].set_tail(0);
    CHECK(pool.ledger().tails == 14 * 29'100);
    readers.pop_back();
    CHECK(pool.ledger().per_reader == 1'400'000);
    mine = {};
    CHECK(pool.ledger().segments == 1);
    CHECK(freed == 0);
  }
  CHECK(freed == 1);
  CHECK(pool.ledger() == SharedKvLedger{});
  CHECK(pool.open(key(1)).builds());
}

TEST_CASE("SharedKvPool: one builds; who gives up leaves it to the next") {
  std::atomic<int> freed{0};
  Pool pool;
  Pool::Segment first = pool.open(key(1)), second = pool.open(key(1));
  CHECK(first.builds());
  CHECK_FALSE(second.builds());
  CHECK(second.state() == Pool::State::building);
  CHECK_THROWS_AS(second.payload(), ArgumentError);
  CHECK_THROWS_AS(second.publish({}, 1, 1), ArgumentError);
  first = {};
  CHECK(second.state() == Pool::State::abandoned);
  Pool::Segment third = pool.open(key(1));
  CHECK(third.builds());
  third.publish({{7}, &freed}, 1, 1);
  CHECK_THROWS_AS(third.publish({}, 1, 1), ArgumentError);
  CHECK(second.state() == Pool::State::abandoned);
  second = third.share();
  third = {};
  CHECK(second.payload().values[0] == 7);
  // Any part of the key makes another segment.
  for (int part = 0; part < 6; ++part) {
    SegmentKey other = key(1);
    (part == 0 ? other.first_token
     : part == 1 ? other.tokens
     : part == 2 ? other.codec
     : part == 3 ? other.first_layer
                 : other.last_layer) += 1;
    if (part == 5) other = key(2);
    CHECK(pool.open(other).builds());
  }
}

TEST_CASE("SharedKvPool: readers take segments only at the positions for which they were built") {
  Pool pool, other;
  std::vector<Pool::Segment> segments;
  for (std::uint32_t i = 0; i < 100; ++i) {
    segments.push_back(pool.open(key(i, 100 * i)));
    REQUIRE(segments.back().builds());
    segments.back().publish({{static_cast<int>(i)}, nullptr}, 10, 30);
  }
  Pool::Reader reader(pool, 1);
  CHECK_THROWS_AS(reader.append(segments[1].share()), ArgumentError);
  CHECK_THROWS_AS(reader.append({}), ArgumentError);
  CHECK_THROWS_AS(reader.append(pool.open(key(1000))), ArgumentError);
  for (const Pool::Segment& s : segments) reader.append(pool.find_sealed(s.key()));
  CHECK(reader.shared_tokens() == 10'000);
  CHECK(reader.segments()[57].payload().values[0] == 57);
  CHECK_THROWS_AS(reader.append(pool.open(key(5, 500))), ArgumentError);
  reader.set_tail(1);
  pool.open(key(100, 10'000)).publish({}, 1, 1);
  CHECK_THROWS_AS(Pool::Reader(other, 1).append(segments[0].share()), ArgumentError);
}

TEST_CASE("SharedKvPool: many threads open, build, read and close", "[threads]") {
  using SafePool = SharedKvPool<Codes, std::mutex>;
  std::atomic<int> freed{0}, published{0}, wrong{0};
  {
    SafePool pool;
    Cpu cpu(real_threads(4));
    cpu.parallel_for(64, [&](index_t task) {
      for (std::uint64_t i = 0; i < 40; ++i) {
        const std::uint64_t content = (i + static_cast<std::uint64_t>(task)) % 5;
        SafePool::Segment segment = pool.open(key(content));
        if (segment.builds()) {
          if ((i + static_cast<std::uint64_t>(task)) % 7 == 0) continue;  // gives up
          segment.publish({std::vector<int>(50, static_cast<int>(content)), &freed}, 10, 30);
          ++published;
        }
        if (segment.state() != SafePool::State::sealed) continue;
        SafePool::Reader reader(pool, 2);
        reader.append(segment.share());
        reader.set_tail(i);
        for (const int v : reader.segments()[0].payload().values) wrong += v != static_cast<int>(content);
      }
    });
    CHECK(pool.ledger() == SharedKvLedger{});
  }
  CHECK(wrong == 0);
  CHECK(published > 0);
  CHECK(freed == published);
}

}  // namespace shared_kv_pool_test
