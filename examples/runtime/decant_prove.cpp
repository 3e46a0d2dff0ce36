// decant-prove: proves, by exact enumeration in fractions, whether a verifier leaves the output's law to the target, for
// a tree shape, a draft law and a pair of distributions, and how many drafted tokens it accepts on average.
// A verifier that is not made for the law takes the draft for one of its own law, and what comes of it is shown.
//   decant-prove --tree 2,2 --law greedy_plus_one --verifier univer --p 1/2,1/3,1/6 --q 1/6,1/2,1/3
// Exit status: 0 lossless, 3 not, 2 for wrong arguments.
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <decant/speculative/exact.hpp>
#include <decant/speculative/verifiers.hpp>
#include <nlohmann/json.hpp>

namespace {

using decant::require;
using namespace decant::speculative;

constexpr const char* where = "prove";

struct Options {
  std::vector<std::int32_t> tree = {2, 2};
  std::string law = "greedy_plus_one";
  std::string verifier = "univer";
  std::vector<std::string> p = {"1/2", "1/3", "1/6"};
  std::vector<std::string> q = {"1/6", "1/2", "1/3"};
  int rho = 0;
  bool json = false;
};

std::vector<Rational> distribution(const std::vector<std::string>& words, const char* argument) {
  std::vector<Rational> row;
  Rational sum;
  for (const std::string& word : words) {
    row.push_back(Rational::parse(word, argument));
    require(!(row.back() < Rational()), where, argument, "probabilities of at least 0", word);
    sum += row.back();
  }
  require(sum == Rational(1), where, argument, "probabilities that sum up to 1", sum.text());
  return row;
}

Law law_of(const std::string& word) {
  for (int l = 0; l < laws; ++l) {
    if (word == name(static_cast<Law>(l))) return static_cast<Law>(l);
  }
  require(false, where, "--law", "chain, iid, without_replacement, greedy_plus_one or deterministic", word);
  return Law::chain;
}

void check(const Options& o, Law law) {
  require(!o.tree.empty() && o.tree.size() <= 8, where, "--tree", "1 to 8 levels", o.tree.size());
  std::int64_t nodes = 0;
  std::int64_t level = 1;
  for (const std::int32_t k : o.tree) {
    require(k >= 1 && k <= 8, where, "--tree", "1 to 8 children on each level", k);
    require(law != Law::chain || k == 1, where, "--tree", "one child on each level of a chain", k);
    level *= k;
    nodes += level;
    require(nodes <= 24, where, "--tree", "at most 24 drafted nodes: outcomes grow exponentially", nodes);
  }
}

/// The proof, and what the verifier took the draft for.
struct Finding {
  Proof<Rational> proof;
  Law believed;
};

Finding run(const Options& o) {
  const Law law = law_of(o.law);
  check(o, law);
  const auto p = distribution(o.p, "--p");
  const auto q = distribution(o.q, "--q");
  require(p.size() == q.size(), where, "--q", std::to_string(p.size()) + " probabilities, as --p has", q.size());
  require(p.size() <= 8, where, "--p", "at most 8 tokens", p.size());
  const auto target = [&](const std::vector<std::int32_t>&) { return p; };
  const auto draft = [&](const std::vector<std::int32_t>&) { return q; };
  const auto with = [&](const auto& v, Law own) {
    const Law believed = v.accepts(law) ? law : own;
    return Finding{prove<Rational>(v, o.tree, law, target, draft, believed), believed};
  };
  if (o.verifier == "chain") return with(ChainRejection{}, Law::chain);
  if (o.verifier == "block") return with(BlockVerification{}, Law::chain);
  if (o.verifier == "multi-round") return with(MultiRound{}, Law::iid);
  if (o.verifier == "rrsw") return with(RRSw{}, Law::without_replacement);
  if (o.verifier == "greedy") return with(GreedyMultiDraft{}, Law::greedy_plus_one);
  if (o.verifier == "traversal") return with(Traversal{}, Law::without_replacement);
  if (o.verifier == "univer") return with(UniVer{}, law);
  if (o.verifier == "univer-paper") return with(UniVer{UniVer::Order::paper}, law);
  if (o.verifier == "membership") return with(Membership{}, Law::deterministic);
  require(o.verifier == "kseq", where, "--verifier",
          "chain, block, multi-round, kseq, rrsw, greedy, traversal, univer, univer-paper or membership", o.verifier);
  require(o.rho >= 1 && o.rho <= o.tree[0], where, "--rho", "1 to the number of siblings, for kseq", o.rho);
  return with(KSeq{static_cast<float>(o.rho)}, Law::iid);
}

void print(const Options& o, const Finding& finding) {
  const Proof<Rational>& proof = finding.proof;
  if (o.json) {
    nlohmann::ordered_json j;
    j["tree"] = o.tree;
    j["law"] = o.law;
    j["verifier"] = o.verifier;
    j["believed_law"] = name(finding.believed);
    j["p"] = o.p;
    j["q"] = o.q;
    j["expected_length"] = proof.expected_length.text();
    j["lossless"] = proof.lossless;
    j["largest_difference"] = proof.largest_difference;
    j["outcomes"] = proof.outcomes;
    for (const Rational& mass : proof.pass_mass) j["pass_mass"].push_back(mass.text());
    std::printf("%s\n", j.dump(2).c_str());
    return;
  }
  if (o.law != name(finding.believed)) {
    std::printf("%s is not made for this law: it takes the draft for %s\n", o.verifier.c_str(), name(finding.believed));
  }
  std::printf("E[tau] = %s = %.6f accepted tokens a step\n", proof.expected_length.text().c_str(),
              static_cast<double>(proof.expected_length));
  std::printf("output law: %s (%lld outcomes)\n",
              proof.lossless ? "the target's, exactly"
                             : ("NOT the target's: a sequence's probability is off by up to " +
                                std::to_string(proof.largest_difference)).c_str(),
              static_cast<long long>(proof.outcomes));
  for (std::size_t i = 1; i < proof.pass_mass.size(); ++i) {
    std::printf("node %zu passes with %s\n", i, proof.pass_mass[i].text().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Proves a verifier of speculative decoding by exact enumeration, in fractions");
  Options o;
  app.add_option("--tree", o.tree, "Children per level, as 2,2")->delimiter(',')->capture_default_str();
  app.add_option("--law", o.law, "chain, iid, without_replacement, greedy_plus_one or deterministic")
      ->capture_default_str();
  app.add_option("--verifier", o.verifier,
                 "chain, block, multi-round, kseq, rrsw, greedy, traversal, univer, univer-paper or membership")
      ->capture_default_str();
  app.add_option("--p", o.p, "The target's probabilities, as 1/2,1/3,1/6")->delimiter(',');
  app.add_option("--q", o.q, "The draft's")->delimiter(',');
  app.add_option("--rho", o.rho, "K-SEQ's rho, a whole number");
  app.add_flag("--json", o.json, "Print JSON");
  try {
    app.parse(argc, argv);
    const Finding finding = run(o);
    print(o, finding);
    return finding.proof.lossless ? 0 : 3;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const decant::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
