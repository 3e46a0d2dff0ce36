// decant: MappedFile, the bytes of a file on POSIX systems, where the operating system puts them and never copied. Not
// part of decant.hpp.
#ifndef DECANT_CODEC_MAPPED_FILE_HPP
#define DECANT_CODEC_MAPPED_FILE_HPP

#include <cstddef>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "detail/dkvc_descriptor.hpp"

namespace decant::codec::dkvc {

/// A file's bytes, mapped read-only: MappedFile file(name); Reader reader(file.bytes()). Whoever shortens the file in
/// the meantime makes reads fail with SIGBUS; write_file never does, it replaces.
class MappedFile {
 public:
  /// IoError when the file cannot be opened and mapped.
  explicit MappedFile(const std::string& name) {
    constexpr const char* where = "codec::dkvc::MappedFile";
    int fd = -1;
    do {
      fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) detail::fail_io(where, name.c_str(), errno);
    const off_t size = ::lseek(fd, 0, SEEK_END);
    int code = size < 0 ? errno : 0;
    std::byte probe;
    if (size == 0 && ::read(fd, &probe, 1) < 0) code = errno;  // a folder, where its size does not tell
    if (size > 0) {
      void* const memory = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (memory != MAP_FAILED) {
        memory_ = memory;
        size_ = static_cast<std::size_t>(size);
      } else {
        code = errno;
      }
    }
    ::close(fd);
    if (code != 0) detail::fail_io(where, name.c_str(), code);
  }
  MappedFile(MappedFile&& other) noexcept : memory_(other.memory_), size_(other.size_) {
    other.memory_ = nullptr;
    other.size_ = 0;
  }
  MappedFile& operator=(MappedFile other) noexcept {
    void* const memory = memory_;
    const std::size_t size = size_;
    memory_ = other.memory_;
    size_ = other.size_;
    other.memory_ = memory;
    other.size_ = size;
    return *this;
  }
  ~MappedFile() {
    if (size_ > 0) ::munmap(memory_, size_);
  }

  View<const std::byte, 1> bytes() const {
    return {static_cast<const std::byte*>(memory_), static_cast<index_t>(size_)};
  }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace decant::codec::dkvc

#endif
