// scaled_dot_product_attention: the CPU's own choice of algorithm, with its flash kernel behind the op that PyTorch
// keeps for out-of-tree devices. Without this the math path is taken and differs from CPU in the last bits.
#include "generator.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace musa_sim {
namespace {

std::optional<at::Tensor> alias_or_none(const std::optional<at::Tensor>& tensor) {
  if (!tensor.has_value() || !tensor->defined()) {
    return std::nullopt;
  }
  return cpu_alias(*tensor);
}

using Forward = std::tuple<
    at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

Forward attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& bias,
    double dropout_p, bool is_causal, bool, std::optional<double> scale) {
  ensure_initialized();
  const c10::DeviceIndex device = query.device().index();
  const DeviceMemoryScope memory(device);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      cpu_alias(query), cpu_alias(key), cpu_alias(value), dropout_p, is_causal, alias_or_none(bias), scale);
  const at::Tensor none = at::empty({0}, query.options().dtype(c10::kLong));
  return {musa_alias(out, device), musa_alias(lse, device), none, none, query.sym_size(2), key.sym_size(2), none,
          none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> mask, const at::Tensor& out, const at::Tensor& lse,
    const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt, double dropout_p, bool is_causal,
    const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
  const c10::DeviceIndex device = query.device().index();
  TORCH_CHECK_NOT_IMPLEMENTED(!mask[3], "attention: no gradient for the mask on the fused path");
  const DeviceMemoryScope memory(device);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      cpu_alias(grad), cpu_alias(query), cpu_alias(key), cpu_alias(value), cpu_alias(out), cpu_alias(lse), dropout_p,
      is_causal, alias_or_none(bias), scale);
  return {musa_alias(dq, device), musa_alias(dk, device), musa_alias(dv, device), at::Tensor()};
}

}  // namespace

int64_t choose_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  // The CPU's rules look at requires_grad, which aliases do not carry.
  const auto as_cpu = [](const at::Tensor& t) {
    at::Tensor alias = cpu_alias(t);
    return t.requires_grad() ? alias.requires_grad_(true) : alias;
  };
  std::optional<at::Tensor> cpu_mask;
  if (mask.has_value() && mask->defined()) {
    cpu_mask = as_cpu(*mask);
  }
  const int64_t choice = at::_fused_sdp_choice(
      as_cpu(query), as_cpu(key), as_cpu(value), cpu_mask, dropout_p, is_causal, scale, enable_gqa);
  return choice == static_cast<int64_t>(sdp::SDPBackend::flash_attention)
      ? static_cast<int64_t>(sdp::SDPBackend::overrideable)
      : choice;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
}

}  // namespace musa_sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &musa_sim::choose_attention)
}  // namespace at::native
