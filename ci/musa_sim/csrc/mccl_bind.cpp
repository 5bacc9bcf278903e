// mccl's counters, its construction over gloo, and its Python bindings.
#include "mccl.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <mutex>

namespace py = pybind11;

namespace musa_sim {

namespace {

std::mutex counter_mutex;
std::map<std::string, CounterValue> counters;

// (store, rank, size, timeout) -> gloo backend. Never freed: groups may outlive the interpreter's globals.
py::function* gloo_factory = nullptr;

}  // namespace

void count_mccl_call(const std::string& name, int64_t bytes) {
  std::lock_guard<std::mutex> lock(counter_mutex);
  auto& value = counters[name];
  value.calls += 1;
  value.bytes += static_cast<uint64_t>(bytes);
}

std::map<std::string, CounterValue> mccl_counters() {
  std::lock_guard<std::mutex> lock(counter_mutex);
  return counters;
}

void reset_mccl_counters() {
  std::lock_guard<std::mutex> lock(counter_mutex);
  counters.clear();
}

c10::intrusive_ptr<ProcessGroupMCCL> ProcessGroupMCCL::create(
    const StorePtr& store, int rank, int size, c10::intrusive_ptr<Options> options) {
  TORCH_CHECK(gloo_factory != nullptr, "mccl: import torch_musa before creating a group");
  // Its own prefix: a cpu:gloo half of the same group may use the same store.
  StorePtr own = c10::make_intrusive<c10d::PrefixStore>("mccl", store);
  BackendPtr gloo;
  {
    py::gil_scoped_acquire gil;
    gloo = (*gloo_factory)(own, rank, size, options->timeout).cast<BackendPtr>();
  }
  return c10::make_intrusive<ProcessGroupMCCL>(std::move(gloo), rank, size, std::move(options));
}

void bind_mccl(py::module_& m) {
  using Group = ProcessGroupMCCL;
  const auto c10d_module = py::module_::import("torch._C._distributed_c10d");
  py::object backend_type = c10d_module.attr("Backend");
  py::object options_type = backend_type.attr("Options");

  py::class_<Group::Options, c10::intrusive_ptr<Group::Options>> options(m, "McclOptions", options_type);
  options.def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("group_name", &Group::Options::group_name)
      .def_readwrite("global_ranks_in_group", &Group::Options::global_ranks_in_group)
      .def("__deepcopy__", [](const Group::Options& self, const py::dict&) {
        return c10::make_intrusive<Group::Options>(self);
      });

  py::class_<Group, c10::intrusive_ptr<Group>>(m, "ProcessGroupMCCL", backend_type)
      .def_static("create", &Group::create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
                  py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("options", [](Group& self) {
        return c10::static_intrusive_pointer_cast<Group::Options>(self.getBackendOptions());
      })
      // torch calls this on ranks left out of a new group when a backend can split; nothing to do here.
      .def("perform_nocolor_split", [](Group&, const py::object&) {});

  m.def("mccl_set_gloo_factory", [](py::function factory) {
    TORCH_CHECK(gloo_factory == nullptr, "mccl: the gloo factory is already set");
    gloo_factory = new py::function(std::move(factory));
  });
  m.def("mccl_counters", [] {
    py::dict result;
    for (const auto& [name, value] : mccl_counters()) {
      py::dict entry;
      entry["calls"] = value.calls;
      entry["bytes"] = value.bytes;
      result[py::str(name)] = entry;
    }
    return result;
  });
  m.def("mccl_reset_counters", &reset_mccl_counters);
}

}  // namespace musa_sim
