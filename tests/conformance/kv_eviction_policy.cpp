// The eviction suite over every policy that decant has, and a check that none is left out: the headers are searched for
// stages(), and their number must be the list's.
#include "conformance/kv_eviction_policy.hpp"

#include <dirent.h>

#include <cstdio>
#include <fstream>
#include <iterator>

namespace user {

/// The least that a user's scorer must do: one function, in the user's own namespace.
struct Oldest {};

template <class X>
void score(decant::Cpu&, const Oldest&, const X& x, decant::View<float, 2> scores) {
  for (decant::index_t h = 0; h < x.kv_heads(); ++h) {
    for (decant::index_t t = 0; t < x.length(h); ++t) scores(h, t) = -static_cast<float>(t);
  }
}

}  // namespace user

namespace {

using namespace conformance;

TEMPLATE_TEST_CASE("eviction policies keep their laws", "", kv::Full, kv::StreamingLLM, kv::Random, kv::KNorm,
                   kv::KeyDiff, kv::BlockwiseKeyDiff, kv::SnapKV, kv::TOVA) {
  check_policy<TestType>();
}

TEMPLATE_TEST_CASE("eviction policies keep their laws (2)", "", kv::H2O, kv::ExpectedAttention, kv::PyramidKV,
                   kv::AdaKV, kv::CapKV, kv::GreedyCapKV, kv::Leverage, kv::BackwardLOO, user::Oldest) {
  check_policy<TestType>();
}

/// How often `text` stands in the headers of include/decant/kv, and in one file.
int occurrences(const std::string& path, const std::string& text) {
  std::ifstream file(path);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  int count = 0;
  for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++count;
  return count;
}

TEST_CASE("every policy is in the list, and every one in the list is tested") {
  const std::string folder = std::string(DECANT_SOURCE_DIR) + "/include/decant/kv";
  int papers = 0;
  DIR* const directory = opendir(folder.c_str());
  REQUIRE(directory != nullptr);
  while (const dirent* entry = readdir(directory)) {
    const std::string file = entry->d_name;
    if (file.size() > 4 && file.substr(file.size() - 4) == ".hpp") {
      papers += occurrences(folder + "/" + file, "auto stages(const ");
    }
  }
  closedir(directory);
  REQUIRE(papers == kv::AllPolicies::size);
  const std::string here = std::string(DECANT_SOURCE_DIR) + "/tests/conformance/kv_eviction_policy.cpp";
  const std::string list = folder + "/policies.hpp";
  // Each name of the list stands in a TEMPLATE_TEST_CASE above.
  std::ifstream file(list);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::size_t at = text.find("PolicyList<Full");
  REQUIRE(at != std::string::npos);
  at += std::string("PolicyList<").size();
  const std::size_t end = text.find('>', at);
  int names = 0;
  while (at < end) {
    const std::size_t stop = std::min(text.find(',', at), end);
    std::string name = text.substr(at, stop - at);
    name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return c == ' ' || c == '\n'; }), name.end());
    INFO(name);
    REQUIRE(occurrences(here, "kv::" + name) > 0);
    ++names;
    at = stop + 1;
  }
  REQUIRE(names == kv::AllPolicies::size);
}

}  // namespace
