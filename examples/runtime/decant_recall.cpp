// decant-recall: how often a Llama checkpoint still recalls a fact from its prompt, by eviction policy and budget.
// Each item of the file is {"prompt": "... <QX4071> ... <QX", "answer": "4071"}; an answer counts when greedy decoding
// gives it exactly. Two ways of asking: the question stands at the end of the compressed prompt (query-aware, as the
// SnapKV line of papers reports), or comes after the compression and is decoded (question-agnostic, kvpress's default).
//   decant-recall --model examples/model --items examples/model/recall.jsonl
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "generate.hpp"
#include "options.hpp"
#include "output.hpp"
#include "progress.hpp"

namespace {

using namespace runtime;

struct Item {
  std::string context;
  std::string question;
  std::string answer;
};

struct Options {
  CommonOptions common;
  std::string items;
  std::vector<std::string> policies;
  std::vector<std::string> budgets = {"1", "0.5", "0.25", "0.1"};
  std::vector<std::string> visibilities = {"full", "speed"};
  std::string attention = "dense";
  std::size_t limit = 0;
};

enum class Asking { aware, agnostic };
constexpr Asking both_ways[] = {Asking::aware, Asking::agnostic};
const char* name(Asking a) {
  return a == Asking::aware ? "query-aware" : "question-agnostic";
}

/// What is measured of each prompt: every policy at every budget, the first being no eviction at all.
struct Treatment {
  std::string policy;
  std::string budget;
  AnyEviction eviction;
  kv::Budget keep = kv::Budget::keep(1);
};

/// Right answers, by visibility, way of asking and treatment.
using Counts = std::vector<std::vector<std::vector<std::size_t>>>;

std::vector<Item> read_items(const Options& o) {
  std::vector<Item> items;
  std::istringstream lines(read_text_file(o.items));
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || (o.limit > 0 && items.size() == o.limit)) continue;
    const std::string where = o.items + ":" + std::to_string(number);
    const JsonObject item(parse_object(line, where), where);
    const std::string prompt = item.string("prompt");
    const std::size_t question = prompt.rfind('<');
    if (question == std::string::npos) item.bad("prompt", "text that ends with a question <QX", prompt);
    items.push_back({prompt.substr(0, question), prompt.substr(question), item.string("answer")});
    if (items.back().answer.empty()) item.bad("answer", "at least one byte", "");
  }
  if (items.empty()) bad_format(o.items, "at least one item", "none");
  return items;
}

std::vector<Treatment> treatments_of(const Options& o) {
  std::vector<Treatment> all;
  for (const std::string& policy : o.policies) {
    for (const std::string& budget : o.budgets) {
      const kv::Budget keep = parse_budget(budget);
      if (policy == "full" && budget != o.budgets[0]) continue;  // it keeps everything whatever the budget
      const auto [eviction, ignored] = parse_eviction(policy == "full" ? "full" : policy + ":" + budget);
      all.push_back({policy, budget, eviction, keep});
    }
  }
  return all;
}

/// Whether greedy decoding from these logits gives the answer.
bool answers(Engine& engine, View<const float, 2> logits, const Tokens& answer) {
  Sampler greedy;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    if (greedy(logits[0], 0) != answer[i]) return false;
    if (i + 1 < answer.size()) logits = engine.decode({answer[i]});
  }
  return true;
}

/// One prompt under one visibility: it runs once, then each treatment works on a copy.
void measure(Engine& engine, const Config& config, const Item& item, Asking asking,
             const std::vector<Treatment>& treatments, std::vector<std::size_t>& right) {
  const bool aware = asking == Asking::aware;
  const Tokens prompt = prompt_tokens(config, aware ? item.context + item.question : item.context);
  const Tokens question = bytes_to_tokens(item.question);
  const Tokens answer = bytes_to_tokens(item.answer);
  const auto room = static_cast<index_t>(question.size() + answer.size());
  const auto first = engine.prefill(prompt, room, Logits::last, Evict::later);
  const std::vector<float> kept(first.data(), first.data() + first.size());
  for (std::size_t i = 0; i < treatments.size(); ++i) {
    const auto copy = engine.copy();
    copy->evict(treatments[i].eviction, treatments[i].keep);
    const View<const float, 2> logits =
        aware ? View<const float, 2>(kept.data(), 1, config.vocab) : copy->decode(question);
    right[i] += answers(*copy, logits, answer) ? 1 : 0;
  }
}

std::string percent(std::size_t right, std::size_t items) {
  return fixed(100.0 * static_cast<double>(right) / static_cast<double>(items), 1);
}

std::string percent(const std::string& budget) {
  const kv::Budget b = parse_budget(budget);
  return b.kind() == kv::Budget::Kind::tokens ? budget : fixed(100 * b.value(), 0) + " %";
}

void run(Options o) {
  if (o.policies.empty()) {
    for (const auto& [policy, value] : known_evictions()) o.policies.push_back(policy);
  }
  decant::require(o.common.threads >= 1 && o.common.threads <= 1024, "runtime", "--threads", "1 to 1024",
                  o.common.threads);
  if (!o.common.json.empty()) require_writable(o.common.json, "--json");
  const CacheChoice cache = parse_cache(o.common.cache, o.common.kv_dtype);
  const std::vector<Treatment> treatments = treatments_of(o);
  const Model model(o.common.model, read_packed);
  require_byte_vocabulary(model.config);
  std::vector<AnyStack> stacks;
  for (const std::string& visibility : o.visibilities) {
    stacks.push_back(parse_composition("visibility=" + visibility + " attention=" + o.attention, model.config).stack);
  }
  const std::vector<Item> items = read_items(o);

  Progress progress(o.common.progress);
  Counts right(stacks.size(), {2, std::vector<std::size_t>(treatments.size())});
  std::atomic<std::size_t> next{0};
  std::size_t done = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    try {
      decant::Cpu cpu;
      for (std::size_t i = next++; i < items.size(); i = next++) {
        Counts own(stacks.size(), {2, std::vector<std::size_t>(treatments.size())});
        for (std::size_t v = 0; v < stacks.size(); ++v) {
          const auto engine = make_engine(cpu, model.config, model.weights, stacks[v], cache);
          for (const Asking a : both_ways) {
            measure(*engine, model.config, items[i], a, treatments, own[v][static_cast<std::size_t>(a)]);
          }
        }
        const std::lock_guard lock(mutex);
        for (std::size_t v = 0; v < stacks.size(); ++v) {
          for (std::size_t a = 0; a < 2; ++a) {
            for (std::size_t t = 0; t < treatments.size(); ++t) right[v][a][t] += own[v][a][t];
          }
        }
        progress("items", ++done, items.size());
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next = items.size();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < o.common.threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  progress.clear();
  if (failure) std::rethrow_exception(failure);

  Json json = Json::array();
  for (const Asking asking : both_ways) {
    const auto a = static_cast<std::size_t>(asking);
    std::vector<std::vector<std::string>> table = {{"policy"}};
    for (const std::string& visibility : o.visibilities) {
      for (const std::string& budget : o.budgets) {
        table[0].push_back((visibility == "full" ? "" : visibility + " ") + percent(budget));
      }
    }
    for (const std::string& policy : o.policies) {
      std::vector<std::string> row = {policy};
      for (std::size_t v = 0; v < stacks.size(); ++v) {
        for (const std::string& budget : o.budgets) {
          const auto t = std::find_if(treatments.begin(), treatments.end(), [&](const Treatment& x) {
            return x.policy == policy && (policy == "full" || x.budget == budget);
          });
          const std::size_t count = right[v][a][static_cast<std::size_t>(t - treatments.begin())];
          row.push_back(percent(count, items.size()));
          json.push_back({{"policy", policy},
                          {"budget", budget},
                          {"visibility", o.visibilities[v]},
                          {"attention", o.attention},
                          {"asking", name(asking)},
                          {"right", count},
                          {"items", items.size()},
                          {"accuracy", static_cast<double>(count) / static_cast<double>(items.size())}});
        }
      }
      table.push_back(row);
    }
    std::cout << "Exact answers in %, " << name(asking) << ", "
              << (o.attention == "dense" ? "" : "attention " + o.attention + ", ") << items.size()
              << " items, by share of KV rows kept:\n\n"
              << markdown_table(table) << "\n";
  }
  if (!o.common.json.empty()) write_json(o.common.json, json);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Recall accuracy of a Llama checkpoint by KV eviction policy and budget.", "decant-recall");
  o.common.add_to(app);
  app.add_option("--items", o.items, "File of items, one JSON object per line")->required();
  app.add_option("--policies", o.policies, "Eviction policies (default: all): " + eviction_names())->delimiter(',');
  app.add_option("--budgets", o.budgets, "Shares or numbers of tokens to keep")->delimiter(',')->capture_default_str();
  app.add_option("--visibilities", o.visibilities, "Visibility policies")->delimiter(',')->capture_default_str();
  app.add_option("--attention", o.attention, attention_help())->capture_default_str();
  app.add_option("--limit", o.limit, "Only so many items; 0: all")->capture_default_str();
  return run_program(app, argc, argv, [&] { run(o); });
}
