#pragma once
// Device memory: allocations of host memory with their bounds, one initialisation byte per byte, and the race
// detector's cells, which exist from an allocation's first checked access on.

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "race.hpp"
#include "types.hpp"

namespace ptx {

// Generic addresses of shared memory. Local memory and kernel parameters have their host addresses.
constexpr std::uint64_t kSharedWindow = 0x7e0000000000ull;
constexpr std::uint64_t kSharedWindowSize = 0x1000000;

// What fresh memory holds: a pattern that makes a wrong read visible in results.
constexpr int kPoison = 0xCB;

enum class AllocationKind : std::uint8_t { kDevice, kPinnedHost, kManaged, kModule, kRegisteredHost };

template <class T>
class ZeroedArray {  // zero pages that cost memory only where they are touched
 public:
  void resize(std::size_t count) { data_.reset(static_cast<T*>(std::calloc(count ? count : 1, sizeof(T)))); }
  explicit operator bool() const { return data_ != nullptr; }
  T* data() { return data_.get(); }
  T& operator[](std::size_t i) { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
};

struct Allocation {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  AllocationKind kind = AllocationKind::kDevice;
  std::string name;  // of a variable
  ZeroedArray<std::uint8_t> initialised;
  ZeroedArray<Cell> cells;

  bool contains(std::uint64_t at) const { return at - reinterpret_cast<std::uint64_t>(address) < bytes; }
};

class Memory {
 public:
  ~Memory();

  // Memory of the device, poisoned; throws std::bad_alloc.
  std::byte* allocate(std::size_t bytes, AllocationKind kind, std::string name = {});
  // Makes the host's memory known, as cudaHostRegister does.
  void adopt(std::byte* address, std::size_t bytes);
  // False where no allocation begins there.
  bool release(const void* address);

  // The allocation that holds the byte, or nullptr.
  Allocation* find(std::uint64_t address) { return last_ && last_->contains(address) ? last_ : find_slowly(address); }
  bool contains(const void* address, std::size_t bytes);
  void mark_initialised(const void* address, std::size_t bytes);
  // What `copy` bytes say about their being initialised goes along with them.
  void copy_initialised(void* to, const void* from, std::size_t bytes);
  // The first byte of the range that nothing has written, or `bytes`.
  std::size_t first_uninitialised(const void* address, std::size_t bytes);

  // Words for an address that find() does not know: "freed memory", "no allocation".
  std::string describe_unknown(std::uint64_t address) const;

  std::size_t bytes_in_use() const { return in_use_; }

 private:
  Allocation* find_slowly(std::uint64_t address);

  std::map<std::uint64_t, Allocation> allocations_;
  std::map<std::uint64_t, std::size_t> freed_;
  Allocation* last_ = nullptr;
  std::size_t in_use_ = 0;
};

Memory& memory();

}  // namespace ptx
