// torch.autocast("musa"): the op lists that PyTorch offers every accelerator.
#include "musa_sim.h"

#include <ATen/autocast_mode.h>

namespace at::autocast {
namespace {

// Sigmoid output in half precision makes this loss unstable; every backend refuses it.
at::Tensor binary_cross_entropy_refused(
    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; use "
      "binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, or disable autocast around the loss");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define MUSA_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define MUSA_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define MUSA_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define MUSA_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(MUSA_LOWER)
  AT_FORALL_FP32(MUSA_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(MUSA_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(MUSA_PROMOTE)
#undef MUSA_LOWER
#undef MUSA_FP32
#undef MUSA_FP32_DTYPE
#undef MUSA_PROMOTE
  m.impl("binary_cross_entropy", &binary_cross_entropy_refused);
}

}  // namespace at::autocast
