#include "mccl_tensors.h"

#include <algorithm>
#include <numeric>

#include <c10/util/irange.h>

namespace musa_sim {

namespace {

// The dtypes of torch_musa's own table (csrc/distributed). int16 and complex are not in it; complex tensors
// reach a backend as real views.
bool has_mccl_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kInt:
    case at::kChar:
    case at::kByte:
    case at::kLong:
    case at::kHalf:
    case at::kDouble:
    case at::kBool:
    case at::kBFloat16:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_tensor(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_WITH(
      ValueError, tensor.device().type() == kMusa && !tensor.is_sparse(),
      "mccl: ", name, ": Tensors must be MUSA and dense, found one on ", tensor.device());
  TORCH_CHECK_WITH(
      ValueError, tensor.is_non_overlapping_and_dense(), "mccl: ", name, ": Tensors must be contiguous, found sizes ",
      tensor.sizes(), " with strides ", tensor.strides());
  TORCH_CHECK_WITH(
      TypeError, has_mccl_dtype(tensor.scalar_type()),
      "Input tensor data type is not supported for MCCL process group: ", tensor.scalar_type(), " (", name, ")");
  TORCH_CHECK_WITH(
      ValueError, !tensor.is_conj() && !tensor.is_neg(),
      "mccl: ", name, ": the tensor is a lazy conjugate or negative view; call resolve_conj() or resolve_neg() first");
}

const at::Tensor& only_tensor(const char* name, const Tensors& tensors) {
  TORCH_CHECK_WITH(
      ValueError, tensors.size() == 1, "mccl: ", name, " takes one tensor from each rank, found ", tensors.size());
  check_tensor(name, tensors[0]);
  return tensors[0];
}

void check_list(const char* name, const Tensors& tensors, int size) {
  TORCH_CHECK_WITH(
      ValueError, tensors.size() == static_cast<size_t>(size),
      "mccl: ", name, " needs one tensor for each of ", size, " ranks, found ", tensors.size());
  for (const auto& t : tensors) {
    check_tensor(name, t);
  }
}

const Tensors& only_list(const char* name, const std::vector<Tensors>& lists, int size) {
  TORCH_CHECK_WITH(ValueError, lists.size() == 1, "mccl: ", name, " takes one list of tensors, found ", lists.size());
  check_list(name, lists[0], size);
  return lists[0];
}

void check_sizes(const char* name, const at::Tensor& whole, const at::Tensor& part, int size) {
  check_tensor(name, whole);
  check_tensor(name, part);
  TORCH_CHECK_WITH(
      TypeError, whole.scalar_type() == part.scalar_type(),
      "mccl: ", name, ": input and output differ in dtype: ", whole.scalar_type(), " and ", part.scalar_type());
  TORCH_CHECK_WITH(
      ValueError, whole.numel() == part.numel() * size,
      "mccl: ", name, ": the whole tensor must have ", size, " times the elements of one rank's part; found ",
      whole.numel(), " and ", part.numel());
}

at::Tensor flat_alias(const at::Tensor& tensor) {
  auto alias = cpu_alias(tensor);
  return alias.as_strided({alias.numel()}, {1}, alias.storage_offset());
}

at::Tensor flat_bytes(const at::Tensor& tensor) {
  return flat_alias(tensor).view(at::kByte);
}

Tensors flat_bytes(const Tensors& tensors) {
  Tensors flat;
  for (const auto& t : tensors) {
    flat.push_back(flat_bytes(t));
  }
  return flat;
}

std::vector<int64_t> split_bytes(
    const char* name, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  check_tensor(name, tensor);
  TORCH_CHECK_WITH(ValueError, tensor.dim() > 0, "mccl: ", name, " needs a tensor with at least one dimension");
  const int64_t rows = tensor.size(0);
  const int64_t row_bytes = rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
  if (splits.empty()) {
    TORCH_CHECK_WITH(
        ValueError, rows % size == 0, "mccl: ", name, ": dimension 0 is ", rows, ", not a multiple of ", size, " ranks");
    return std::vector<int64_t>(size, rows / size * row_bytes);
  }
  TORCH_CHECK_WITH(
      ValueError, splits.size() == static_cast<size_t>(size) && sum(splits) == rows,
      "mccl: ", name, ": splits ", splits, " do not share out ", rows, " rows among ", size, " ranks");
  std::vector<int64_t> bytes(splits);
  std::transform(bytes.begin(), bytes.end(), bytes.begin(), [&](int64_t n) { return n * row_bytes; });
  return bytes;
}

std::vector<int64_t> lengths(const Tensors& flat) {
  std::vector<int64_t> all;
  for (const auto& t : flat) {
    all.push_back(t.numel());
  }
  return all;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::function<void()> in_order(std::vector<std::function<void()>> steps) {
  return [steps = std::move(steps)] {
    for (const auto& step : steps) {
      step();
    }
  };
}

Reduction::Reduction(c10d::ReduceOp op, at::ScalarType dtype, int size) : gloo_op_(op), size_(size) {
  using Op = c10d::ReduceOp;
  TORCH_CHECK_WITH(
      ValueError, gloo_op_ != Op::BAND && gloo_op_ != Op::BOR && gloo_op_ != Op::BXOR,
      "Cannot use bitwise ReduceOp (BAND, BOR, BXOR) with MCCL");
  TORCH_CHECK_WITH(
      TypeError, dtype != at::kFloat8_e5m2 && dtype != at::kFloat8_e4m3fn,
      "mccl: reductions of float8 are not simulated: cast to bfloat16 first");
  if (dtype == at::kBool) {
    TORCH_CHECK_WITH(TypeError, gloo_op_ != Op::AVG, "Cannot use ReduceOp.AVG with Boolean inputs");
    as_bytes_ = true;  // gloo would add the bytes: True + True = 2, which is no bool
    gloo_op_ = gloo_op_ == Op::SUM ? Op::MAX : gloo_op_ == Op::PRODUCT ? Op::MIN : gloo_op_;
  }
  if (gloo_op_ == Op::AVG) {
    average_ = true;
    gloo_op_ = Op::SUM;
  }
  if (gloo_op_ == Op::PREMUL_SUM) {
    const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK(supplement != nullptr, "mccl: PREMUL_SUM came without its factor");
    TORCH_CHECK_WITH(
        TypeError, at::isFloatingType(dtype), "mccl: PREMUL_SUM needs a floating-point tensor, found ", dtype);
    scaled_ = true;
    factor_ = supplement->double_factor;
    if (supplement->tensor_factor.defined()) {
      tensor_factor_ = cpu_alias(supplement->tensor_factor);
    }
    gloo_op_ = Op::SUM;
  }
}

at::Tensor Reduction::view(const at::Tensor& tensor) const {
  return as_bytes_ ? flat_bytes(tensor) : flat_alias(tensor);
}

void Reduction::scale(at::Tensor& buffer) const {
  if (scaled_) {
    tensor_factor_.defined() ? buffer.mul_(tensor_factor_) : buffer.mul_(factor_);
  }
}

at::Tensor Reduction::prepare(const at::Tensor& tensor) const {
  auto buffer = view(tensor);
  scale(buffer);
  return buffer;
}

at::Tensor Reduction::prepare_copy(const at::Tensor& tensor) const {
  auto buffer = view(tensor).clone();
  scale(buffer);
  return buffer;
}

void Reduction::finish(const at::Tensor& buffer) const {
  if (!average_) {
    return;
  }
  if (at::isFloatingType(buffer.scalar_type())) {
    buffer.div_(size_);
  } else {
    buffer.div_(size_, "trunc");
  }
}

}  // namespace musa_sim
