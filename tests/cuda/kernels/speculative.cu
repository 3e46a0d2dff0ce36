// The kernels of verification, for the table of what they take. Never run.
#include "decant/speculative/verify.cuh"

using namespace decant::speculative;

template <class V>
void instantiate(decant::Cuda& cuda) {
  verify(cuda, V{}, ForestView{}, ProbabilityRows{}, ProbabilityRows{}, DrawKeys{}, Accepted{});
}
template void instantiate<UniVer>(decant::Cuda&);
template void instantiate<RRSw>(decant::Cuda&);
template void instantiate<KSeq>(decant::Cuda&);
template void instantiate<Membership>(decant::Cuda&);
template void instantiate<GumbelCoupled>(decant::Cuda&);
template void instantiate<TypicalAcceptance>(decant::Cuda&);

void from_logits(decant::Cuda& cuda) {
  verify(cuda, UniVer{}, ForestView{}, LogitRows{}, ProbabilityRows{}, DrawKeys{}, Accepted{});
}
