// decant: DKVC files on POSIX systems, written whole or not at all; mapped_file.hpp is how to read them. Not part of
// decant.hpp. A file appears under its name only when its last byte is on the disk; a writer that is killed leaves a
// file of another name (the name, ".tmp." and numbers).
#ifndef DECANT_CODEC_DKVC_FILE_HPP
#define DECANT_CODEC_DKVC_FILE_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include <fcntl.h>
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

}  // namespace decant::codec::dkvc

#endif
