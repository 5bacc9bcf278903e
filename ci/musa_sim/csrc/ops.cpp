// Ops that need a kernel of their own: memory, views, storages, copies, convolution, dropout.
#include "generator.h"

#include <ATen/NativeFunctions.h>

namespace musa_sim {
namespace {

constexpr c10::DispatchKeySet kMusaKeys(c10::DispatchKey::PrivateUse1);

// Makes `device` current while it lives; unlike c10::DeviceGuard it also covers an absent index.
class DeviceScope {
 public:
  explicit DeviceScope(std::optional<c10::Device> device) : previous_(current_device()) {
    ensure_initialized();
    if (device.has_value() && device->has_index()) {
      check_ordinal(device->index());
      exchange_device_unchecked(device->index());
    }
  }
  ~DeviceScope() {
    exchange_device_unchecked(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_;
};

void check_factory(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(c10::kStrided) == c10::kStrided, "the simulated musa device holds strided tensors only");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty_memory_format(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> memory_format) {
  check_factory(layout, pin_memory);
  const DeviceScope scope(device);
  return at::detail::empty_generic(
      size, device_allocator(), kMusaKeys, c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_factory(layout, pin_memory);
  const DeviceScope scope(device);
  return at::detail::empty_strided_generic(
      size, stride, device_allocator(), kMusaKeys, c10::dtype_or_default(dtype));
}

// A tensor of zeros that takes no memory, as autograd makes for gradients known to be zero: its storage is null and the
// ZeroTensor key keeps kernels away from it.
struct NullAllocator final : c10::Allocator {
  explicit NullAllocator(c10::Device device) : device_(device) {}
  c10::DataPtr allocate(size_t) override {
    return {nullptr, device_};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
  c10::Device device_;
};

at::Tensor efficient_zeros(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_factory(layout, pin_memory);
  const DeviceScope scope(device);
  NullAllocator allocator(c10::Device(kMusa, static_cast<c10::DeviceIndex>(current_device())));
  return at::detail::empty_generic(
      size, &allocator, kMusaKeys.add(c10::DispatchKey::ZeroTensor), c10::dtype_or_default(dtype), std::nullopt);
}

at::Tensor as_strided(
    const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor& set_storage(
    at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(
      source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
      "\" to a storage on different device \"", source.device(), "\"");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  const size_t itemsize = impl->itemsize();
  const size_t needed =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), itemsize, static_cast<size_t>(offset));
  if (self.numel() > 0 && needed > source.nbytes()) {
    resize_storage(source, needed);
  }
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  return self.is_same(source)
      ? self
      : set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const DeviceScope scope(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

// Every copy with a musa end: both ends are host memory, so the CPU's own copy does the work.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool) {
  ensure_initialized();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor target = cpu_alias(dst);
  target.copy_(cpu_alias(self));
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  ensure_initialized();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

void record_stream(at::Tensor&, c10::Stream) {
  ensure_initialized();  // work is synchronous: memory is never reused under a running kernel
}

bool compatible_shallow_copy(const at::Tensor& self, const at::Tensor& from) {
  const auto plain = [](const at::Tensor& t) { return t.layout() == c10::kStrided && t.has_storage(); };
  return plain(self) && plain(from);
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups) {
  const DeviceMemoryScope memory(input.device().index());
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::optional<at::Tensor> cpu_bias;
  if (bias.has_value() && bias->defined()) {
    cpu_bias = cpu_alias(*bias);
  }
  const at::Tensor out = at::convolution(
      cpu_alias(input), cpu_alias(weight), cpu_bias, stride, padding, dilation, transposed, output_padding, groups);
  return musa_alias(out, input.device().index());
}

at::Tensor to_musa(const at::Tensor& tensor, c10::DeviceIndex device) {
  return tensor.defined() ? musa_alias(tensor, device) : tensor;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  const c10::DeviceIndex device = input.device().index();
  const DeviceMemoryScope memory(device);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t channels = grad.size(1);
  auto [d_input, d_weight, d_bias] = at::convolution_backward(
      cpu_alias(grad), cpu_alias(input), cpu_alias(weight), at::OptionalIntArrayRef({channels}), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  return {to_musa(d_input, device), to_musa(d_weight, device), to_musa(d_bias, device)};
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(c10::kBool))};
  }
  if (p == 1) {
    return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(c10::kBool))};
  }
  const at::Tensor mask = at::empty_like(input, input.options().dtype(c10::kBool)).bernoulli_(1.0 - p);
  return {input.mul(mask).mul_(1.0 / (1.0 - p)), mask};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zeros);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Storage", &set_source_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_source_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &compatible_shallow_copy);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_dropout", &native_dropout);
}

// copy_ resolves these bits inside the kernel; without the fallthrough the dispatcher would resolve them by a clone,
// which copies, and so on without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace musa_sim
