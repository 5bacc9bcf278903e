// mccl: the simulated device's c10d backend. Bytes are carried by gloo over zero-copy cpu aliases.
#pragma once

#include "musa_sim.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mccl_work.h"

namespace musa_sim {

struct CounterValue {
  uint64_t calls = 0;
  uint64_t bytes = 0;
};

// Per process, over all groups. A call is counted when it is issued, even if it then fails.
std::map<std::string, CounterValue> mccl_counters();
void reset_mccl_counters();
void count_mccl_call(const std::string& name, int64_t bytes);

class ProcessGroupMCCL : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout) : c10d::Backend::Options("mccl", timeout) {}
  };
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using Tensors = std::vector<at::Tensor>;

  ProcessGroupMCCL(BackendPtr gloo, int rank, int size, c10::intrusive_ptr<Options> options);
  ~ProcessGroupMCCL() override;

  // gloo's headers are not shipped with torch, so the transport is made by a Python factory.
  static c10::intrusive_ptr<ProcessGroupMCCL> create(
      const StorePtr& store, int rank, int size, c10::intrusive_ptr<Options> options);

  const std::string getBackendName() const override {
    return "mccl";
  }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return options_;
  }
  bool supportsSplitting() const override {
    return true;
  }
  bool supportsCoalescing() const override {
    return true;
  }
  c10d::ErrorType getError() override {
    return c10d::ErrorType::SUCCESS;
  }
  uint64_t getSequenceNumberForGroup() override {
    return seq_;
  }
  void setSequenceNumberForGroup() override {}
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  void shutdown() override;
  BackendPtr split(
      const StorePtr& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int dst, int tag) override;
  WorkPtr recv(Tensors& tensors, int src, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

 private:
  // What a collective has set going: the gloo works, and what is left to do after them.
  struct Started {
    std::vector<WorkPtr> works;
    std::function<void()> finalize;
  };
  CallInfo describe_call(
      const char* name, c10d::OpType type, const Tensors& outputs, const Tensors& inputs,
      std::chrono::milliseconds timeout);
  WorkPtr run(CallInfo call, const std::function<Started()>& start);
  WorkPtr track(WorkPtr work);
  WorkPtr point_to_point(CallInfo call, const std::function<WorkPtr()>& start);
  Started start_reduce_scatter(
      const at::Tensor& output, const at::Tensor& input, const c10d::ReduceScatterOptions& opts);

  BackendPtr gloo_;
  c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> seq_{0};
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace musa_sim
