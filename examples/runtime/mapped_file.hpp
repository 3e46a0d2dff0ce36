// A whole file, read-only, as memory: weights are read where the operating system puts them, and never copied.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include <decant/core/error.hpp>

namespace runtime {

class MappedFile {
 public:
  MappedFile() = default;

  /// decant::FormatError with the system's reason when the file cannot be opened or is not a regular file.
  explicit MappedFile(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail(path, errno);
    struct stat status {};
    const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    size_ = regular ? static_cast<std::size_t>(status.st_size) : 0;
    int error = regular ? 0 : EINVAL;
    if (size_ > 0) {
      void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (memory == MAP_FAILED)
        error = errno;
      else
        data_ = static_cast<const std::byte*>(memory);
    }
    ::close(descriptor);
    if (error != 0) fail(path, error);
  }

  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  [[noreturn]] static void fail(const std::string& path, int error) {
    throw decant::FormatError(path + ": expected a readable file, got \"" + std::strerror(error) + "\"");
  }

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace runtime
