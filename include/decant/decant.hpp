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
#include "core/math.hpp"
#include "core/random.hpp"
#include "core/scan.hpp"
#include "core/simd.hpp"
#include "core/softmax.hpp"
#include "core/topk.hpp"
#include "core/view.hpp"
#include "core/workspace.hpp"
#include "kv/capacity.hpp"
#include "kv/compact.hpp"
#include "kv/dense_kv.hpp"
#include "kv/page_table.hpp"
#include "kv/paged_kv.hpp"
#include "kv/policies.hpp"
#include "kv/ragged_kv.hpp"
#include "kv/rerotate.hpp"
#include "kv/trigger.hpp"
#include "kv/visibility.hpp"
#include "kv/write.hpp"
#include "quant/plain.hpp"
#include "stack.hpp"

#endif
