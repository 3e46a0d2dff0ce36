// Fuzzes the safetensors reader of examples/runtime: whatever it accepts must be readable to the last byte.
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I include -I examples/runtime \
//     tests/fuzz/safetensors.cpp -o fuzz_safetensors && ./fuzz_safetensors -max_total_time=60 -max_len=512
#include "safetensors.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int descriptor = ::memfd_create("fuzz", 0);
  const bool written = ::write(descriptor, data, size) == static_cast<ssize_t>(size);
  try {
    const runtime::SafetensorsFile file("/proc/self/fd/" + std::to_string(descriptor));
    unsigned sum = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      for (runtime::index_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
    }
    volatile unsigned result = sum;
    (void)result;
  } catch (const decant::FormatError&) {
  }
  ::close(descriptor);
  return written ? 0 : -1;
}
