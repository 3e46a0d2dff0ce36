#pragma once
// What a kernel executed and moved, summed over its launches.

#include <cstdint>
#include <map>
#include <string>

namespace ptx {

struct Counters {
  std::uint64_t launches = 0;
  std::uint64_t thread_instructions = 0, warp_instructions = 0;
  std::uint64_t global_read_bytes = 0, global_write_bytes = 0;      // each once per warp and instruction
  std::uint64_t global_read_sectors = 0, global_write_sectors = 0;  // of 32 bytes, likewise
  std::uint64_t atomic_operations = 0;                              // on global memory
  std::uint64_t shared_accesses = 0;                                // warp instructions
  std::uint64_t shared_conflicts = 0;                               // further passes that bank conflicts cost

  void add(const Counters& other);
};

std::map<std::string, Counters>& kernel_counters();

// One JSON object per kernel, one per line.
void write_counters(const std::string& file);

}  // namespace ptx
