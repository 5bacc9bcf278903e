// Fault injection: out-of-memory at a chosen allocation, a collective that hangs or fails.
#pragma once

#include "musa_sim.h"

#include <string>

namespace musa_sim {

enum class CollectiveFault : uint8_t { None, Hang, Error };

// Called before every mccl call, by its torch.distributed name; says whether a fault is due for it.
CollectiveFault on_collective(const std::string& name, int rank);

// denylist.cpp; bound by bind_faults.
void bind_denylist(pybind11::module_& m);

}  // namespace musa_sim
