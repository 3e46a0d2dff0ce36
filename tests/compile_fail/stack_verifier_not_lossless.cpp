// expect: the verifier is not lossless for the drafter's law
// expect: a drafter needs a verifier
#include <decant/speculative/ngram.hpp>
#include <decant/stack.hpp>

using namespace decant;

template <class Drafter, class Verifier>
using Speculative = Stack<kv::FullVisibility, kv::Full, attention::Dense, NoCodec, AsStored, Drafter, Verifier>;

int main() {
#ifdef MUST_FAIL
  const Speculative<speculative::Ngram, speculative::KSeq> lossy{};
  const Speculative<speculative::Ngram, NoVerifier> half{};
  return half.budget.value() == lossy.budget.value() ? 0 : 1;
#else
  const Speculative<speculative::Ngram, speculative::UniVer> stack{};
  return stack.budget.value() == 1.0 ? 0 : 1;
#endif
}
