// Refuses ops (or dtypes of ops) that real torch_musa lacks. Which ones is data: torch_musa/denylist.toml.
#include "faults.h"

#include <pybind11/stl.h>

#include <bitset>
#include <memory>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace musa_sim {

namespace {

struct Rule {
  std::string text;                     // entry, versions, reason: ends every message
  std::vector<at::ScalarType> dtypes;   // empty: any
  bool raises = true;
  mutable std::atomic<bool> warned{false};
};

// Keyed by the address of the operator's name, which lives as long as the operator. Built once per change and then
// only read, without a lock; tables replaced are kept, as another thread may still be reading one.
struct Table {
  static constexpr size_t kFilterBits = 4096;
  std::bitset<kFilterBits> filter;
  std::unordered_map<const c10::OperatorName*, std::vector<std::shared_ptr<const Rule>>> rules;

  static size_t bit(const c10::OperatorName* key) {
    const auto value = reinterpret_cast<uintptr_t>(key) >> 4;
    return (value ^ (value >> 12)) % kFilterBits;
  }
};

std::atomic<const Table*> current{nullptr};
std::mutex table_mutex;
std::vector<std::unique_ptr<const Table>>& tables() {
  static auto* all = new std::vector<std::unique_ptr<const Table>>();
  return *all;
}

bool has_dtype(const at::Tensor& tensor, const Rule& rule) {
  if (!tensor.defined()) {
    return false;
  }
  const auto dtype = tensor.scalar_type();
  return std::find(rule.dtypes.begin(), rule.dtypes.end(), dtype) != rule.dtypes.end();
}

bool applies(const Rule& rule, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (rule.dtypes.empty()) {
    return true;
  }
  const auto arguments = op.schema().arguments().size();
  for (size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    const auto& value = stack[i];
    if (value.isTensor() ? has_dtype(value.toTensor(), rule) : false) {
      return true;
    }
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        if (has_dtype(tensor, rule)) {
          return true;
        }
      }
    }
  }
  return false;
}

void refuse(const Rule& rule, const c10::OperatorHandle& op) {
  const auto message = c10::str(
      "Could not run '", op.operator_name(), "' with arguments from the 'musa' backend: ", rule.text);
  if (rule.raises) {
    C10_THROW_ERROR(NotImplementedError, message);
  }
  if (!rule.warned.exchange(true)) {
    TORCH_WARN(message);
  }
}

// rules: (names, dtypes, raises, text); a name without an overload means all its overloads.
// Returns the names that no operator of this torch has.
std::vector<std::string> set_denylist(
    const std::vector<std::tuple<std::vector<std::string>, std::vector<at::ScalarType>, bool, std::string>>& rules) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::unordered_map<std::string, std::vector<c10::OperatorName>> known;
  if (!rules.empty()) {
    for (const auto& name : dispatcher.getAllOpNames()) {
      known[name.name].push_back(name);
      if (!name.overload_name.empty()) {
        known[name.name + "." + name.overload_name].push_back(name);
      }
    }
  }
  auto table = std::make_unique<Table>();
  std::vector<std::string> unknown;
  for (const auto& [names, dtypes, raises, text] : rules) {
    auto rule = std::make_shared<Rule>();
    rule->text = text;
    rule->dtypes = dtypes;
    rule->raises = raises;
    for (const auto& name : names) {
      const auto found = known.find(name);
      if (found == known.end()) {
        unknown.push_back(name);
        continue;
      }
      for (const auto& overload : found->second) {
        if (const auto op = dispatcher.findSchema(overload)) {
          const auto* key = &op->operator_name();
          table->rules[key].push_back(rule);
          table->filter.set(Table::bit(key));
        }
      }
    }
  }
  if (unknown.empty()) {
    std::lock_guard<std::mutex> lock(table_mutex);
    current = table->rules.empty() ? nullptr : table.get();
    tables().push_back(std::move(table));
  }
  return unknown;
}

}  // namespace

void check_op_allowed(const c10::OperatorHandle& op, const torch::jit::Stack* stack) {
  const auto* table = current.load(std::memory_order_acquire);
  if (table == nullptr) {
    return;
  }
  const auto* key = &op.operator_name();
  if (!table->filter.test(Table::bit(key))) {
    return;
  }
  const auto found = table->rules.find(key);
  if (found == table->rules.end()) {
    return;
  }
  for (const auto& rule : found->second) {
    if (applies(*rule, op, *stack)) {
      refuse(*rule, op);
    }
  }
}

void bind_denylist(py::module_& m) {
  m.def("denylist_set", &set_denylist);
}

}  // namespace musa_sim
