#include "counters.hpp"

#include <cstdio>

namespace ptx {

void Counters::add(const Counters& other) {
  launches += other.launches;
  thread_instructions += other.thread_instructions;
  warp_instructions += other.warp_instructions;
  global_read_bytes += other.global_read_bytes;
  global_write_bytes += other.global_write_bytes;
  global_read_sectors += other.global_read_sectors;
  global_write_sectors += other.global_write_sectors;
  atomic_operations += other.atomic_operations;
  shared_accesses += other.shared_accesses;
  shared_conflicts += other.shared_conflicts;
}

std::map<std::string, Counters>& kernel_counters() {
  static auto* const counters = new std::map<std::string, Counters>;
  return *counters;
}

void write_counters(const std::string& file) {
  std::FILE* out = std::fopen(file.c_str(), "a");
  if (!out) return;
  for (const auto& [kernel, c] : kernel_counters()) {
    const auto field = [&](const char* name, std::uint64_t value) {
      std::fprintf(out, ",\"%s\":%llu", name, static_cast<unsigned long long>(value));
    };
    std::fprintf(out, "{\"kernel\":\"%s\"", kernel.c_str());
    field("launches", c.launches);
    field("thread_instructions", c.thread_instructions);
    field("warp_instructions", c.warp_instructions);
    field("global_read_bytes", c.global_read_bytes);
    field("global_write_bytes", c.global_write_bytes);
    field("global_read_sectors", c.global_read_sectors);
    field("global_write_sectors", c.global_write_sectors);
    field("atomic_operations", c.atomic_operations);
    field("shared_accesses", c.shared_accesses);
    field("shared_conflicts", c.shared_conflicts);
    std::fprintf(out, "}\n");
  }
  std::fclose(out);
}

}  // namespace ptx
