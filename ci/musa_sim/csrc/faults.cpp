#include "faults.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <vector>

namespace py = pybind11;

namespace musa_sim {

namespace {

// One armed fault. It is due from its `at`-th matching event on (counted from 1, from when it was armed), `count`
// times. Negative device or rank: any.
struct Fault {
  std::string kind;  // "oom", "hang", "error"
  std::string op;    // torch.distributed name, or "*"; collectives only
  int device = -1;
  int rank = -1;
  size_t min_bytes = 0;
  uint64_t at = 1;
  uint64_t count = 1;
  uint64_t seen = 0;
  uint64_t fired = 0;

  bool due() {
    ++seen;
    if (seen < at || seen >= at + count) {
      return false;
    }
    ++fired;
    return true;
  }
};

std::mutex fault_mutex;
std::vector<Fault> faults;
// The hot paths look only at this while no fault is armed.
std::atomic<bool> armed{false};

void add_fault(Fault fault) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  faults.push_back(std::move(fault));
  armed = true;
}

void clear_faults() {
  std::lock_guard<std::mutex> lock(fault_mutex);
  faults.clear();
  armed = false;
}

py::list list_faults() {
  std::lock_guard<std::mutex> lock(fault_mutex);
  py::list result;
  for (const auto& f : faults) {
    py::dict entry;
    entry["kind"] = f.kind;
    entry["op"] = f.op;
    entry["device"] = f.device;
    entry["rank"] = f.rank;
    entry["min_bytes"] = f.min_bytes;
    entry["at"] = f.at;
    entry["count"] = f.count;
    entry["seen"] = f.seen;
    entry["fired"] = f.fired;
    result.append(entry);
  }
  return result;
}

}  // namespace

void on_allocate(int device, size_t nbytes) {
  if (!armed.load(std::memory_order_relaxed)) {
    return;
  }
  bool due = false;
  uint64_t seen = 0;
  {
    std::lock_guard<std::mutex> lock(fault_mutex);
    for (auto& f : faults) {
      if (f.kind == "oom" && (f.device < 0 || f.device == device) && nbytes >= f.min_bytes && f.due()) {
        due = true;
        seen = f.seen;
      }
    }
  }
  TORCH_CHECK_WITH(
      OutOfMemoryError, !due, "MUSA out of memory. Tried to allocate ", nbytes, " bytes on musa:", device,
      " (injected at allocation ", seen, " by MUSA_SIM_FAULTS or torch_musa.faults)");
}

CollectiveFault on_collective(const std::string& name, int rank) {
  if (!armed.load(std::memory_order_relaxed)) {
    return CollectiveFault::None;
  }
  auto result = CollectiveFault::None;
  std::lock_guard<std::mutex> lock(fault_mutex);
  for (auto& f : faults) {
    if (f.kind != "oom" && (f.op == "*" || f.op == name) && (f.rank < 0 || f.rank == rank) && f.due()) {
      result = f.kind == "hang" ? CollectiveFault::Hang : CollectiveFault::Error;
    }
  }
  return result;
}

void bind_faults(py::module_& m) {
  m.def(
      "faults_add",
      [](const std::string& kind, const std::string& op, int device, int rank, size_t min_bytes, uint64_t at,
         uint64_t count) {
        Fault fault;
        fault.kind = kind;
        fault.op = op;
        fault.device = device;
        fault.rank = rank;
        fault.min_bytes = min_bytes;
        fault.at = at;
        fault.count = count;
        add_fault(std::move(fault));
      },
      py::arg("kind"), py::arg("op"), py::arg("device"), py::arg("rank"), py::arg("min_bytes"), py::arg("at"),
      py::arg("count"));
  m.def("faults_clear", &clear_faults);
  m.def("faults_list", &list_faults);
  bind_denylist(m);
}

}  // namespace musa_sim
