// decant: DKVC files on POSIX systems: written whole or not at all, read by mapping. Not part of decant.hpp. A file
// appears under its name only when its last byte is on the disk; a writer that is killed leaves a file of another name
// (the name, ".tmp." and numbers).
#ifndef DECANT_CODEC_DKVC_FILE_HPP
#define DECANT_CODEC_DKVC_FILE_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "detail/dkvc_descriptor.hpp"
#include "dkvc.hpp"

namespace decant::codec::dkvc {

namespace detail {

/// A file that exists until it gets its name or is given up.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name) {
    // O_EXCL: of several writers, in one process or many, none touches another's file.
    for (int attempt = 0; fd_ < 0; ++attempt) {
      path_ = name + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(attempt);
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && errno != EINTR && (errno != EEXIST || attempt == 999)) fail_io(where, path_.c_str(), errno);
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  int descriptor() const { return fd_; }

  /// To the disk, and then under its name, in the place of what was there.
  void commit(const std::string& name) {
    while (::fsync(fd_) != 0) {
      if (errno != EINTR) fail_io(where, "fsync", errno);
    }
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0 && errno != EINTR) fail_io(where, "close", errno);
    if (::rename(path_.c_str(), name.c_str()) != 0) fail_io(where, "rename", errno);
    path_.clear();
    sync_directory(name);
  }

 private:
  static constexpr const char* where = "codec::dkvc::write_file";

  /// The new name is on the disk only with its directory. Some file systems cannot do this; the file is whole anyhow.
  static void sync_directory(const std::string& name) {
    const std::size_t slash = name.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : name.substr(0, slash + 1);
    const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);
    ::close(fd);
  }

  std::string path_;
  int fd_ = -1;
};

}  // namespace detail

/// Writes the file `name`: under that name there is at any time all of it, or what was there before. IoError.
inline void write_file(const std::string& name, const Writer& writer) {
  constexpr const char* where = "codec::dkvc::write_file";
  detail::TemporaryFile file(name);
  writer.write([&](View<const std::byte, 1> piece) { detail::write_all(where, file.descriptor(), piece); });
  file.commit(name);
}

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
