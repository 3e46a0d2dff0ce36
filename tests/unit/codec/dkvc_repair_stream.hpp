#pragma once
// For mutated DKVC streams, as dkvc_repair.hpp is for files.
#include <sys/mman.h>

#include "decant/codec/dkvc_stream.hpp"
#include "dkvc_repair.hpp"

namespace dkvc_test {

/// Recomputes the CRCs of prologue, entries, sections and closing frame, as far as frames can be followed.
inline void repair_stream(std::byte* bytes, index_t size) {
  if (size < dkvc::prologue_size) return;
  decant::store_le(bytes + 60, decant::codec::crc32c(View<const std::byte, 1>(bytes, 60)));
  std::uint32_t checksums = 0;
  index_t at = dkvc::prologue_size;
  while (size - at >= dkvc::detail::frame_head) {
    if (decant::load_le<std::uint32_t>(bytes + at) != dkvc::detail::frame_tag) return;
    std::byte* const entry = bytes + at + 8;
    const auto claimed = decant::load_le<std::uint64_t>(entry + 24);
    at += dkvc::detail::frame_head;
    const bool inside = claimed <= static_cast<std::uint64_t>(size - at);
    if (inside) repair_section(entry, bytes + at, static_cast<index_t>(claimed));
    decant::store_le(entry - 4, decant::codec::crc32c(View<const std::byte, 1>(entry, dkvc::entry_size)));
    if (!inside) return;
    checksums = decant::codec::crc32c(View<const std::byte, 1>(entry + 48, 8), checksums);
    at += static_cast<index_t>(claimed);
  }
  if (size - at == dkvc::detail::closing_size) decant::store_le(bytes + at + 8, checksums);
}

/// A file without a name that holds these bytes: what a receiver reads when the sender is gone.
class MemoryFile {
 public:
  explicit MemoryFile(View<const std::byte, 1> bytes) : fd_(::memfd_create("dkvc", MFD_CLOEXEC)) {
    dkvc::detail::write_all("test", fd_, bytes);
    ::lseek(fd_, 0, SEEK_SET);
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int descriptor() const { return fd_; }

 private:
  int fd_;
};

/// Receives all of a stream. What was finished must make a file that can be read, or be an error there; what was not,
/// must not look as if.
inline Outcome receive_everything(Cpu& cpu, View<const std::byte, 1> bytes, const dkvc::Limits& limits) {
  const MemoryFile memory(bytes);
  dkvc::Writer writer;
  dkvc::SectionData data;
  bool finished = false;
  try {
    dkvc::FrameReader in(memory.descriptor(), limits);
    while (in.next(cpu, data)) writer.add(data);
    finished = in.finished();
  } catch (const decant::FormatError&) {
    return {false, data.section == dkvc::Section() ? "" : "after an error there is a section"};
  }
  if (!finished) return {true, "the end of a stream that is not finished"};
  const Bytes file = writer.write();
  const Outcome outcome = read_everything(cpu, file, limits);
  return {true, outcome.fault};
}

}  // namespace dkvc_test
