// SplitZip's encode() and decode() in GB/s of raw elements, against the faster of memcpy and a copy past the caches of
// the same bytes; its ratio, and what bounds it: the ratio of a coder that reaches the exponents' entropy, and the
// share of elements without a code (1 where calibration finds that storing is best). Data: the laws of synthetic.hpp,
// calibrated on themselves, and keys and values of the example checkpoint by layer, each calibrated on other passages.
// Codes are of 4 bits, as the paper has them, or what calibrate() chooses ("auto").

#include <memory>
#include <optional>
#include <stdexcept>

#include "baselines/compressors.hpp"
#include "codec/synthetic.hpp"
#include "decant/codec/splitzip.hpp"
#include "decant/interop/openmp.hpp"
#include "harness.hpp"
#ifdef DECANT_BENCH_MODEL
#include "codec/model_kv.hpp"
#endif

namespace {

using decant::bf16;
using decant::index_t;
using decant::Isa;
using decant::View;
using decant::codec::FloatBits;
using decant::codec::SplitZip;

template <class T>
constexpr const char* dtype_name = sizeof(T) == 2                        ? "bf16"
                                   : std::is_same_v<T, decant::fp8_e5m2> ? "e5m2"
                                                                         : "e4m3";
template <class T>
constexpr baselines::FloatFormat format{FloatBits<T>::exponent, FloatBits<T>::mantissa};

/// Elements and the codec that is fitted to them.
template <class T>
struct Data {
  std::shared_ptr<bench::Buffer<T>> x;
  SplitZip<T> codec;
  View<const T, 1> view() const { return {x->data(), static_cast<index_t>(x->size())}; }
};

/// Makes them when a row's turn comes.
template <class T>
using Source = std::function<Data<T>()>;

enum class Code { four, automatic };

const char* name(Code code) {
  return code == Code::four ? "4" : "auto";
}

/// E4M3 has no exponents to save with 4 bits.
template <class T>
const std::vector<Code> codes = decant::codec::codes_of<T>(4) ? std::vector{Code::four, Code::automatic}
                                                              : std::vector{Code::automatic};

template <class T>
std::vector<std::uint64_t> counts_of(View<const T, 1> x) {
  decant::Cpu cpu;
  std::vector<std::uint64_t> counts(std::size_t{1} << FloatBits<T>::exponent);
  histogram(cpu, SplitZip<T>{}, x, View<std::uint64_t, 1>(counts));
  return counts;
}

template <class T>
SplitZip<T> fitted(Code code, View<const T, 1> sample) {
  decant::Cpu cpu;
  SplitZip<T> codec = calibrate(cpu, SplitZip<T>{}, sample);
  if (code == Code::four)
    codec.book = decant::codec::frequent_codebook<T>(View<const std::uint64_t, 1>(counts_of(sample)), 4, false);
  return codec;
}

template <class T>
Source<T> synthetic(bench::Law law, index_t bytes, Code code) {
  return [=] {
    Data<T> data{std::make_shared<bench::Buffer<T>>(static_cast<std::size_t>(bytes) / sizeof(T)), {}};
    fill(law, data.x->data(), static_cast<index_t>(data.x->size()));
    data.codec = fitted(code, data.view());
    return data;
  };
}

/// A peer with what it made of the elements; they come back from it, or it is none.
struct Peer {
  baselines::Compressor codec;
  std::shared_ptr<bench::Buffer<std::byte>> payload;
};

template <class T>
std::vector<Peer> peers_of(const Data<T>& data) {
  const std::size_t bytes = data.x->bytes();
  const auto* const x = reinterpret_cast<const std::byte*>(data.x->data());
  bench::Buffer<std::byte> room(baselines::compressed_room(bytes)), y(bytes);
  std::vector<Peer> peers;
  for (const baselines::Compressor& codec : baselines::compressors(format<T>)) {
    const std::size_t size = codec.encode(x, bytes, room.data());
    peers.push_back({codec, std::make_shared<bench::Buffer<std::byte>>(size)});
    std::memcpy(peers.back().payload->data(), room.data(), size);
    std::memset(y.data(), 0, bytes);
    codec.decode(peers.back().payload->data(), size, y.data(), bytes);
    if (std::memcmp(x, y.data(), bytes) != 0) throw std::logic_error(codec.name + " gives other elements back");
  }
  return peers;
}

struct Where {
  Isa isa = decant::best_isa();
  bool threads = false;
  bool peers = false;
};

template <class T>
void measure(bench::Row& row, const Source<T>& source, const Where& where, bool encoding) {
  const Data<T> data = source();
  const std::size_t bytes = data.x->bytes();
  const auto* const x = reinterpret_cast<const std::byte*>(data.x->data());
  const auto n = static_cast<index_t>(data.x->size());
  decant::Cpu cpu(where.threads ? decant::openmp() : decant::ParallelFor{});
  cpu.set_isa(where.isa);
  bench::Buffer<std::byte> out(static_cast<std::size_t>(max_encoded_size(data.codec, n)));
  bench::Buffer<T> y(data.x->size()), copied(data.x->size());
  index_t size = 0;
  const auto encode_ours = [&] {
    encode(cpu, data.codec, data.view(), {out.data(), static_cast<index_t>(out.size())}, &size);
    benchmark::ClobberMemory();
  };
  const auto decode_ours = [&] {
    decode(cpu, data.codec, {out.data(), size}, View<T, 1>(y.data(), n));
    benchmark::ClobberMemory();
  };
  encode_ours();
  decode_ours();
  const bool same = std::memcmp(x, y.data(), bytes) == 0;

  bench::Measurement m{.ours = encode_ours, .limit = {"copy", {}}};
  if (!encoding) m.ours = decode_ours;
  m.peers = bench::copies(cpu, copied.data(), x, bytes);
  m.limit_peers = m.peers.size();
  const std::vector<Peer> peers = where.peers ? peers_of(data) : std::vector<Peer>{};
  std::optional<bench::Buffer<std::byte>> room;
  if (encoding && !peers.empty()) room.emplace(baselines::compressed_room(bytes));
  for (const Peer& peer : peers) {
    m.peers.emplace_back(peer.codec.name, [&, bytes, encoding] {
      if (encoding)
        peer.codec.encode(x, bytes, room->data());
      else
        peer.codec.decode(peer.payload->data(), peer.payload->size(), reinterpret_cast<std::byte*>(y.data()), bytes);
      benchmark::ClobberMemory();
    });
  }
  m.bytes = static_cast<double>(bytes);
  m.error = same ? 0.0 : 1.0;
  row.measure(m);
}

template <class T>
void add_speed(bench::Suite& suite, const std::string& shape, const Source<T>& source, const Where& where) {
  for (const bool encoding : {true, false}) {
    suite.add({.primitive = encoding ? "encode" : "decode",
               .policy = "SplitZip",
               .shape = shape,
               .context = where.threads ? "openmp" : "cpu",
               .isa = decant::name(where.isa)},
              [=](bench::Row& row) { measure(row, source, where, encoding); });
  }
}

template <class T>
void add_ratio(bench::Suite& suite, const std::string& shape, const Source<T>& source) {
  suite.add({.primitive = "ratio", .policy = "SplitZip", .shape = shape}, [=](bench::Row& row) {
    const Data<T> data = source();
    decant::Cpu cpu;
    bench::Buffer<std::byte> out(static_cast<std::size_t>(max_encoded_size(data.codec, data.view().extent(0))));
    index_t size = 0;
    encode(cpu, data.codec, data.view(), {out.data(), static_cast<index_t>(out.size())}, &size);
    const auto bytes = static_cast<double>(data.x->bytes());
    bench::Figure figure{.metric = "ratio", .unit = "x", .value = bytes / static_cast<double>(size)};
    for (const Peer& peer : peers_of(data))
      figure.peers.emplace_back(peer.codec.name, bytes / static_cast<double>(peer.payload->size()));
    row.figure(figure);
  });
  suite.add({.primitive = "escape_rate", .policy = "SplitZip", .shape = shape}, [=](bench::Row& row) {
    const Data<T> data = source();
    const auto counts = counts_of(data.view());
    const double rate = decant::codec::escape_rate(View<const std::uint64_t, 1>(counts), data.codec.book);
    row.figure({.metric = "escapes", .unit = "share", .value = rate, .higher_is_better = false});
  });
}

template <class T>
void add_bound(bench::Suite& suite, const std::string& shape, const Source<T>& source) {
  suite.add({.primitive = "entropy_bound", .policy = "SplitZip", .shape = shape}, [=](bench::Row& row) {
    const auto counts = counts_of(source().view());
    constexpr int rest = FloatBits<T>::mantissa + 1, width = rest + FloatBits<T>::exponent;
    const double bits = rest + decant::codec::exponent_entropy(View<const std::uint64_t, 1>(counts));
    row.figure({.metric = "ratio", .unit = "x", .value = width / bits});
  });
}

/// The first code on every path, and with the peers on the best; the others on the best.
template <class T>
void add_law(bench::Suite& suite, bench::Law law, const std::vector<long>& sizes) {
  constexpr long most = 256L << 20;
  const long some = suite.quick() ? sizes[0] : 8L << 20;
  for (const Code code : codes<T>) {
    const auto shape = [&](long bytes) {
      return bench::shape("data", name(law), "dtype", dtype_name<T>, "code", name(code), "bytes", bytes);
    };
    for (const long bytes : sizes) {
      const Source<T> source = synthetic<T>(law, bytes, code);
      const bool first = code == codes<T>.front();
      for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        const bool best = isa == decant::best_isa();
        if (best || (first && isa < decant::best_isa()))
          add_speed<T>(suite, shape(bytes), source, {.isa = isa, .peers = first && best});
      }
      if (first && bytes == most) add_speed<T>(suite, shape(bytes), source, {.threads = true});
    }
    add_ratio<T>(suite, shape(some), synthetic<T>(law, some, code));
  }
  add_bound<T>(suite, bench::shape("data", name(law), "dtype", dtype_name<T>, "bytes", some),
               synthetic<T>(law, some, Code::automatic));
}

#ifdef DECANT_BENCH_MODEL
/// Two sets of passages: one to calibrate on, one to code.
struct ModelKv {
  std::vector<bench::LayerKv> sample, coded;
  explicit ModelKv(int passages)
      : sample(bench::model_kv(DECANT_BENCH_MODEL, 0, passages)),
        coded(bench::model_kv(DECANT_BENCH_MODEL, passages, passages)) {}
};

void add_model(bench::Suite& suite) {
  const bool quick = suite.quick();
  const auto kv = [quick]() -> const ModelKv& {
    static const ModelKv once(quick ? 1 : 8);
    return once;
  };
  for (const bool keys : {true, false}) {
    for (const long layer : suite.sizes({0, 1, 2, 3, 4, 5, 6, 7})) {
      const auto source_of = [=](Code code) -> Source<bf16> {
        return [=] {
          const auto part = keys ? &bench::LayerKv::keys : &bench::LayerKv::values;
          const std::vector<bf16>& coded = kv().coded.at(static_cast<std::size_t>(layer)).*part;
          Data<bf16> data{std::make_shared<bench::Buffer<bf16>>(coded.size()), {}};
          std::copy(coded.begin(), coded.end(), data.x->data());
          data.codec = fitted(code, View<const bf16, 1>(kv().sample.at(static_cast<std::size_t>(layer)).*part));
          return data;
        };
      };
      const char* const which = keys ? "model_keys" : "model_values";
      for (const Code code : codes<bf16>) {
        const std::string shape = bench::shape("data", which, "dtype", "bf16", "code", name(code), "layer", layer);
        add_speed<bf16>(suite, shape, source_of(code), {.peers = code == Code::four});
        add_ratio<bf16>(suite, shape, source_of(code));
      }
      add_bound<bf16>(suite, bench::shape("data", which, "dtype", "bf16", "layer", layer), source_of(Code::automatic));
    }
  }
}
#endif

}  // namespace

int main(int argc, char** argv) {
  bench::Suite suite("codec", argc, argv);
  constexpr long small = 256L << 10, medium = 8L << 20, large = 256L << 20;
  for (const bench::Law law : {bench::Law::normal, bench::Law::lognormal, bench::Law::outliers}) {
    add_law<bf16>(suite, law, suite.sizes({small, medium, large}));
    add_law<decant::fp8_e5m2>(suite, law, {suite.quick() ? small : medium});
    add_law<decant::fp8_e4m3>(suite, law, {suite.quick() ? small : medium});
  }
#ifdef DECANT_BENCH_MODEL
  add_model(suite);
#endif
  return suite.run();
}
