// kv-transfer: prefill in one process, decode in another. The KV cache goes from one to the other over a socket, packed
// with SplitZip, while later layers are still being computed, and arrives bit for bit.
//   kv-transfer --model examples/model --prompt-file examples/model/prompt.txt  both sides here, checked and measured
//   kv-transfer --synthetic 8,8,1024,128 --bandwidth 1e8                        random rows, without a model
//   kv-transfer --model M --listen 127.0.0.1:7070                               the decoding side
//   kv-transfer --model M --prompt-file P --connect 127.0.0.1:7070              the prefilling side
// Nothing is encrypted, and nobody proves who they are: for networks that you trust.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <decant/core/random.hpp>
#include <decant/stack.hpp>

#include "generate.hpp"
#include "kv_transfer.hpp"
#include "options.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "socket.hpp"

namespace {

using namespace runtime;

struct Options {
  std::string model;
  std::string prompt_file;
  std::string prompt;
  index_t max_tokens = 100;
  std::string listen;
  std::string connect;
  bool self = false;
  std::vector<std::string> synthetic;
  std::string codec = "splitzip";
  double bandwidth = 1e8;
  double timeout = 60;
  int runs = 3;
  std::string json;
  bool progress = false;
};

using Engine16 = Llama<decant::Stack<>, DenseCache<bf16>>;

// --- what is transferred ---------------------------------------------------------------------------------------------

/// A cache: what says which, how it is made in the sending process, and how it is coded.
struct Job {
  std::string name;
  dkvc::CacheCard card;
  KVCodecs<bf16> codecs;
  /// Pushes all layers and returns the token that follows.
  std::function<Token(KVSender&)> produce;
};

Token most_likely(View<const float, 2> logits) {
  return Sampler()(logits[0], 0);
}

/// Prefills and calls f(keys, values) for each layer as soon as it has run; returns the next token.
template <class F>
Token prefill(const Model& model, const Tokens& prompt, F&& f) {
  decant::Cpu cpu;
  Engine16 llama(cpu, model.config, model.weights, {});
  llama.on_layer([&](index_t layer) {
    const auto cache = llama.cache(layer).view();
    f(rows_of<bf16>(cache, dkvc::Kind::key), rows_of<bf16>(cache, dkvc::Kind::value));
  });
  return most_likely(llama.prefill(prompt, 0));
}

/// The codecs are fitted to the first tokens of the prompt, as an engine would once per model to any text.
Job model_job(const Model& model, const Tokens& prompt) {
  Job job;
  job.name = std::to_string(prompt.size()) + " tokens";
  job.card = card_of(model.config, model.checkpoint, DType::bf16, static_cast<index_t>(prompt.size()));
  for (const Token t : prompt) job.card.token_ids.push_back(static_cast<std::uint32_t>(t));
  KVRows sample;
  const auto length = static_cast<std::ptrdiff_t>(std::min<std::size_t>(prompt.size(), 256));
  prefill(model, {prompt.begin(), prompt.begin() + length}, [&](std::vector<bf16> keys, std::vector<bf16> values) {
    sample.keys.push_back(std::move(keys));
    sample.values.push_back(std::move(values));
  });
  decant::Cpu cpu;
  job.codecs = fit_codecs<bf16>(cpu, model.config.layers, [&](index_t layer, dkvc::Kind kind) {
    return View<const bf16, 1>(sample.of(layer, kind));
  });
  job.produce = [&model, prompt](KVSender& sender) {
    return prefill(model, prompt, [&](std::vector<bf16> keys, std::vector<bf16> values) {
      sender.push(std::move(keys), std::move(values));
    });
  };
  return job;
}

KVShape parse_synthetic(const std::string& text) {
  constexpr const char* expected = "LAYERS,HEADS,TOKENS,DIM, each at least 1, up to 2^32 elements";
  const std::vector<std::string> parts = detail::split(text, ",");
  if (parts.size() != 4) detail::refuse("--synthetic", expected, text);
  index_t n[4];
  double elements = 2;
  for (int i = 0; i < 4; ++i) {
    const double value = detail::parse_number(parts[static_cast<std::size_t>(i)], "--synthetic", expected);
    elements *= value;
    n[i] = static_cast<index_t>(value);
    if (value != static_cast<double>(n[i]) || n[i] < 1) detail::refuse("--synthetic", expected, text);
  }
  if (elements > 0x1p32 || n[0] > 1024) detail::refuse("--synthetic", expected, text);
  return {DType::bf16, n[0], n[2], n[1], n[3], n[3]};
}

/// Normal numbers whose scale differs by channel as in real caches: exp(1.15 N(0, 1)).
std::vector<bf16> random_rows(const KVShape& shape, std::uint32_t number) {
  const decant::Philox random{7};
  const auto normal = [&](index_t i, std::uint32_t step) {
    const auto words = random(static_cast<std::uint32_t>(i), step, number);
    const double radius = std::sqrt(-2 * std::log(static_cast<double>(decant::Philox::to_unit(words.word[0]))));
    return radius * std::cos(6.283185307179586 * static_cast<double>(decant::Philox::to_unit(words.word[1])));
  };
  const index_t channels = shape.kv_heads * shape.key_dim;
  std::vector<double> scales;
  for (index_t c = 0; c < channels; ++c) scales.push_back(std::exp(1.15 * normal(c, 0)));
  std::vector<bf16> rows;
  rows.reserve(static_cast<std::size_t>(shape.tokens * channels));
  for (index_t i = 0; i < shape.tokens * channels; ++i) {
    rows.push_back(bf16(static_cast<float>(scales[static_cast<std::size_t>(i % channels)] * normal(i, 1))));
  }
  return rows;
}

KVRows random_cache(const KVShape& shape) {
  KVRows rows;
  for (index_t layer = 0; layer < shape.layers; ++layer) {
    rows.keys.push_back(random_rows(shape, static_cast<std::uint32_t>(2 * layer)));
    rows.values.push_back(random_rows(shape, static_cast<std::uint32_t>(2 * layer + 1)));
  }
  return rows;
}

/// `rows` must outlive the job.
Job synthetic_job(const std::string& text, const KVShape& shape, const KVRows& rows) {
  Job job;
  job.name = text;
  job.card = card_of(shape);
  decant::Cpu cpu;
  job.codecs = fit_codecs<bf16>(
      cpu, 1, [&](index_t layer, dkvc::Kind kind) { return View<const bf16, 1>(rows.of(layer, kind)); });
  job.produce = [&rows](KVSender& sender) {
    for (std::size_t l = 0; l < rows.keys.size(); ++l) sender.push(rows.keys[l], rows.values[l]);
    return Token{0};
  };
  return job;
}

// --- the two sides ---------------------------------------------------------------------------------------------------

/// Returns the stored bytes.
index_t send(int fd, const Job& job, bool coded, double bandwidth) {
  KVSender sender(fd, job.card, coded ? std::optional(job.codecs) : std::nullopt, bandwidth);
  sender.finish(job.produce(sender));
  return sender.stored_bytes();
}

/// expected: this side's model. most: tokens of a prompt.
ReceivedKV receive(int fd, const dkvc::CacheCard& expected, index_t most) {
  try {
    return receive_kv(fd, [&](const dkvc::CacheCard& card) {
      const dkvc::Mismatch m = check(card, expected);
      if (m != dkvc::Mismatch::none) bad_format("the sender's cache", "one that fits this model", dkvc::name(m));
      const bool whole = card.positions.empty() && card.token_count >= 1 && card.token_count <= most;
      if (!whole) {
        bad_format("the sender's prompt", "a row for each of 1 to " + std::to_string(most) + " tokens",
                   std::to_string(card.token_count));
      }
    });
  } catch (const decant::Error& error) {
    throw decant::Error(std::string("no cache was received: ") + error.what());
  }
}

/// The text after a cache that came from elsewhere: `count` tokens, the first of which came with it.
Tokens decode_text(const Model& model, const KVRows& rows, index_t prompt, Token next, index_t count) {
  const Config& c = model.config;
  std::vector<DenseCache<bf16>> caches;
  for (index_t layer = 0; layer < c.layers; ++layer) {
    caches.emplace_back(c, prompt + count, CacheOptions{});
    const auto to = caches.back().view();
    const bf16* keys = rows.of(layer, dkvc::Kind::key).data();
    const bf16* values = rows.of(layer, dkvc::Kind::value).data();
    for (index_t t = 0; t < prompt; ++t) {
      for (index_t h = 0; h < c.kv_heads; ++h, keys += c.head_dim, values += c.head_dim) {
        std::copy_n(keys, c.head_dim, to.key(0, h, t));
        std::copy_n(values, c.head_dim, to.value(0, h, t));
      }
    }
    to.lengths[0] = static_cast<std::int32_t>(prompt);
  }
  decant::Cpu cpu;
  Engine16 llama(cpu, c, model.weights, {});
  llama.adopt(prompt, std::move(caches));
  Tokens tokens = {next};
  while (static_cast<index_t>(tokens.size()) < count) tokens.push_back(most_likely(llama.decode({tokens.back()})));
  return tokens;
}

void require_context(const Model& model, index_t prompt, index_t count) {
  decant::require(prompt + count - 1 <= model.config.context, "runtime", "the prompt and --max-tokens",
                  "at most the model's context of " + std::to_string(model.config.context) + " tokens",
                  prompt + count - 1);
}

bool identical(const KVRows& a, const KVRows& b) {
  const auto same = [](const std::vector<bf16>& x, const std::vector<bf16>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(bf16)) == 0;
  };
  return std::equal(a.keys.begin(), a.keys.end(), b.keys.begin(), b.keys.end(), same) &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), same);
}

// --- both sides, measured --------------------------------------------------------------------------------------------

/// What runs f in a process of its own; killed with its owner.
class Child {
 public:
  template <class F>
  explicit Child(F&& f) : id_(::fork()) {
    if (id_ < 0) throw decant::Error("cannot fork");
    if (id_ > 0) return;
    int code = 1;
    try {
      f();
      code = 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "the prefilling side: %s\n", error.what());
    }
    std::_Exit(code);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  /// decant::Error when f failed or was killed.
  void wait() {
    int status = 0;
    ::waitpid(std::exchange(id_, 0), &status, 0);
    if (status != 0) throw decant::Error("the prefilling side failed");
  }

 private:
  pid_t id_;
};

/// One transfer from a process of its own.
ReceivedKV transfer(const Job& job, bool coded, const Options& o) {
  Listener listener("127.0.0.1:0");
  Socket sending = connect_to(listener.address(), o.timeout);
  Socket receiving = listener.accept(o.timeout);
  Child prefilling([&] {
    receiving.close();
    send(sending.fd(), job, coded, o.bandwidth);
  });
  sending.close();
  ReceivedKV received = receive(receiving.fd(), job.card, index_t{job.card.token_count});
  prefilling.wait();
  return received;
}

/// What coding costs by itself, on one thread, checksums included: bytes of plain elements per second.
struct CodecSpeed {
  double encode = 0;
  double decode = 0;
  double ratio = 1;
};

CodecSpeed measure_codec(const Job& job, const KVRows& rows) {
  decant::Cpu cpu;
  CodecSpeed best;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (int run = 0; run < 3; ++run) {
    double encoding = 0, decoding = 0, plain = 0, stored = 0;
    dkvc::SectionData data;
    std::vector<bf16> decoded;
    for (index_t layer = 0; layer < index_t{job.card.layers}; ++layer) {
      for (const dkvc::Kind kind : both_kinds) {
        const std::vector<bf16>& x = rows.of(layer, kind);
        decoded.resize(x.size());
        const dkvc::Place place{layer, kind, 0, index_t{job.card.token_count}};
        auto start = Clock::now();
        encode(cpu, job.codecs.of(kind), place, View<const bf16, 1>(x), data);
        encoding += seconds_since(start);
        start = Clock::now();
        dkvc::decode(cpu, data.section, data.stored(), View<bf16, 1>(decoded));
        decoding += seconds_since(start);
        plain += static_cast<double>(x.size() * sizeof(bf16));
        stored += static_cast<double>(data.section.stored_size);
      }
    }
    best.encode = std::fmax(best.encode, plain / encoding);
    best.decode = std::fmax(best.decode, plain / decoding);
    best.ratio = plain / stored;
  }
  return best;
}

struct Result {
  std::string name;
  index_t kv_bytes = 0;
  CodecSpeed codec;
  std::vector<double> plain_seconds;
  std::vector<double> coded_seconds;
  std::optional<Tokens> text;

  double plain() const { return median(plain_seconds); }
  double coded() const { return median(coded_seconds); }
  double speedup() const { return plain() / coded(); }
  /// The bandwidths below which coding pays: when the three steps follow each other, and when they overlap.
  double break_even_serial() const { return (1 - 1 / codec.ratio) / (1 / codec.encode + 1 / codec.decode); }
  double break_even_pipelined() const { return std::fmin(codec.encode, codec.decode); }
  /// What overlapped steps should give on a link of this bandwidth; 0 where that is not known, as with a prefill.
  double expected_speedup(double bandwidth) const {
    return bandwidth <= 0 || text ? 0 : std::fmin(codec.ratio, break_even_pipelined() / bandwidth);
  }
};

/// Both ways in turn, so that what else the machine does falls on both. Raises decant::Error when anything that arrives
/// differs from `rows`, or continues with another text than `text`.
Result measure(const Job& job, const KVRows& rows, const Model* model, const Tokens& text, const Options& o,
               Progress& progress) {
  Result result;
  result.name = job.name;
  result.kv_bytes = shape_of(job.card).bytes();
  result.codec = measure_codec(job, rows);
  for (int run = 0; run < o.runs; ++run) {
    for (const bool coded : {false, true}) {
      const ReceivedKV received = transfer(job, coded, o);
      if (!identical(received.rows, rows)) throw decant::Error("what arrived differs from what was sent");
      (coded ? result.coded_seconds : result.plain_seconds).push_back(received.seconds);
      if (model != nullptr) {
        result.text = decode_text(*model, received.rows, index_t{received.card.token_count}, received.next,
                                  static_cast<index_t>(text.size()));
        if (*result.text != text) throw decant::Error("the text after the transfer differs from the text without one");
      }
    }
    progress(job.name + ", run", static_cast<std::size_t>(run + 1), static_cast<std::size_t>(o.runs));
  }
  progress.clear();
  return result;
}

void print(const std::vector<Result>& results, const Options& o) {
  const auto mb = [](double bytes) { return fixed(bytes / 1e6, bytes < 1e8 ? 1 : 0); };
  std::vector<std::vector<std::string>> table = {{"cache", "KV MB", "ratio", "plain ms", "SplitZip ms", "speed-up",
                                                  "expected", "encode MB/s", "decode MB/s", "pays below MB/s",
                                                  "overlapped"}};
  for (const Result& r : results) {
    table.push_back({r.name, mb(static_cast<double>(r.kv_bytes)), fixed(r.codec.ratio, 4), fixed(1e3 * r.plain(), 1),
                     fixed(1e3 * r.coded(), 1), fixed(r.speedup(), 3),
                     r.expected_speedup(o.bandwidth) > 0 ? fixed(r.expected_speedup(o.bandwidth), 3) : "-",
                     mb(r.codec.encode), mb(r.codec.decode), mb(r.break_even_serial()), mb(r.break_even_pipelined())});
  }
  const bool with_model = results.back().text.has_value();
  std::cout << markdown_table(table) << "\nTimes from the card's arrival to the checked cache"
            << (with_model ? ", with the model the prefill included" : "") << "; medians of " << o.runs
            << " interleaved runs over TCP, " << (o.bandwidth > 0 ? mb(o.bandwidth) + " MB/s" : std::string("no limit"))
            << ". Every cache that arrived was bit-identical"
            << (with_model ? ", and the model's text was the text without a transfer" : "") << ".\n";
}

Json to_json(const Result& r, const Options& o) {
  Json json = {{"cache", r.name},
               {"kv_bytes", r.kv_bytes},
               {"bandwidth", o.bandwidth},
               {"ratio", r.codec.ratio},
               {"plain_ms", 1e3 * r.plain()},
               {"splitzip_ms", 1e3 * r.coded()},
               {"speedup", r.speedup()},
               {"expected_speedup", nullptr},
               {"encode_bytes_per_s", r.codec.encode},
               {"decode_bytes_per_s", r.codec.decode},
               {"break_even_bytes_per_s", r.break_even_serial()},
               {"break_even_pipelined_bytes_per_s", r.break_even_pipelined()},
               {"bit_identical", true},
               {"text", nullptr}};
  if (r.expected_speedup(o.bandwidth) > 0) json["expected_speedup"] = r.expected_speedup(o.bandwidth);
  if (r.text) json["text"] = tokens_to_bytes(*r.text);
  return json;
}

// --- the program -----------------------------------------------------------------------------------------------------

Tokens read_prompt(const Model& model, const Options& o) {
  if (!o.prompt.empty()) return prompt_tokens(model.config, o.prompt);
  if (!o.prompt_file.empty() && o.prompt_file != "-") {
    return prompt_tokens(model.config, read_text_file(o.prompt_file));
  }
  return prompt_tokens(model.config, std::string{std::istreambuf_iterator<char>(std::cin), {}});
}

void run_self(const Options& o) {
  Progress progress(o.progress);
  std::vector<Result> results;
  for (const std::string& text : o.synthetic) {
    const KVShape shape = parse_synthetic(text);
    const KVRows rows = random_cache(shape);
    results.push_back(measure(synthetic_job(text, shape, rows), rows, nullptr, {}, o, progress));
  }
  if (!o.model.empty()) {
    const Model model(o.model);
    require_byte_vocabulary(model.config);
    const Tokens prompt = read_prompt(model, o);
    const auto length = static_cast<index_t>(prompt.size());
    require_context(model, length, o.max_tokens);
    const Job job = model_job(model, prompt);
    // Without a transfer: what must arrive, and the text that must follow.
    decant::Cpu cpu;
    Engine16 llama(cpu, model.config, model.weights, {});
    KVRows rows;
    llama.on_layer([&](index_t layer) {
      rows.keys.push_back(rows_of<bf16>(llama.cache(layer).view(), dkvc::Kind::key));
      rows.values.push_back(rows_of<bf16>(llama.cache(layer).view(), dkvc::Kind::value));
    });
    Tokens text = {most_likely(llama.prefill(prompt, o.max_tokens))};
    while (static_cast<index_t>(text.size()) < o.max_tokens) text.push_back(most_likely(llama.decode({text.back()})));
    results.push_back(measure(job, rows, &model, text, o, progress));
    std::cout << escaped(tokens_to_bytes(text)) << "\n\n";
  }
  print(results, o);
  if (o.json.empty()) return;
  Json json = Json::array();
  for (const Result& r : results) json.push_back(to_json(r, o));
  write_json(o.json, json);
}

void run_decode(const Options& o) {
  const Model model(o.model);
  require_byte_vocabulary(model.config);
  require_context(model, 1, o.max_tokens);
  const dkvc::CacheCard expected = card_of(model.config, model.checkpoint, DType::bf16, 0);
  Listener listener(o.listen);
  std::fprintf(stderr, "listening on %s\n", listener.address().c_str());
  const Socket peer = listener.accept(o.timeout);
  const ReceivedKV received = receive(peer.fd(), expected, model.config.context - (o.max_tokens - 1));
  const auto prompt = index_t{received.card.token_count};
  const bool known = received.next >= 0 && received.next < model.config.vocab;
  if (!known) bad_format("the sender's next token", "one of this model's", std::to_string(received.next));
  const Tokens text = decode_text(model, received.rows, prompt, received.next, o.max_tokens);
  std::cout << escaped(tokens_to_bytes(text)) << std::endl;
  const index_t bytes = shape_of(received.card).bytes();
  std::fprintf(stderr, "%lld prompt tokens, %lld bytes of KV rows in %.1f ms\n", static_cast<long long>(prompt),
               static_cast<long long>(bytes), 1e3 * received.seconds);
  if (!o.json.empty()) {
    write_json(o.json, {{"kv_bytes", bytes}, {"ms", 1e3 * received.seconds}, {"text", tokens_to_bytes(text)}});
  }
}

void run_prefill(const Options& o) {
  const Model model(o.model);
  require_byte_vocabulary(model.config);
  const Tokens prompt = read_prompt(model, o);
  require_context(model, static_cast<index_t>(prompt.size()), 1);
  const Job job = model_job(model, prompt);
  const Socket peer = connect_to(o.connect, o.timeout);
  const index_t stored = send(peer.fd(), job, o.codec == "splitzip", o.bandwidth);
  const index_t bytes = shape_of(job.card).bytes();
  std::fprintf(stderr, "%lld prompt tokens, %lld bytes of KV rows sent as %lld\n",
               static_cast<long long>(prompt.size()), static_cast<long long>(bytes), static_cast<long long>(stored));
  if (!o.json.empty()) write_json(o.json, {{"kv_bytes", bytes}, {"stored_bytes", stored}});
}

void run(const Options& o) {
  decant::require(o.max_tokens >= 1, "runtime", "--max-tokens", "at least 1", o.max_tokens);
  decant::require(o.runs >= 1, "runtime", "--runs", "at least 1", o.runs);
  decant::require(o.bandwidth >= 0, "runtime", "--bandwidth", "at least 0", o.bandwidth);
  decant::require(o.timeout > 0 && o.timeout <= 1e6, "runtime", "--timeout", "more than 0, at most 1e6", o.timeout);
  decant::require(o.codec == "splitzip" || o.codec == "stored", "runtime", "--codec", "splitzip or stored", o.codec);
  const bool alone = o.listen.empty() && o.connect.empty();
  decant::require(!o.model.empty() || (alone && !o.synthetic.empty()), "runtime", "--model",
                  "a folder (or, with both sides here, --synthetic)", "none");
  if (!o.json.empty()) require_writable(o.json, "--json");
  if (alone) return run_self(o);
  if (!o.listen.empty()) return run_decode(o);
  run_prefill(o);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Prefills in one process and decodes in another; the KV cache goes between them as SplitZip sections.",
               "kv-transfer");
  app.add_option("--model", o.model, "Folder with config.json and model.safetensors (or shards)");
  auto* file = app.add_option("--prompt-file", o.prompt_file, "File with the prompt; - or nothing: standard input");
  app.add_option("--prompt", o.prompt, "The prompt itself")->excludes(file);
  app.add_option("--max-tokens", o.max_tokens, "How many tokens to generate")->capture_default_str();
  auto* self = app.add_flag("--self", o.self, "Both sides in two processes here, checked and measured (the default)");
  auto* listen = app.add_option("--listen", o.listen, "The decoding side: HOST:PORT or unix:PATH")->excludes(self);
  auto* connect = app.add_option("--connect", o.connect, "The prefilling side: HOST:PORT or unix:PATH")
                      ->excludes(self)
                      ->excludes(listen);
  app.add_option("--synthetic", o.synthetic, "LAYERS,HEADS,TOKENS,DIM: random caches, without a model; repeat it")
      ->allow_extra_args(false)
      ->excludes(listen)
      ->excludes(connect);
  app.add_option("--codec", o.codec, "What --connect sends: splitzip or stored")->capture_default_str();
  app.add_option("--bandwidth", o.bandwidth, "Bytes per second that the link is limited to; 0: no limit")
      ->capture_default_str();
  app.add_option("--runs", o.runs, "Transfers of each kind; times are medians")->capture_default_str();
  app.add_option("--timeout", o.timeout, "Seconds to wait for the other side")->capture_default_str();
  app.add_option("--json", o.json, "Also write the results to this file");
  app.add_flag("--progress", o.progress, "Progress lines on standard error even when it is no terminal");
  return run_program(app, argc, argv, [&] { run(o); });
}
