// torch_musa._C: what the Python side calls.
#include "musa_sim.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace py = pybind11;

namespace musa_sim {
namespace {

py::dict stats_dict(int device) {
  const MemoryStats stats = memory_stats(device);
  py::dict out;
  out["current"] = stats.current;
  out["peak"] = stats.peak;
  out["allocated"] = stats.allocated;
  out["freed"] = stats.freed;
  out["blocks"] = stats.blocks;
  out["peak_blocks"] = stats.peak_blocks;
  out["alloc_count"] = stats.alloc_count;
  out["free_count"] = stats.free_count;
  out["ooms"] = stats.ooms;
  out["total"] = stats.total;
  out["limit"] = stats.limit;
  return out;
}

// The CPU side of a musa storage, as a byte tensor over the whole of it.
at::Tensor storage_bytes(const at::Tensor& tensor) {
  c10::Storage storage(cpu_storage_of(tensor.storage()));
  return at::empty({0}, at::TensorOptions().dtype(c10::kByte)).set_(storage);
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_device);
  m.def("exchange_device", [](int device) {
    const int previous = current_device();
    if (device >= 0) {
      set_device(device);
    }
    return previous;
  });
  m.def("check_ordinal", &check_ordinal);
  m.def("physical_device", &physical_device);
  m.def("ensure_initialized", &ensure_initialized);
  m.def("is_initialized", &is_initialized);
  m.def("is_in_bad_fork", &is_in_bad_fork);
  m.def("memory_stats", &stats_dict);
  m.def("reset_peak_stats", &reset_peak_stats);
  m.def("reset_accumulated_stats", &reset_accumulated_stats);
  m.def("set_memory_fraction", &set_memory_fraction);
  m.def("bind_composites", &bind_composites);
  m.def("cpu_alias", &cpu_alias);
  m.def("musa_alias", &musa_alias, py::arg("cpu"), py::arg("device"), py::arg("counted") = true);
  m.def("storage_bytes", &storage_bytes);
  m.def("rebind_storage", [](const at::Tensor& tensor) { rebind_storage(tensor.storage()); });
  m.def("event_elapsed_ms", [](int64_t first, int64_t second) {
    return c10::impl::getDeviceGuardImpl(kMusa)->elapsedTime(
        reinterpret_cast<void*>(first), reinterpret_cast<void*>(second), 0);
  });
  m.def("set_stream", [](int64_t id, int device) {
    ensure_initialized();
    check_ordinal(device);
    const c10::Device on(kMusa, static_cast<c10::DeviceIndex>(device));
    c10::impl::getDeviceGuardImpl(kMusa)->exchangeStream(c10::Stream(c10::Stream::UNSAFE, on, id));
  });
  m.def("default_generator", [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });
}

}  // namespace musa_sim

PYBIND11_MODULE(_C, m) {
  musa_sim::bind_runtime(m);
  musa_sim::bind_faults(m);
  musa_sim::bind_mccl(m);
}
