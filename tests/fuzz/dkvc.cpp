// Fuzzes the DKVC readers, of files and of streams: what they accept must be canonical, and nothing else may be thrown
// than FormatError. Inputs whose critical flag 1 is set are streams. Mutated inputs get checksums that fit again.
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I include tests/fuzz/dkvc.cpp -o fuzz_dkvc
//   ./fuzz_dkvc -max_total_time=60 -max_len=4096 new_inputs tests/fuzz/corpus/dkvc
#include "../unit/codec/dkvc_mutate.hpp"
#include "../unit/codec/dkvc_repair_stream.hpp"

#include <cstdio>
#include <cstdlib>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using namespace dkvc_test;

bool is_stream(const std::byte* bytes, std::size_t size) {
  return size >= 64 && bytes[12] == std::byte{1};
}

void repair_any(Bytes& bytes) {
  if (is_stream(bytes.data(), bytes.size())) {
    repair_stream(bytes.data(), static_cast<index_t>(bytes.size()));
  } else {
    repair(bytes.data(), static_cast<index_t>(bytes.size()));
  }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  Mutator mutator(seed);
  auto* const bytes = reinterpret_cast<std::byte*>(data);
  Bytes mutated(bytes, bytes + size);
  if (mutator.below(2) == 0) {
    mutator.mutate(mutated, mutated);
  } else {
    mutated.resize(max_size);
    mutated.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(mutated.data()), size, max_size));
  }
  if (mutated.size() > max_size) mutated.resize(max_size);
  if (mutator.below(8) != 0) repair_any(mutated);
  for (std::size_t i = 0; i < mutated.size(); ++i) bytes[i] = mutated[i];
  return mutated.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(data);
  const View<const std::byte, 1> input(bytes, static_cast<index_t>(size));
  dkvc::Limits limits;
  limits.max_total_bytes = 1 << 16;
  limits.max_elements = 1 << 16;
  limits.max_decoded_bytes = 1 << 16;
  Cpu cpu;
  const Outcome outcome =
      is_stream(bytes, size) ? receive_everything(cpu, input, limits) : read_everything(cpu, input, limits);
  if (outcome.fault != "") {
    std::fprintf(stderr, "%s\n", outcome.fault.c_str());
    std::abort();
  }
  return 0;
}
