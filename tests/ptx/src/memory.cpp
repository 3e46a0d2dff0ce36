#include "memory.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace ptx {
namespace {

constexpr std::size_t kAlignment = 512;
// Behind every allocation, so that a run past its end never lands in a neighbour.
constexpr std::size_t kGap = 512;

std::uint64_t number(const void* address) {
  return reinterpret_cast<std::uint64_t>(address);
}

}  // namespace

Memory& memory() {
  // Never destroyed: programs free device memory in destructors of their own static objects.
  static Memory* const instance = new Memory;
  return *instance;
}

Memory::~Memory() {
  while (!allocations_.empty()) release(allocations_.begin()->second.address);
}

std::byte* Memory::allocate(std::size_t bytes, AllocationKind kind, std::string name) {
  const std::size_t padded = (bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
  if (padded < bytes) throw std::bad_alloc();
  auto* address = static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded));
  if (!address) throw std::bad_alloc();
  std::memset(address, kPoison, bytes);
  Allocation& allocation = allocations_[number(address)];
  allocation.address = address;
  allocation.bytes = bytes;
  allocation.kind = kind;
  allocation.name = std::move(name);
  // The host may write its own memory at any time, unseen.
  if (kind == AllocationKind::kDevice || kind == AllocationKind::kModule) allocation.initialised.resize(bytes);
  freed_.erase(number(address));
  in_use_ += bytes;
  return address;
}

void Memory::adopt(std::byte* address, std::size_t bytes) {
  Allocation& allocation = allocations_[number(address)];
  allocation.address = address;
  allocation.bytes = bytes;
  allocation.kind = AllocationKind::kRegisteredHost;
}

bool Memory::release(const void* address) {
  const auto found = allocations_.find(number(address));
  if (found == allocations_.end()) return false;
  last_ = nullptr;
  const bool owned = found->second.kind != AllocationKind::kRegisteredHost;
  if (owned) {
    in_use_ -= found->second.bytes;
    freed_[found->first] = found->second.bytes;
    std::free(found->second.address);
  }
  allocations_.erase(found);
  return true;
}

Allocation* Memory::find_slowly(std::uint64_t address) {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  --after;
  if (!after->second.contains(address)) return nullptr;
  return last_ = &after->second;
}

bool Memory::contains(const void* address, std::size_t bytes) {
  const Allocation* allocation = find(number(address));
  return allocation && number(address) - number(allocation->address) + bytes <= allocation->bytes;
}

void Memory::mark_initialised(const void* address, std::size_t bytes) {
  Allocation* allocation = find(number(address));
  if (!allocation || !allocation->initialised) return;
  const std::size_t at = number(address) - number(allocation->address);
  std::memset(&allocation->initialised[at], 1, std::min(bytes, allocation->bytes - at));
}

void Memory::copy_initialised(void* to, const void* from, std::size_t bytes) {
  Allocation* const source = find(number(from));
  Allocation* const destination = find(number(to));
  if (!destination || !destination->initialised) return;
  if (!source || !source->initialised) return mark_initialised(to, bytes);
  std::memmove(&destination->initialised[number(to) - number(destination->address)],
               &source->initialised[number(from) - number(source->address)], bytes);
}

std::size_t Memory::first_uninitialised(const void* address, std::size_t bytes) {
  Allocation* allocation = find(number(address));
  if (!allocation || !allocation->initialised) return bytes;
  const std::uint8_t* flags = &allocation->initialised[number(address) - number(allocation->address)];
  const void* hole = std::memchr(flags, 0, bytes);
  return hole ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(hole) - flags) : bytes;
}

std::string Memory::describe_unknown(std::uint64_t address) const {
  auto after = freed_.upper_bound(address);
  if (after != freed_.begin()) {
    --after;
    if (address - after->first < after->second) return "freed memory";
  }
  auto next = allocations_.upper_bound(address);
  if (next != allocations_.begin()) {
    --next;
    const std::uint64_t beyond = address - next->first - next->second.bytes;
    if (beyond < (std::uint64_t{1} << 20)) {
      return std::to_string(beyond) + " bytes past the end of an allocation of " + std::to_string(next->second.bytes) +
             " bytes" + (next->second.name.empty() ? "" : " ('" + next->second.name + "')");
    }
  }
  return "no allocation";
}

}  // namespace ptx
