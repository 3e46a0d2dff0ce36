// Every verifier through the suite of verifier.hpp, and one of a user's own that knows of nothing but the concept.
#include "conformance/verifier.hpp"

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <type_traits>

#include "decant/speculative/verifiers.hpp"
#include "decant/speculative/verify.hpp"

namespace user {

using namespace decant::speculative;

/// Accepts nothing: a token drawn from each root's row.
struct RootOnly {
  bool biased = false;  // takes the likeliest one half of the time
  static constexpr bool lossless = true;
  static constexpr bool accepts(Law) { return true; }
  bool operator==(const RootOnly&) const = default;
};

void validate(const RootOnly&) {}

void verify(decant::Cpu& cpu, const RootOnly& v, const ForestView& trees, const ProbabilityRows& p,
            const ProbabilityRows&, const DrawKeys& keys, const Accepted& out) {
  for (decant::index_t b = 0; b < trees.trees(); ++b) {
    const auto row = p[trees.offsets[b]];
    std::int32_t token = draw_next(cpu, row, keys.at(b));
    for (std::int32_t y = 0; v.biased && b % 2 == 0 && y < p.extent(1); ++y) token = row[y] > row[token] ? y : token;
    for (decant::index_t i = 0; i < out.tokens.extent(1); ++i) out.tokens(b, i) = i == 0 ? token : -1;
    out.length[b] = 0;
    out.status[b] = Status::ok;
  }
}

static_assert(Verifier<RootOnly, decant::Cpu>);

}  // namespace user

namespace {

using namespace decant::speculative;

/// The verifiers that verifiers.hpp declares, by their names; one that Cpu does not take has no verify().
void each_verifier(const std::function<void(const char*, const conformance::AnyVerifier&)>& run) {
  const auto f = [&](const char* name, const auto& v) {
    if constexpr (Verifier<std::remove_cvref_t<decltype(v)>, decant::Cpu>) {
      run(name, conformance::any_verifier(v));
    } else {
      run(name, {});
    }
  };
  f("ChainRejection", ChainRejection{});
  f("BlockVerification", BlockVerification{});
  f("MultiRound", MultiRound{});
  f("KSeq", KSeq{});
  f("KSeq", KSeq{.rho = 3});
  f("RRSw", RRSw{});
  f("GreedyMultiDraft", GreedyMultiDraft{});
  f("Traversal", Traversal{});
  f("UniVer", UniVer{});
  f("UniVer", UniVer{UniVer::Order::paper, UniVer::Eval::level_parallel});
  f("Membership", Membership{});
  f("GumbelCoupled", GumbelCoupled{});
  f("TypicalAcceptance", TypicalAcceptance{});
  f("TopKAcceptance", TopKAcceptance{});
}

TEST_CASE("Verifier: results, batches, threads, refusals", "[threads]") {
  each_verifier([](const char* name, const conformance::AnyVerifier& v) {
    INFO(name);
    if (v.verify) conformance::verifier(v);
    else WARN("SKIPPED: Cpu does not take " << name);
  });
}

TEST_CASE("Verifier: lossless ones emit the target's law, three tokens in a row", "[statistics]") {
  each_verifier([](const char* name, const conformance::AnyVerifier& v) {
    INFO(name);
    if (v.verify) conformance::verifier_law(v);
  });
  conformance::verifier_law(conformance::any_verifier(user::RootOnly{}));
  decant::Cpu cpu;
  CHECK(conformance::law_deviate(cpu, conformance::any_verifier(user::RootOnly{.biased = true}), Law::iid, 10000) > 10);
}

TEST_CASE("Verifier: none is left out of these tests") {
  std::ifstream file(DECANT_SOURCE_DIR "/include/decant/speculative/verifiers.hpp");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::set<std::string> declared, tested;
  const std::regex policy("\nstruct (\\w+) \\{");
  for (std::sregex_iterator i(text.begin(), text.end(), policy), end; i != end; ++i) declared.insert((*i)[1]);
  each_verifier([&](const char* name, const conformance::AnyVerifier&) { tested.insert(name); });
  CHECK(declared.size() >= 9);
  CHECK(declared == tested);
}

}  // namespace
