#pragma once
// The benchmark harness: one row is one primitive at one shape, measured together with its physical limit and its peers,
// in turns, in one process, so that noise hits all of them. A bench file is a program:
//
//   #include "harness.hpp"
//
//   int main(int argc, char** argv) {
//     bench::Suite suite("attention", argc, argv);
//     for (const long n : suite.sizes({4096, 32768, 131072}))  // --quick keeps the first
//       suite.add({.primitive = "attend", .policy = "Dense", .shape = bench::shape("n", n, "d", 128, "dtype", "bf16")},
//                 [n](bench::Row& row) {  // called when the row's turn comes: allocate here, not before
//                   bench::Buffer<decant::bf16> keys(n * 128);  // on huge pages, as the limits are
//                   bench::fill(keys, 1);
//                   decant::Cpu cpu;
//                   row.measure({.ours = [&] { attend(cpu, ...); },
//                                .limit = bench::stream_read(cpu, keys.bytes()),
//                                .peers = {{"eigen", [&] { ... }}},
//                                .bytes = double(keys.bytes()),  // GB/s; .items: Mitems/s; .flops: GFLOP/s; else us
//                                .error = relative_error(...)});  // against the oracle, always
//                 });
//     return suite.run();
//   }
//
// `.reset` (untimed) runs before each call where a call spoils its input. Where there are several ways to reach a limit,
// they are the first peers (bench::copies), and `.limit_peers` says how many: the fastest counts. What follows from the
// time by arithmetic (tokens/s of a model so large) is a rate in `.derived`. A row that is not a time (a ratio, a quality)
// calls row.figure({...}). Peers live in bench/baselines/, which alone is compiled with -O3
// -march=native; a bench file guards them by DECANT_BENCH_EIGEN and DECANT_BENCH_OPENBLAS. bench/run.sh builds and runs
// every bench/<family>/*.cpp.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "decant/core/cpu.hpp"
#include "limits.hpp"

namespace bench {

/// "n=4096,d=128,dtype=bf16" from shape("n", 4096, "d", 128, "dtype", "bf16").
inline std::string shape() { return {}; }
template <class Value, class... Rest>
std::string shape(const char* key, const Value& value, const Rest&... rest) {
  std::string text = std::string(key) + "=";
  if constexpr (std::is_arithmetic_v<Value>) {
    char number[32];
    std::snprintf(number, sizeof number, "%.10g", static_cast<double>(value));
    text += number;
  } else {
    text += value;
  }
  const std::string tail = shape(rest...);
  return tail.empty() ? text : text + "," + tail;
}

/// Approximately normal values (variance 1), the same for the same seed.
template <class T>
void fill(Buffer<T>& buffer, std::uint64_t seed) {
  std::uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    float sum = 0;
    s = s * 6364136223846793005u + 1442695040888963407u;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>((s >> (16 * k)) & 0xffff);
    buffer[i] = T(1.7320508f * (sum / 65535.0f - 2.0f));
  }
}

struct Names {
  std::string primitive;
  std::string policy;
  std::string shape;
  std::string context = "cpu";
  std::string isa = decant::name(decant::best_isa());
};

using Call = std::function<void()>;

struct Measurement {
  Call ours;
  Limit limit = {};
  std::vector<std::pair<std::string, Call>> peers = {};
  std::size_t limit_peers = 0;  // so many peers, the first ones, are ways to reach `limit`, which is only a name then
  Call reset = {};
  std::function<double(const Call&)> clock = {};  // seconds of one call, where the host's clock does not tell (a GPU)
  double bytes = 0;
  double items = 0;
  double flops = 0;
  std::optional<double> error = {};
  std::vector<std::pair<std::string, double>> derived = {};  // name of a rate, and how many of it one call makes
};

struct Figure {
  std::string metric;
  std::string unit;
  double value = 0;
  std::vector<std::pair<std::string, double>> peers = {};
  bool higher_is_better = true;
  std::optional<double> error = {};
  std::vector<std::pair<std::string, double>> derived = {};  // further figures of the row: an interval's ends
};

namespace detail {

inline double seconds(const Call& call, long repeats) {
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < repeats; ++i) call();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(repeats);
}

inline double median(std::vector<double> v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

inline std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace detail

/// One row while it is measured. Exactly one of measure() and figure() is called.
class Row {
 public:
  Row(std::string family, const Names& names, bool quick, benchmark::State& state)
      : family_(std::move(family)), names_(names), quick_(quick), state_(state) {}

  void measure(const Measurement& m) {
    std::vector<Call> calls{m.ours};
    if (m.limit.call) calls.push_back(m.limit.call);
    for (const auto& peer : m.peers) calls.push_back(peer.second);

    // Short calls are repeated inside a sample, so that the clock and the turns cost nothing.
    const double sample = quick_ ? 5e-4 : 2e-3;
    std::vector<long> repeats(calls.size(), 1);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (m.reset) m.reset();
      calls[i]();  // warms caches, pages and workspaces
      if (m.reset || m.clock) continue;
      const double once = detail::seconds(calls[i], 1);
      repeats[i] = std::clamp(static_cast<long>(sample / std::max(once, 1e-9)), 1L, 1000000L);
    }

    const std::size_t rounds = quick_ ? 5 : 15;
    const double budget = quick_ ? 0.5 : 3.0;  // seconds per row, once three rounds are done
    std::vector<std::vector<double>> times(calls.size());
    double spent = 0;
    for (std::size_t round = 0; round < rounds && (round < 3 || spent < budget); ++round) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (m.reset) m.reset();
        times[i].push_back(m.clock ? m.clock(calls[i]) : detail::seconds(calls[i], repeats[i]));
        spent += times[i].back() * static_cast<double>(repeats[i]);
      }
    }

    const double ours = detail::median(times[0]);
    state_.SetIterationTime(ours);
    std::size_t next = 1;
    if (m.limit.call) {
      limit_ = m.limit.name;
      ratio_to_limit_ = detail::median(times[next++]) / ours;
    }
    for (const auto& peer : m.peers) peers_.emplace_back(peer.first, detail::median(times[next++]) / ours);
    for (std::size_t i = 0; i < m.limit_peers; ++i) {
      limit_ = m.limit.name;
      ratio_to_limit_ = i == 0 ? peers_[i].second : std::min(ratio_to_limit_, peers_[i].second);
    }
    if (m.bytes > 0) set("bandwidth", "GB/s", m.bytes / ours * 1e-9);
    else if (m.items > 0) set("rate", "Mitem/s", m.items / ours * 1e-6);
    else if (m.flops > 0) set("compute", "GFLOP/s", m.flops / ours * 1e-9);
    else set("time", "us", ours * 1e6);
    error_ = m.error;
    for (const auto& [name, each] : m.derived) derived_.emplace_back(name, each / ours);
  }

  void figure(const Figure& f) {
    state_.SetIterationTime(1e-9);
    set(f.metric, f.unit, f.value);
    for (const auto& peer : f.peers)
      peers_.emplace_back(peer.first, f.higher_is_better ? f.value / peer.second : peer.second / f.value);
    error_ = f.error;
    derived_ = f.derived;
  }

  /// The row as Google Benchmark's counters and as one JSON object.
  std::string publish() {
    if (metric_.empty()) throw std::logic_error("row measured nothing");
    state_.counters[unit_] = value_;
    if (!limit_.empty()) state_.counters["of_" + limit_] = ratio_to_limit_;
    for (const auto& peer : peers_) state_.counters["x_" + peer.first] = peer.second;
    if (error_) state_.counters["error"] = *error_;
    for (const auto& rate : derived_) state_.counters[rate.first] = rate.second;

    std::string json = "{";
    auto text = [&json](const char* key, const std::string& value) {
      json += std::string("\"") + key + "\":\"" + value + "\",";
    };
    text("family", family_);
    text("primitive", names_.primitive);
    text("policy", names_.policy);
    text("context", names_.context);
    text("isa", names_.isa);
    text("shape", names_.shape);
    text("metric", metric_);
    json += "\"value\":" + detail::number(value_) + ",";
    text("unit", unit_);
    json += limit_.empty() ? "\"limit\":null,\"ratio_to_limit\":null,"
                           : "\"limit\":\"" + limit_ + "\",\"ratio_to_limit\":" + detail::number(ratio_to_limit_) + ",";
    json += "\"error\":" + (error_ ? detail::number(*error_) : "null") + ",\"peers\":" + object(peers_);
    return json + (derived_.empty() ? "}" : ",\"derived\":" + object(derived_) + "}");
  }

 private:
  static std::string object(const std::vector<std::pair<std::string, double>>& figures) {
    std::string json = "{";
    for (std::size_t i = 0; i < figures.size(); ++i)
      json += (i ? ",\"" : "\"") + figures[i].first + "\":" + detail::number(figures[i].second);
    return json + "}";
  }
  void set(const std::string& metric, const std::string& unit, double value) {
    metric_ = metric;
    unit_ = unit;
    value_ = value;
  }

  std::string family_;
  Names names_;
  bool quick_;
  benchmark::State& state_;
  std::string metric_, unit_, limit_;
  double value_ = 0, ratio_to_limit_ = 0;
  std::vector<std::pair<std::string, double>> peers_, derived_;
  std::optional<double> error_;
};

/// The rows of one program. Beside Google Benchmark's own flags it takes --quick and --rows FILE (JSON, one row a line).
class Suite {
 public:
  Suite(std::string family, int argc, char** argv) : family_(std::move(family)) {
    for (int i = 0; i < argc; ++i) {
      if (std::strcmp(argv[i], "--quick") == 0) quick_ = true;
      else if (std::strcmp(argv[i], "--rows") == 0 && i + 1 < argc) rows_path_ = argv[++i];
      else arguments_.push_back(argv[i]);
    }
  }

  bool quick() const { return quick_; }

  std::vector<long> sizes(std::vector<long> all) const {
    if (quick_) all.resize(1);
    return all;
  }

  void add(const Names& names, const std::function<void(Row&)>& body) {
    const std::string name = family_ + "/" + names.primitive + "/" + names.policy + "/" + names.context + "/" +
                             names.isa + "/" + names.shape;
    benchmark::RegisterBenchmark(name.c_str(), [this, names, body](benchmark::State& state) {
      for (auto _ : state) {
        Row row(family_, names, quick_, state);
        try {
          body(row);
          rows_.push_back(row.publish());
        } catch (const std::exception& e) {
          failed_ = true;
          state.SkipWithError(e.what());
          break;
        }
      }
    })->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);
  }

  /// What main returns: not 0 if a row failed or could not be written.
  int run() {
    int argc = static_cast<int>(arguments_.size());
    benchmark::Initialize(&argc, arguments_.data());
    if (benchmark::ReportUnrecognizedArguments(argc, arguments_.data())) return 2;
    benchmark::RunSpecifiedBenchmarks();
    if (!rows_path_.empty()) {
      std::FILE* file = std::fopen(rows_path_.c_str(), "w");
      if (!file) {
        std::fprintf(stderr, "--rows: cannot write %s\n", rows_path_.c_str());
        return 2;
      }
      for (const std::string& row : rows_) std::fprintf(file, "%s\n", row.c_str());
      if (std::fclose(file) != 0) return 2;
    }
    return failed_ ? 1 : 0;
  }

 private:
  std::string family_;
  bool quick_ = false;
  bool failed_ = false;
  std::string rows_path_;
  std::vector<char*> arguments_;
  std::vector<std::string> rows_;
};

}  // namespace bench
