// Workspace: what it allocates is counted; a second identical call allocates nothing; what it refuses loses nothing.
#include "decant/core/workspace.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

#include "catch_compat.hpp"

namespace {

using decant::index_t;
using decant::Workspace;

/// Counts, checks sizes on return, and gives null on the `fail_at`-th allocation (counted from 1).
struct Counter {
  int allocations = 0;
  int live = 0;
  std::size_t bytes = 0;
  int fail_at = 0;

  decant::Allocator allocator() {
    return {[](void* state, std::size_t size) -> void* {
              auto& c = *static_cast<Counter*>(state);
              if (++c.allocations == c.fail_at) return nullptr;
              ++c.live;
              c.bytes += size;
              void* p = ::operator new (size, std::align_val_t{64});
              std::memset(p, 0xcd, size);
              return p;
            },
            [](void* state, void* memory, std::size_t size) {
              auto& c = *static_cast<Counter*>(state);
              --c.live;
              c.bytes -= size;
              ::operator delete (memory, std::align_val_t{64});
            },
            this};
  }
};

/// Takes and fills memory as a call would, with a nested scope, and checks that no piece overlaps another.
void call(Workspace& w, index_t n) {
  Workspace::Scope scope(w);
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; };
  std::vector<std::pair<unsigned char*, index_t>> pieces;
  const auto take = [&](index_t bytes) {
    auto* p = w.take<unsigned char>(bytes);
    REQUIRE(aligned(p));
    std::memset(p, static_cast<int>(pieces.size() + 1), static_cast<std::size_t>(bytes));
    pieces.emplace_back(p, bytes);
  };
  for (int i = 0; i < 20; ++i) take(n + i);
  const std::size_t before = w.used();
  {
    Workspace::Scope inner(w);
    unsigned char* p = w.take<unsigned char>(3 * n);
    std::memset(p, 0xff, static_cast<std::size_t>(3 * n));
  }
  REQUIRE(w.used() == before);
  take(1);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (index_t b = 0; b < pieces[i].second; ++b) {
      if (pieces[i].first[b] != i + 1) FAIL("piece " << i << " was overwritten");
    }
  }
}

TEST_CASE("the second identical call allocates nothing") {
  for (const index_t n : {1, 63, 64, 1000, 50000}) {
    Counter counter;
    {
      Workspace w(counter.allocator());
      REQUIRE(counter.allocations == 0);
      call(w, n);
      REQUIRE(counter.allocations > 0);
      const int first = counter.allocations;
      for (int i = 0; i < 3; ++i) call(w, n);
      call(w, n / 2);
      REQUIRE(counter.allocations == first);
      REQUIRE(counter.live == 1);
      REQUIRE(w.used() == 0);
    }
    REQUIRE(counter.live == 0);
    REQUIRE(counter.bytes == 0);
  }
}

TEST_CASE("what only an inner scope grew is kept for the second call, too") {
  Counter counter;
  Workspace w(counter.allocator());
  const auto nested = [&] {
    Workspace::Scope scope(w);
    w.take<char>(10);
    for (const index_t bytes : {100000, 1000000}) {
      Workspace::Scope inner(w);
      w.take<char>(bytes);
    }
  };
  nested();
  const int first = counter.allocations;
  nested();
  REQUIRE(counter.allocations == first);
  REQUIRE(counter.live == 1);
}

TEST_CASE("reserve(high_water()) makes even the first call free of allocations") {
  Workspace measured;
  call(measured, 777);
  Counter counter;
  Workspace w(counter.allocator());
  w.reserve(measured.high_water());
  REQUIRE(counter.allocations == 1);
  call(w, 777);
  REQUIRE(counter.allocations == 1);
  REQUIRE(w.high_water() == measured.high_water());
  w.reserve(10);  // there already
  REQUIRE(counter.allocations == 1);
  w.reserve(1000000);
  REQUIRE(counter.live == 1);
  Workspace::Scope scope(w);
  w.take<int>(1);
  REQUIRE_THROWS_WITH(w.reserve(1),
                      "decant::Workspace::reserve: argument `this`: expected no scope open, got memory in use");
}

TEST_CASE("high_water is the most that was in use at once") {
  Workspace w;
  {
    Workspace::Scope scope(w);
    w.take<char>(100);
    {
      Workspace::Scope inner(w);
      w.take<char>(1000);
    }
    w.take<double>(10);
    REQUIRE(w.used() == 128 + 128);
  }
  REQUIRE(w.used() == 0);
  REQUIRE(w.high_water() == 128 + 1024);
}

TEST_CASE("fixed memory is never exceeded, and a refusal loses nothing") {
  std::vector<unsigned char> memory(1000 + 64, 0xee);
  for (std::size_t offset = 0; offset < 64; offset += 13) {
    Workspace w(memory.data() + offset, 1000);
    {
      Workspace::Scope scope(w);
      float* a = w.take<float>(100);
      a[99] = 1;
      const std::size_t used = w.used();
      REQUIRE_THROWS_AS(w.take<float>(1000), decant::WorkspaceError);
      REQUIRE_THROWS_WITH(w.take<float>(1000), catch_compat::contains("argument `memory`: expected at least"));
      REQUIRE(w.used() == used);
      REQUIRE(a[99] == 1);
      auto* b = w.take<unsigned char>(64);
      REQUIRE(b >= memory.data() + offset);
      REQUIRE(b + 64 <= memory.data() + offset + 1000);
      REQUIRE(reinterpret_cast<std::uintptr_t>(b) % 64 == 0);
    }
    Workspace::Scope scope(w);
    REQUIRE_NOTHROW(w.take<unsigned char>(896));
  }
  Workspace tiny(memory.data() + 1, 3);
  Workspace::Scope scope(tiny);
  REQUIRE_THROWS_AS(tiny.take<char>(1), decant::WorkspaceError);
  REQUIRE_NOTHROW(tiny.take<char>(0));
}

TEST_CASE("an allocator that returns null at any time is reported and leaves the workspace usable") {
  for (int fail_at = 1; fail_at <= 8; ++fail_at) {
    Counter counter;
    counter.fail_at = fail_at;
    {
      Workspace w(counter.allocator());
      for (int attempt = 0; attempt < 3; ++attempt) {
        try {
          call(w, 3000);
        } catch (const decant::WorkspaceError& e) {
          REQUIRE(std::string(e.what()).find("argument `allocator`: expected") != std::string::npos);
        }
        REQUIRE(w.used() == 0);
      }
      const int before = counter.allocations;
      call(w, 3000);
      REQUIRE(counter.allocations - before <= 1);
    }
    REQUIRE(counter.live == 0);
  }
}

TEST_CASE("counts that are negative or absurd are refused") {
  Workspace w;
  Workspace::Scope scope(w);
  REQUIRE_THROWS_AS(w.take<float>(-1), decant::ArgumentError);
  REQUIRE_THROWS_AS(w.take<float>(index_t{1} << 60), decant::ArgumentError);
  REQUIRE(w.used() == 0);
  const auto v = w.take_view<float>(3, 5);
  REQUIRE((v.extent(0) == 3 && v.extent(1) == 5 && v.contiguous()));
}

}  // namespace
