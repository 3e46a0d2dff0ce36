// Stream sockets between two processes: TCP addresses as "127.0.0.1:7070" and Unix ones as "unix:kv.sock". Every
// wait has a time limit, so that a peer that hangs is an error like one that is gone.
#pragma once

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include <decant/core/error.hpp>

namespace runtime {

/// A descriptor that is closed with its owner.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { close(); }

  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

namespace detail {

[[noreturn]] inline void fail_socket(const std::string& address, const char* call) {
  throw decant::Error(address + ": " + call + ": " + std::strerror(errno));
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  int family = AF_UNIX;
};

/// ArgumentError when the text names no address.
inline Address parse_address(const std::string& text) {
  Address address;
  if (text.rfind("unix:", 0) == 0) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string path = text.substr(5);
    decant::require(!path.empty() && path.size() < sizeof name.sun_path, "runtime", "address", "unix: and a short path",
                    text);
    std::memcpy(name.sun_path, path.data(), path.size());
    std::memcpy(&address.bytes, &name, sizeof name);
    address.size = sizeof name;
    return address;
  }
  const std::size_t colon = text.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const bool ok = colon != std::string::npos &&
                  ::getaddrinfo(text.substr(0, colon).c_str(), text.substr(colon + 1).c_str(), &hints, &found) == 0;
  decant::require(ok, "runtime", "address", "HOST:PORT or unix:PATH", text);
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  address.family = found->ai_family;
  ::freeaddrinfo(found);
  return address;
}

inline Socket make_socket(const std::string& text, int family) {
  Socket s(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (s.fd() < 0) fail_socket(text, "socket");
  return s;
}

/// Whether a Unix socket lies there that nobody listens at: what a killed listener leaves behind.
inline bool is_abandoned(const std::string& text, const Address& address) {
  const Socket probe = make_socket(text, AF_UNIX);
  return ::connect(probe.fd(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0 &&
         errno == ECONNREFUSED;
}

}  // namespace detail

/// Reads and writes that wait longer than this fail.
inline void limit_waits(const Socket& s, double seconds) {
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(limit.tv_sec)) * 1e6);
  ::setsockopt(s.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(s.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const int yes = 1;
  ::setsockopt(s.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // not for Unix sockets, which do not wait anyhow
}

/// Waits for one peer after another.
class Listener {
 public:
  explicit Listener(const std::string& address) : address_(address) {
    const detail::Address a = detail::parse_address(address);
    socket_ = detail::make_socket(address, a.family);
    const int yes = 1;
    ::setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (a.family == AF_UNIX && detail::is_abandoned(address, a)) ::unlink(address.c_str() + 5);
    if (::bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&a.bytes), a.size) != 0) {
      detail::fail_socket(address, "bind");
    }
    if (a.family == AF_UNIX) path_ = address.substr(5);
    if (::listen(socket_.fd(), 1) != 0) detail::fail_socket(address, "listen");
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  /// What peers connect to: with the port that the system chose for port 0.
  std::string address() const {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    char port[16];
    const bool known = path_.empty() && ::getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
                       ::getnameinfo(reinterpret_cast<const sockaddr*>(&name), size, nullptr, 0, port, sizeof port,
                                     NI_NUMERICSERV) == 0;
    return known ? address_.substr(0, address_.rfind(':') + 1) + port : address_;
  }

  Socket accept(double seconds) {
    limit_waits(socket_, seconds);
    int fd = -1;
    do {
      fd = ::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) detail::fail_socket(address_, errno == EAGAIN ? "nobody connected" : "accept");
    Socket peer(fd);
    limit_waits(peer, seconds);
    return peer;
  }

 private:
  std::string address_;
  std::string path_;
  Socket socket_;
};

/// Connects, and tries again for so many seconds while nobody listens there yet.
inline Socket connect_to(const std::string& address, double seconds) {
  const detail::Address a = detail::parse_address(address);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    Socket s = detail::make_socket(address, a.family);
    if (::connect(s.fd(), reinterpret_cast<const sockaddr*>(&a.bytes), a.size) == 0) {
      limit_waits(s, seconds);
      return s;
    }
    const bool absent = errno == ECONNREFUSED || errno == ENOENT;
    if (!absent || std::chrono::steady_clock::now() >= end) detail::fail_socket(address, "connect");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace runtime
