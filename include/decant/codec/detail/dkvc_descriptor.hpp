// decant: whole reads and writes on POSIX file descriptors: interrupted calls are made again, short ones go on.
#ifndef DECANT_CODEC_DETAIL_DKVC_DESCRIPTOR_HPP
#define DECANT_CODEC_DETAIL_DKVC_DESCRIPTOR_HPP

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include <unistd.h>

#include "../../core/view.hpp"

namespace decant::codec::dkvc {

/// A call to the operating system failed.
class IoError : public Error {
 public:
  IoError(const std::string& what, int code) : Error(what), code_(code) {}
  /// errno.
  int code() const { return code_; }

 private:
  int code_;
};

namespace detail {

[[noreturn]] DECANT_NOINLINE inline void fail_io(const char* where, const char* call, int code) {
  DECANT_THROW(IoError(std::string("decant::") + where + ": " + call + ": " + std::strerror(code), code));
}

/// One call of write() or of its like.
using WriteCall = ssize_t (*)(int fd, const void* from, std::size_t size);

/// All of `bytes`, or IoError. `name` is the call's, for the error.
inline void write_all(const char* where, const char* name, WriteCall call, int fd, View<const std::byte, 1> bytes) {
  for (index_t done = 0; done < bytes.extent(0);) {
    const ssize_t n = call(fd, bytes.data() + done, static_cast<std::size_t>(bytes.extent(0) - done));
    if (n > 0) {
      done += n;
    } else if (n == 0 || errno != EINTR) {
      fail_io(where, name, n == 0 ? EIO : errno);
    }
  }
}

inline void write_all(const char* where, int fd, View<const std::byte, 1> bytes) {
  write_all(where, "write", ::write, fd, bytes);
}

/// Up to `size` bytes; fewer only where the other side has ended. IoError when the call fails.
inline index_t read_some(const char* where, int fd, std::byte* to, index_t size) {
  index_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd, to + done, static_cast<std::size_t>(size - done));
    if (n == 0) return done;
    if (n > 0) {
      done += n;
    } else if (errno != EINTR) {
      fail_io(where, "read", errno);
    }
  }
  return done;
}

}  // namespace detail

}  // namespace decant::codec::dkvc

#endif
