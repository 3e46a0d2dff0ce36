// kv-pack: KV caches as DKVC files. Makes a dump from a model and a prompt, packs dumps with SplitZip, shows, checks
// and unpacks the files; what comes out of `unpack` is, bit for bit, what went into `pack`.
//   kv-pack dump --model examples/model --prompt-file examples/model/prompt.txt cache.safetensors
//   kv-pack pack cache.safetensors cache.dkvc
//   kv-pack inspect --entropy cache.dkvc
//   kv-pack verify cache.dkvc
//   kv-pack unpack cache.dkvc again.safetensors
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <decant/codec/dkvc_file.hpp>
#include <decant/codec/mapped_file.hpp>
#include <decant/stack.hpp>

#include "kv_dump.hpp"
#include "llama.hpp"
#include "options.hpp"
#include "output.hpp"
#include "progress.hpp"

namespace {

using namespace runtime;

struct Options {
  std::string in;
  std::string out;
  std::string model;
  std::string prompt_file;
  std::string dtype = "bf16";
  index_t chunk = 1024;
  bool entropy = false;
  bool progress = false;
  std::string json;
};

const char* name(dkvc::Kind kind) {
  constexpr const char* names[] = {"K", "V", "C_KV", "K_R", "-"};
  return names[static_cast<int>(kind)];
}

std::string name(codec::CodecId id) {
  constexpr const char* names[] = {"stored", "splitzip-bf16", "splitzip-e5m2", "splitzip-e4m3"};
  return id <= codec::CodecId::splitzip_e4m3 ? names[static_cast<int>(id)] : std::to_string(static_cast<int>(id));
}

/// "layer 3 K, tokens 0 to 99"
std::string describe(const dkvc::Section& s) {
  if (!s.is_tensor()) return s.is_meta() ? "the card" : "a section of another type";
  return "layer " + std::to_string(s.layer) + " " + name(s.kind) + ", " + std::to_string(s.token_count) +
         " tokens from " + std::to_string(s.token_begin);
}

/// Runs f; a FormatError of its names the file and the part of it.
template <class F>
void in_context(const std::string& path, const std::string& part, F&& f) {
  try {
    f();
  } catch (const decant::FormatError& error) {
    throw decant::FormatError(path + ": " + part + ": " + error.what());
  }
}

double ratio(index_t plain, index_t stored) {
  return static_cast<double>(plain) / static_cast<double>(stored);
}

/// A file, mapped, with its table of sections and its card checked.
struct PackedFile {
  explicit PackedFile(const std::string& p) : path(p), file(p), reader(open(p, file)) {
    if (reader.card().extent(0) == 0) return;
    in_context(path, "the card", [&] { card = dkvc::read_card(reader.card()); });
    has_card = true;
    for (const dkvc::Section& s : sections()) {
      const dkvc::Mismatch m = check(card, s);
      if (m != dkvc::Mismatch::none) bad_format(path + ": " + describe(s), "what the card says", dkvc::name(m));
    }
  }

  static dkvc::Reader open(const std::string& path, const dkvc::MappedFile& file) {
    try {
      return dkvc::Reader(file.bytes());
    } catch (const decant::FormatError& error) {
      throw decant::FormatError(path + ": " + error.what());
    }
  }

  std::vector<dkvc::Section> sections() const {
    return {reader.sections().data(), reader.sections().data() + reader.size()};
  }

  /// Decodes section i, which is checked first, and calls f with its elements.
  template <class F>
  void decode(decant::Cpu& cpu, index_t i, F&& f) const {
    const dkvc::Section& s = reader.section(i);
    in_context(path, ::describe(s), [&] {
      with_dtype(static_cast<DType>(s.dtype), [&](auto zero) {
        using T = decltype(zero);
        std::vector<T> elements(static_cast<std::size_t>(s.element_count));
        reader.decode(cpu, i, View<T, 1>(elements));
        f(elements);
      });
    });
  }

  std::string path;
  dkvc::MappedFile file;
  dkvc::Reader reader;
  bool has_card = false;
  dkvc::CacheCard card;
};

// --- dump ------------------------------------------------------------------------------------------------------------

void dump(const Options& o) {
  require_writable(o.out, "OUT");
  DType dtype = DType::f32;
  while (o.dtype != decant::name(dtype)) {
    if (dtype == DType::e5m2) detail::refuse("--kv-dtype", "f32, f16, bf16, e4m3 or e5m2", o.dtype);
    dtype = static_cast<DType>(static_cast<int>(dtype) + 1);
  }
  const Model model(o.model);
  require_byte_vocabulary(model.config);
  const Tokens prompt = prompt_tokens(model.config, read_text_file(o.prompt_file));
  const auto tokens = static_cast<index_t>(prompt.size());
  const Config& c = model.config;
  const KVShape shape = {dtype, c.layers, tokens, c.kv_heads, c.head_dim, c.head_dim};

  decant::Cpu cpu;
  Progress progress(o.progress);
  Llama<decant::Stack<>, DenseCache<float>> llama(cpu, c, model.weights, {});
  SafetensorsWriter writer(o.out, dump_entries(shape));
  llama.on_layer([&](index_t layer) {
    for (const dkvc::Kind kind : both_kinds) {
      with_dtype(dtype,
                 [&](auto zero) { writer.add(bytes_of(rows_of<decltype(zero)>(llama.cache(layer).view(), kind))); });
    }
    progress("layers", static_cast<std::size_t>(layer + 1), static_cast<std::size_t>(c.layers));
  });
  llama.prefill(prompt, 0);
  writer.commit();
  progress.clear();
  std::printf("%s: %lld tokens, %lld layers, %s, %lld bytes\n", o.out.c_str(), static_cast<long long>(tokens),
              static_cast<long long>(c.layers), decant::name(dtype), static_cast<long long>(shape.bytes()));
}

// --- pack ------------------------------------------------------------------------------------------------------------

template <class T>
dkvc::Writer pack_as(const KVDump& dump, const dkvc::CacheCard& card, const Options& o) {
  decant::Cpu cpu;
  Progress progress(o.progress);
  const KVShape& shape = dump.shape();
  const auto total = static_cast<std::size_t>(2 * shape.layers);
  std::size_t done = 0;
  KVCodecs<T> codecs = fit_codecs<T>(cpu, shape.layers, [&](index_t layer, dkvc::Kind kind) {
    progress("calibrating, tensor", ++done, total);
    return dump.rows<T>(layer, kind);
  });
  if constexpr (codec::SplitZipElement<T>) codecs.keys.chunk = codecs.values.chunk = o.chunk;

  done = 0;
  dkvc::Writer writer;
  const std::vector<std::byte> bytes = dkvc::write_card(card);
  writer.add_card(cpu, bytes);
  for (index_t layer = 0; layer < shape.layers; ++layer) {
    for (const dkvc::Kind kind : both_kinds) {
      writer.add(cpu, codecs.of(kind), {layer, kind, 0, shape.tokens}, dump.rows<T>(layer, kind));
      progress("packing, tensor", ++done, total);
    }
  }
  return writer;
}

void pack(const Options& o) {
  require_writable(o.out, "OUT");
  const KVDump dump(o.in);
  const KVShape& shape = dump.shape();
  dkvc::CacheCard card = card_of(shape);
  if (!o.model.empty()) {
    const Model model(o.model);
    card = card_of(model.config, model.checkpoint, shape.dtype, shape.tokens);
    if (shape_of(card) != shape) bad_format(o.in, "a cache of the model in " + o.model, "another shape");
  }
  const dkvc::Writer writer =
      with_dtype(shape.dtype, [&](auto zero) { return pack_as<decltype(zero)>(dump, card, o); });
  dkvc::write_file(o.out, writer);
  const index_t stored = writer.total_size();
  std::printf("%s: %lld bytes of %s in %lld, ratio %.4f\n", o.out.c_str(), static_cast<long long>(shape.bytes()),
              decant::name(shape.dtype), static_cast<long long>(stored), ratio(shape.bytes(), stored));
  if (!o.json.empty()) {
    write_json(o.json,
               {{"plain_bytes", shape.bytes()}, {"stored_bytes", stored}, {"ratio", ratio(shape.bytes(), stored)}});
  }
}

// --- inspect ---------------------------------------------------------------------------------------------------------

/// What the exponents of a section allow: the ratio that no lossless code of single elements exceeds, and the share of
/// elements that the section's book has no code for.
struct Entropy {
  bool known = false;
  double bound = 1;
  double escapes = 0;
};

Entropy entropy_of(decant::Cpu& cpu, const PackedFile& packed, index_t i) {
  Entropy e;
  packed.decode(cpu, i, [&]<class T>(const std::vector<T>& elements) {
    if constexpr (codec::SplitZipElement<T>) {
      ExponentCounts<T> counts;
      counts.add(cpu, View<const T, 1>(elements));
      constexpr double width = 8.0 * sizeof(T);
      e.known = true;
      e.bound = width / (width - codec::FloatBits<T>::exponent + codec::exponent_entropy(counts.counts()));
      if (packed.reader.section(i).codec == codec::CodecId::stored) return;
      e.escapes = escape_rate(counts.counts(), codec_of(codec::SplitZip<T>{}, packed.reader.payload(i)).book);
    }
  });
  return e;
}

std::string hex(const dkvc::Fingerprint& f) {
  std::string text;
  for (std::size_t i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(f[i]));
    text += digits;
  }
  return text;
}

void print_card(const dkvc::CacheCard& card) {
  std::cout << "card: " << card.layers << " layers, " << card.token_count << " tokens from position "
            << card.position_begin << ", " << card.kv_heads << " KV heads, dims " << card.key_dim << " and "
            << card.value_dim << ", " << decant::name(card.dtype) << ", rope theta " << card.rope.theta
            << "\nmodel: " << (card.model == dkvc::Fingerprint{} ? "not said" : hex(card.model))
            << "\nmade by: " << escaped(card.creator) << "\n\n";
}

void inspect(const Options& o) {
  const PackedFile packed(o.in);
  decant::Cpu cpu;
  Progress progress(o.progress);
  std::vector<std::vector<std::string>> table = {
      {"layer", "kind", "codec", "dtype", "tokens", "elements", "stored bytes", "ratio"}};
  if (o.entropy) table[0].insert(table[0].end(), {"bound", "escapes"});
  Json sections = Json::array();
  index_t plain = 0;
  for (index_t i = 0; i < packed.reader.size(); ++i) {
    const dkvc::Section& s = packed.reader.section(i);
    if (!s.is_tensor()) continue;
    const index_t bytes = s.element_count * decant::size_of(static_cast<DType>(s.dtype));
    plain += bytes;
    table.push_back({std::to_string(s.layer), name(s.kind), name(s.codec), decant::name(static_cast<DType>(s.dtype)),
                     std::to_string(s.token_begin) + "+" + std::to_string(s.token_count),
                     std::to_string(s.element_count), std::to_string(s.stored_size),
                     s.stored_size > 0 ? fixed(ratio(bytes, s.stored_size), 4) : "-"});
    sections.push_back({{"layer", s.layer},
                        {"kind", name(s.kind)},
                        {"codec", name(s.codec)},
                        {"dtype", decant::name(static_cast<DType>(s.dtype))},
                        {"token_begin", s.token_begin},
                        {"token_count", s.token_count},
                        {"elements", s.element_count},
                        {"stored_bytes", s.stored_size}});
    if (!o.entropy) continue;
    const Entropy e = entropy_of(cpu, packed, i);
    table.back().push_back(e.known ? fixed(e.bound, 4) : "-");
    table.back().push_back(e.known ? fixed(100 * e.escapes, 3) + " %" : "-");
    if (e.known) sections.back().update({{"entropy_bound", e.bound}, {"escape_rate", e.escapes}});
    progress("sections", static_cast<std::size_t>(i + 1), static_cast<std::size_t>(packed.reader.size()));
  }
  progress.clear();
  const index_t stored = packed.file.bytes().extent(0);
  if (packed.has_card) print_card(packed.card);
  std::cout << markdown_table(table) << "\n"
            << plain << " bytes in a file of " << stored << ", ratio " << fixed(ratio(plain, stored), 4) << "\n";
  if (!o.json.empty()) {
    write_json(
        o.json,
        {{"plain_bytes", plain}, {"stored_bytes", stored}, {"ratio", ratio(plain, stored)}, {"sections", sections}});
  }
}

// --- verify ----------------------------------------------------------------------------------------------------------

void verify(const Options& o) {
  const PackedFile packed(o.in);
  decant::Cpu cpu;
  Progress progress(o.progress);
  index_t elements = 0;
  for (index_t i = 0; i < packed.reader.size(); ++i) {
    const dkvc::Section& s = packed.reader.section(i);
    if (s.is_tensor()) {
      packed.decode(cpu, i, [&](const auto& decoded) { elements += static_cast<index_t>(decoded.size()); });
    } else if (s.is_meta()) {
      in_context(o.in, describe(s), [&] { packed.reader.verify(cpu, i); });
    }
    progress("sections", static_cast<std::size_t>(i + 1), static_cast<std::size_t>(packed.reader.size()));
  }
  progress.clear();
  std::printf("%s: good, %lld sections, %lld elements\n", o.in.c_str(), static_cast<long long>(packed.reader.size()),
              static_cast<long long>(elements));
  if (!o.json.empty()) write_json(o.json, {{"sections", packed.reader.size()}, {"elements", elements}});
}

// --- unpack ----------------------------------------------------------------------------------------------------------

void unpack(const Options& o) {
  require_writable(o.out, "OUT");
  const PackedFile packed(o.in);
  if (!packed.has_card) bad_format(o.in, "a card that says the shape", "none");
  decant::Cpu cpu;
  in_context(o.in, "the card", [&] { packed.reader.verify(cpu, 0); });
  const KVShape shape = shape_of(packed.card);
  Progress progress(o.progress);
  SafetensorsWriter writer(o.out, dump_entries(shape));
  for (index_t layer = 0; layer < shape.layers; ++layer) {
    for (const dkvc::Kind kind : both_kinds) {
      // A tensor may lie in several sections, by token.
      const dkvc::SectionRange range = packed.reader.find(layer, kind);
      index_t tokens = 0;
      for (index_t i = range.first; i < range.first + range.count; ++i) {
        const dkvc::Section& s = packed.reader.section(i);
        const bool fits =
            s.token_begin == tokens && s.element_count == index_t{s.token_count} * shape.kv_heads * shape.dim(kind);
        if (!fits) bad_format(o.in + ": " + describe(s), "all rows of tokens from " + std::to_string(tokens), "others");
        tokens += s.token_count;
        packed.decode(cpu, i, [&](const auto& elements) { writer.add(bytes_of(elements)); });
      }
      if (tokens != shape.tokens) {
        bad_format(o.in + ": layer " + std::to_string(layer) + " " + name(kind),
                   std::to_string(shape.tokens) + " tokens", std::to_string(tokens));
      }
    }
    progress("layers", static_cast<std::size_t>(layer + 1), static_cast<std::size_t>(shape.layers));
  }
  writer.commit();
  progress.clear();
  std::printf("%s: %lld bytes of %s\n", o.out.c_str(), static_cast<long long>(shape.bytes()),
              decant::name(shape.dtype));
  if (!o.json.empty()) write_json(o.json, {{"plain_bytes", shape.bytes()}});
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Packs KV caches into DKVC files with SplitZip, without loss, and gets them out again.", "kv-pack");
  app.require_subcommand(1);
  void (*command)(const Options&) = nullptr;
  const auto add = [&](const char* verb, const char* what, void (*run)(const Options&)) {
    CLI::App* sub = app.add_subcommand(verb, what);
    sub->callback([&command, run] { command = run; });
    sub->add_flag("--progress", o.progress, "Progress lines on standard error even when it is no terminal");
    return sub;
  };
  const auto files = [&](CLI::App* sub, bool in, bool out) {
    if (in) sub->add_option("IN", o.in, "The file to read")->required();
    if (out) sub->add_option("OUT", o.out, "The file to write")->required();
    if (in) sub->add_option("--json", o.json, "Also write the results to this file");
  };
  CLI::App* sub =
      add("dump", "Prompt -> safetensors file of tensors layers.N.k and layers.N.v, [tokens, heads, dim]", dump);
  sub->add_option("--model", o.model, "Folder with config.json and model.safetensors (or shards)")->required();
  sub->add_option("--prompt-file", o.prompt_file, "File with the prompt")->required();
  sub->add_option("--kv-dtype", o.dtype, "f32, f16, bf16, e4m3 or e5m2; rounded from f32")->capture_default_str();
  files(sub, false, true);
  sub = add("pack", "Dump -> DKVC file: SplitZip with one book for keys and one for values", pack);
  sub->add_option("--model", o.model, "Folder of the model whose cache it is: the card will say so");
  sub->add_option("--chunk", o.chunk, "Elements per chunk, a power of two from 64 to 8192")->capture_default_str();
  files(sub, true, true);
  sub = add("inspect", "Shows the card and a table of the sections", inspect);
  sub->add_flag("--entropy", o.entropy, "Decode, too, and show what the exponents' entropy allows");
  files(sub, true, false);
  files(add("verify", "Checks the checksums of everything and decodes it", verify), true, false);
  files(add("unpack", "DKVC file -> dump, bit for bit the one that was packed", unpack), true, true);
  return run_program(app, argc, argv, [&] {
    if (!o.json.empty()) require_writable(o.json, "--json");
    command(o);
  });
}
