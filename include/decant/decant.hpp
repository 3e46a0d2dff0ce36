// decant: everything for the CPU. The bridges to other libraries (interop/) are opt-in and not here.
#ifndef DECANT_DECANT_HPP
#define DECANT_DECANT_HPP

#include "attention/dense.hpp"
#include "attention/mask.hpp"
#include "attention/policy.hpp"
#include "attention/state.hpp"
#include "core/cpu.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "core/scan.hpp"
#include "core/simd.hpp"
#include "core/softmax.hpp"
#include "core/topk.hpp"
#include "core/view.hpp"
#include "core/workspace.hpp"
#include "quant/plain.hpp"
#include "stack.hpp"

#endif
