// What mccl does to tensors before gloo sees them: checks, flat cpu aliases, and the arithmetic gloo lacks.
#pragma once

#include "musa_sim.h"

#include <functional>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace musa_sim {

using Tensors = std::vector<at::Tensor>;

// A device library's checks: on musa, dense, of a dtype MCCL has. Each raises as torch_musa does.
void check_tensor(const char* name, const at::Tensor& tensor);
const at::Tensor& only_tensor(const char* name, const Tensors& tensors);
void check_list(const char* name, const Tensors& tensors, int size);
const Tensors& only_list(const char* name, const std::vector<Tensors>& lists, int size);
// `whole` holds `size` times the elements of `part`, of the same dtype.
void check_sizes(const char* name, const at::Tensor& whole, const at::Tensor& part, int size);

// The tensor's memory as a flat cpu alias: in its own dtype, or as bytes (all that moving data needs).
at::Tensor flat_alias(const at::Tensor& tensor);
at::Tensor flat_bytes(const at::Tensor& tensor);
Tensors flat_bytes(const Tensors& tensors);

// Bytes for each peer, from splits along dimension 0 (none: equal parts).
std::vector<int64_t> split_bytes(
    const char* name, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size);
std::vector<int64_t> lengths(const Tensors& flat);
int64_t sum(const std::vector<int64_t>& values);
std::function<void()> in_order(std::vector<std::function<void()>> steps);

// One reduction as gloo can do it: AVG is SUM and a division, PREMUL_SUM scales first, bool is logical.
class Reduction {
 public:
  // Raises for what MCCL refuses: bitwise ops, AVG of bool, dtypes without arithmetic.
  Reduction(c10d::ReduceOp op, at::ScalarType dtype, int size);
  c10d::ReduceOp gloo_op() const {
    return gloo_op_;
  }
  at::Tensor view(const at::Tensor& tensor) const;
  at::Tensor prepare(const at::Tensor& tensor) const;       // in the tensor's own memory
  at::Tensor prepare_copy(const at::Tensor& tensor) const;  // in scratch memory
  void finish(const at::Tensor& buffer) const;

 private:
  void scale(at::Tensor& buffer) const;

  c10d::ReduceOp::RedOpType gloo_op_;
  int size_;
  bool average_ = false;
  bool as_bytes_ = false;
  double factor_ = 1.0;
  at::Tensor tensor_factor_;
  bool scaled_ = false;
};

}  // namespace musa_sim
