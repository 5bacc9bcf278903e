// Runs CPU kernels on musa tensors: arguments become zero-copy CPU aliases, results are re-tagged as musa tensors.
#include "generator.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace musa_sim {
namespace {

// Kernels that, on accelerators too, take CPU tensors of any size in some arguments.
const std::unordered_set<std::string>& ops_taking_cpu_tensors() {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_index_put_impl",
      "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_ctc_loss", "aten::_ctc_loss_backward"};
  return *names;
}

// What must be known about an op, worked out once.
struct OpPlan {
  bool random_without_generator = false;
  bool takes_cpu_tensors = false;
  int generator = -1;         // index of the generator argument
  std::vector<bool> writes;   // per argument
};

OpPlan make_plan(const c10::OperatorHandle& op) {
  OpPlan plan;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    plan.writes.push_back(alias != nullptr && alias->isWrite());
    const auto optional = arguments[i].type()->cast<c10::OptionalType>();
    const auto& type = optional ? optional->getElementType() : arguments[i].type();
    if (type->kind() == c10::TypeKind::GeneratorType) {
      plan.generator = static_cast<int>(i);
    }
  }
  plan.random_without_generator = plan.generator < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
  plan.takes_cpu_tensors = ops_taking_cpu_tensors().count(op.schema().name()) > 0;
  return plan;
}

const OpPlan& plan_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OpPlan> plans;
  const c10::FunctionSchema* key = &op.schema();
  auto found = plans.find(key);
  if (found == plans.end()) {
    found = plans.emplace(key, make_plan(op)).first;
  }
  return found->second;
}

struct Entry {
  at::Tensor musa;
  at::Tensor alias;
  c10::StorageImpl* cpu_storage;
  bool write;
};

// One call: its arguments' aliases, and the device they live on.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), plan_(plan_of(op)), stack_(stack), begin_(stack->size() - op.schema().arguments().size()) {}

  void run() {
    convert_arguments();
    check_devices();
    TORCH_CHECK_NOT_IMPLEMENTED(
        op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
        "Could not run '", op_.operator_name(),
        "' with arguments from the 'musa' backend: the simulated device has no kernel for it");
    set_generator();
    try {
      invoke();
    } catch (...) {
      sync_written(/*metadata=*/false);
      throw;
    }
    sync_written(/*metadata=*/true);
    map_results();
  }

 private:
  void convert_arguments() {
    const size_t count = stack_->size() - begin_;
    for (size_t i = 0; i < count; ++i) {
      c10::IValue& value = (*stack_)[begin_ + i];
      if (value.isTensor()) {
        value = convert(value.toTensor(), i, true);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        list.reserve(value.toListRef().size());
        for (const c10::IValue& item : value.toListRef()) {
          list.push_back(convert(item.toTensor(), i, false));
        }
        value = std::move(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const c10::IValue& item : value.toListRef()) {
          list.push_back(item.isNone() ? std::optional<at::Tensor>() : convert(item.toTensor(), i, false));
        }
        value = std::move(list);
      } else if (value.isDevice() && value.toDevice().type() == kMusa) {
        const c10::Device device = value.toDevice();
        set_device(c10::Device(kMusa, device.has_index() ? device.index() : c10::DeviceIndex(current_device())), i);
        value = c10::Device(c10::kCPU);
      }
    }
  }

  at::Tensor convert(const at::Tensor& tensor, size_t argument, bool dedupe) {
    if (!tensor.defined()) {
      return tensor;
    }
    const bool write = plan_.writes[argument];
    if (tensor.device().type() != kMusa) {
      const bool scalar = tensor.device().is_cpu() && tensor.dim() == 0 && !write;
      if (!scalar && !foreign_.has_value()) {
        foreign_ = tensor.device();
        foreign_argument_ = argument;
        foreign_written_ = write;
      }
      return tensor;
    }
    set_device(tensor.device(), argument);
    numel_ = std::max(numel_, tensor.numel());
    if (dedupe) {  // kernels compare tensors by identity, e.g. for x.add_(x)
      for (Entry& entry : entries_) {
        if (entry.musa.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) {
          entry.write = entry.write || write;
          return entry.alias;
        }
      }
    }
    at::Tensor alias = cpu_alias(tensor);
    entries_.push_back({tensor, alias, alias.storage().unsafeGetStorageImpl(), write});
    return alias;
  }

  void set_device(c10::Device device, size_t argument) {
    if (device_ < 0) {
      device_ = device.index();
    } else if (device_ != device.index() && !other_.has_value()) {
      other_ = device;
      foreign_argument_ = argument;
    }
  }

  void check_devices() const {
    std::optional<c10::Device> wrong = other_;
    const bool refused = foreign_.has_value() && (!plan_.takes_cpu_tensors || foreign_written_);
    if (!wrong.has_value() && device_ >= 0 && refused) {
      wrong = foreign_;
    }
    if (C10_LIKELY(!wrong.has_value())) {
      return;
    }
    const auto& schema = op_.schema();
    TORCH_CHECK(
        false,
        "Expected all tensors to be on the same device, but found at least two devices, musa:", device_, " and ",
        *wrong, "! (when checking argument ", schema.arguments()[foreign_argument_].name(), " in method ",
        schema.name(), ")");
  }

  void set_generator() {
    if (plan_.generator < 0 || device_ < 0) {
      return;
    }
    c10::IValue& value = (*stack_)[begin_ + plan_.generator];
    std::optional<at::Generator> given;
    if (value.isGenerator()) {
      given = value.toGenerator();
    }
    value = draw_cpu_generator(given, device_, numel_);
  }

  void invoke() {
    const DeviceMemoryScope memory(device_);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::optional<DefaultCpuRngScope> rng;
    if (plan_.random_without_generator && device_ >= 0) {
      rng.emplace(draw_key(std::nullopt, device_, numel_));
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
  }

  // Carries what the kernel changed in a written alias (memory, sizes, strides) over to the musa tensor. After a failure
  // only the memory: a resize that ran out of memory has set sizes that its storage does not have.
  void sync_written(bool metadata) {
    for (Entry& entry : entries_) {
      if (!entry.write) {
        continue;
      }
      c10::StorageImpl* cpu = entry.alias.storage().unsafeGetStorageImpl();
      TORCH_CHECK(cpu == entry.cpu_storage, op_.operator_name(), " replaced the storage of a musa tensor");
      c10::StorageImpl* musa = entry.musa.storage().unsafeGetStorageImpl();
      if (cpu->data() != musa->data() || cpu->nbytes() != musa->nbytes()) {
        rebind_storage(entry.musa.storage());
      }
      const at::Tensor& alias = entry.alias;
      if (!metadata) {
        continue;
      }
      if (alias.sizes() != entry.musa.sizes() || alias.strides() != entry.musa.strides() ||
          alias.storage_offset() != entry.musa.storage_offset()) {
        entry.musa.unsafeGetTensorImpl()->set_sizes_and_strides(
            alias.sizes(), alias.strides(), alias.storage_offset());
      }
    }
  }

  void map_results() {
    if (device_ < 0) {
      return;
    }
    const size_t first = stack_->size() - op_.schema().returns().size();
    for (size_t i = first; i < stack_->size(); ++i) {
      c10::IValue& value = (*stack_)[i];
      if (value.isTensor()) {
        value = map_result(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const c10::IValue& item : value.toListRef()) {
          list.push_back(map_result(item.toTensor()));
        }
        value = std::move(list);
      }
    }
  }

  at::Tensor map_result(const at::Tensor& out) {
    if (!out.defined() || !out.device().is_cpu()) {
      return out;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        out.layout() == c10::kStrided && out.has_storage(),
        op_.operator_name(), " gives a ", out.layout(), " tensor, which the simulated musa device cannot hold");
    const c10::StorageImpl* storage = out.storage().unsafeGetStorageImpl();
    const Entry* same_memory = nullptr;
    for (const Entry& entry : entries_) {
      if (entry.alias.unsafeGetTensorImpl() == out.unsafeGetTensorImpl()) {
        return entry.musa;
      }
      if (entry.cpu_storage == storage && same_memory == nullptr) {
        same_memory = &entry;
      }
    }
    if (same_memory != nullptr) {
      return musa_view_like(out, same_memory->musa);
    }
    for (const auto& [known, tensor] : fresh_) {
      if (known == storage) {
        return musa_view_like(out, tensor);
      }
    }
    at::Tensor result = musa_alias(out, static_cast<c10::DeviceIndex>(device_));
    fresh_.emplace_back(storage, result);
    return result;
  }

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  torch::jit::Stack* stack_;
  size_t begin_;
  int device_ = -1;
  int64_t numel_ = 1;
  std::optional<c10::Device> other_;    // a second musa device
  std::optional<c10::Device> foreign_;  // a tensor elsewhere that is no host scalar
  size_t foreign_argument_ = 0;
  bool foreign_written_ = false;
  c10::SmallVector<Entry, 4> entries_;
  c10::SmallVector<std::pair<const c10::StorageImpl*, at::Tensor>, 2> fresh_;
};

bool has_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_initialized();
  check_op_allowed(op, stack);
  Call(op, stack).run();
}

int bind_composites() {
  // Leaked: the registrations live as long as the process.
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>();
  auto& dispatcher = c10::Dispatcher::singleton();
  int bound = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || !has_composite(*op) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    handles->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&cpu_fallback>(),
        std::nullopt, nullptr, "musa_sim: CPU kernel instead of the composite"));
    ++bound;
  }
  return bound;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}

}  // namespace musa_sim
