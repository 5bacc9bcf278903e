// Interface between the parts of the simulated `musa` device.
//
// Device memory is host memory: a musa storage's DataPtr owns a `Block`, and the block holds the CPU StorageImpl
// that really owns the bytes. A CPU alias of a musa tensor is one TensorImpl over that CPU storage, so CPU kernels
// run on device tensors without copying, and storage identity (views, overlap checks) survives.
//
// This header is precompiled once per build (see torch_musa/_build.py), so it carries every heavy include.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace musa_sim {

constexpr c10::DeviceType kMusa = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;

// ---- runtime.cpp: devices of this process -------------------------------------------------------------------

// Devices visible to this process (MUSA_SIM_DEVICES narrowed by MUSA_VISIBLE_DEVICES). Never throws.
int device_count();
// The calling thread's current device; does not initialise the runtime.
int current_device();
// Throws on a bad ordinal and in a bad fork. Initialises the runtime.
void set_device(int device);
// Sets the device without checks (for guards and destructors); returns the previous one.
int exchange_device_unchecked(int device) noexcept;
// Throws c10::Error if `device` is not a visible ordinal.
void check_ordinal(int device);
// First use of a device: fixes the device list, arms the fork check. Throws in a forked child of an initialised
// process, as the real runtime does.
void ensure_initialized();
bool is_initialized();
bool is_in_bad_fork();
// The physical ordinal behind a visible one (differs only under MUSA_VISIBLE_DEVICES).
int physical_device(int device);

// ---- memory.cpp: device memory ------------------------------------------------------------------------------

// Zero-copy CPU view of a musa tensor: same sizes, strides, offset, dtype, conj/neg bits; no autograd history.
// An undefined or CPU tensor is returned as it is.
at::Tensor cpu_alias(const at::Tensor& musa_tensor);
// The reverse: a musa tensor over the memory of a CPU tensor. The CPU storage is kept alive by the result.
// `counted`: whether its bytes count as allocated on the device when no device allocation stands behind them.
at::Tensor musa_alias(const at::Tensor& cpu_tensor, c10::DeviceIndex device, bool counted = true);
// A musa view with the metadata of `cpu_view` over the storage of `base` (a musa tensor on the same memory).
at::Tensor musa_view_like(const at::Tensor& cpu_view, const at::Tensor& base);
// The CPU storage behind a musa storage; for a pointer that somebody else owns (from_blob), one that borrows it.
c10::intrusive_ptr<c10::StorageImpl> cpu_storage_of(const c10::Storage& storage);
// Re-reads pointer and size of the CPU storage behind `storage` after a kernel or share_memory_ moved them.
void rebind_storage(const c10::Storage& storage);
void resize_storage(const c10::Storage& storage, size_t nbytes);
c10::DeviceAllocator* device_allocator();

struct MemoryStats {
  int64_t current = 0, peak = 0;          // bytes, rounded up to 512 as a caching allocator does
  int64_t allocated = 0, freed = 0;       // bytes, since start or the last reset
  int64_t blocks = 0, peak_blocks = 0;    // live allocations
  int64_t alloc_count = 0, free_count = 0;
  int64_t ooms = 0;
  int64_t total = 0, limit = 0;           // bytes of the device; bytes this process may use
};
MemoryStats memory_stats(int device);
void reset_peak_stats(int device);
void reset_accumulated_stats(int device);
void set_memory_fraction(double fraction, int device);
// Records an allocation, throwing torch's OutOfMemoryError *before* host memory is taken if it passes the limit.
void account_alloc(int device, size_t nbytes);
void account_free(int device, size_t nbytes) noexcept;

// While one lives, CPU allocations of the calling thread (a kernel's outputs and temporaries) count on `device`.
class DeviceMemoryScope {
 public:
  explicit DeviceMemoryScope(int device) noexcept;
  ~DeviceMemoryScope();
  DeviceMemoryScope(const DeviceMemoryScope&) = delete;
  DeviceMemoryScope& operator=(const DeviceMemoryScope&) = delete;

 private:
  int previous_;
};

// ---- generator.cpp: random state ----------------------------------------------------------------------------

const at::Generator& default_generator(c10::DeviceIndex device);  // -1: current device
at::Generator new_generator(c10::DeviceIndex device);
// A CPU generator keyed by (seed, offset) of `musa_generator` (or of the device's default generator), whose
// offset is then advanced by `numel` draws. The CPU's own generator is not touched.
at::Generator draw_cpu_generator(const std::optional<at::Generator>& musa_generator, int device, int64_t numel);

// ---- fallback.cpp: running CPU kernels on musa tensors ------------------------------------------------------

// The boxed kernel of every op without a musa kernel of its own.
void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Binds cpu_fallback to every op with both a CPU kernel and a composite one, which would otherwise take the
// composite on musa and drift from CPU numerics. Returns how many ops were bound. Safe to call again.
int bind_composites();

// ---- hooks of the fault injection and the denylist (faults.cpp) ----------------------------------------------

// Called by cpu_fallback before anything else. Throws to refuse the op (or a dtype in `stack`).
void check_op_allowed(const c10::OperatorHandle& op, const torch::jit::Stack* stack);
// Called before each device allocation is accounted. Throws c10::OutOfMemoryError to inject a failure.
void on_allocate(int device, size_t nbytes);

// ---- Python bindings, each defined by the file it names -------------------------------------------------------

void bind_runtime(pybind11::module_& m);     // module.cpp
void bind_faults(pybind11::module_& m);      // faults.cpp
void bind_mccl(pybind11::module_& m);        // mccl.cpp

}  // namespace musa_sim
