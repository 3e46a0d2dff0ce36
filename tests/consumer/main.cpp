// What a consumer's first program does: includes decant, checks its version, calls it.
#include <decant/version.hpp>

#include <cstdio>

int main() {
  std::printf("decant %d.%d.%d\n", DECANT_VERSION_MAJOR, DECANT_VERSION_MINOR, DECANT_VERSION_PATCH);
  return DECANT_VERSION == DECANT_VERSION_MAJOR * 10000 + DECANT_VERSION_MINOR * 100 + DECANT_VERSION_PATCH ? 0 : 1;
}
