// SplitZip touches no byte beside its buffers: input and output stand between pages that may not be touched, at either
// end, on every path, at lengths and alignments where vectors do not fit.
#include "catch_compat.hpp"
#include "unit/codec/splitzip_data.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace codec_test;
using decant::bf16;
using decant::fp8_e4m3;
using decant::fp8_e5m2;

/// `bytes` bytes at the end, or at the beginning, of pages with a forbidden page on both sides.
class Guarded {
 public:
  Guarded(index_t bytes, bool at_end) : page_(sysconf(_SC_PAGESIZE)), pages_((bytes + page_ - 1) / page_ + 2) {
    void* const p = mmap(nullptr, at(pages_ * page_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED);
    base_ = static_cast<std::byte*>(p);
    REQUIRE(mprotect(base_, at(page_), PROT_NONE) == 0);
    REQUIRE(mprotect(base_ + (pages_ - 1) * page_, at(page_), PROT_NONE) == 0);
    data_ = at_end ? base_ + (pages_ - 1) * page_ - bytes : base_ + page_;
  }
  ~Guarded() { munmap(base_, at(pages_ * page_)); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }

 private:
  index_t page_, pages_;
  std::byte* base_;
  std::byte* data_;
};

template <class T>
void guarded(std::uint64_t seed) {
  Random random{seed};
  for (const decant::Isa isa : paths()) {
    decant::Cpu cpu;
    cpu.set_isa(isa);
    for (const bool at_end : {false, true}) {
      for (int draw = 0; draw < 60; ++draw) {
        const index_t lengths[] = {draw, 1000 + random.below(200), 20000 + random.below(3000)};
        for (const index_t n : lengths) {
          INFO("n " << n << " on " << decant::name(isa) << (at_end ? " at the end" : " at the beginning"));
          SplitZip<T> codec{.chunk = index_t{64} << random.below(8)};
          const std::vector<int> widths = code_widths<T>();
          codec.book = random_codebook<T>(random, widths[at(random.below(index_t(widths.size())))], draw % 2 == 0);
          // Some chunks near the number of escapes above which they are kept raw.
          const std::vector<T> source = mostly_coded<T>(random, n, codec.book, draw % 3 == 0 ? 0.04 : 0.002);
          const index_t bytes = n * index_t(sizeof(T));

          const Guarded x(bytes, at_end);
          if (n > 0) std::memcpy(x.data(), source.data(), at(bytes));
          const index_t room = max_encoded_size(codec, n);
          const Guarded out(room, at_end);
          index_t size = 0;
          encode(cpu, codec, View<const T, 1>(reinterpret_cast<const T*>(x.data()), n), {out.data(), room}, &size);

          const Guarded in(size, at_end);
          std::memcpy(in.data(), out.data(), at(size));
          const Guarded y(bytes, at_end);
          T* const elements = reinterpret_cast<T*>(y.data());
          decode(cpu, codec, View<const std::byte, 1>(in.data(), size), View<T, 1>(elements, n));
          REQUIRE((n == 0 || std::memcmp(y.data(), source.data(), at(bytes)) == 0));

          // A part, which may begin and end anywhere, in room of its size.
          const index_t first = random.below(n + 1), count = random.below(n - first + 1);
          const Guarded part(count * index_t(sizeof(T)), at_end);
          decode_range(cpu, codec, View<const std::byte, 1>(in.data(), size), first,
                       View<T, 1>(reinterpret_cast<T*>(part.data()), count));
          REQUIRE((count == 0 || std::memcmp(part.data(), source.data() + first, at(count) * sizeof(T)) == 0));
        }
      }
    }
  }
}

TEST_CASE("SplitZip stays inside its buffers: bf16") {
  guarded<bf16>(31);
}
TEST_CASE("SplitZip stays inside its buffers: e5m2") {
  guarded<fp8_e5m2>(32);
}
TEST_CASE("SplitZip stays inside its buffers: e4m3") {
  guarded<fp8_e4m3>(33);
}

}  // namespace
#endif
