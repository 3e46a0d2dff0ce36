#pragma once
// The sixteen barriers of a block.

#include "machine.hpp"

namespace ptx {

// Lanes arrive at a barrier; `waits` is false for bar.arrive. Lets go everybody once it is complete.
void arrive(Warp& warp, const Inst& inst, std::uint32_t lanes, std::uint32_t barrier, std::uint32_t expected,
            bool waits);

// Nobody in the block can run: completes a barrier that only lacks threads that have exited (and reports it). False
// where there is none.
bool complete_idle_barrier(Block& block);

}  // namespace ptx
