// Weak defaults of the hooks that faults.cpp and mccl.cpp define; the strong definitions win at link time, so the
// core also links, and can be tested, without them.
#include "musa_sim.h"

namespace musa_sim {

__attribute__((weak)) void check_op_allowed(const c10::OperatorHandle&, const torch::jit::Stack*) {}
__attribute__((weak)) void on_allocate(int, size_t) {}
__attribute__((weak)) void bind_faults(pybind11::module_&) {}
__attribute__((weak)) void bind_mccl(pybind11::module_&) {}

}  // namespace musa_sim
