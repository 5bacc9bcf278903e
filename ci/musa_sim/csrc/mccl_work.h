// Work objects that mccl hands out: each wraps the gloo works that carry the bytes.
#pragma once

#include "musa_sim.h"

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace musa_sim {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// What is known about one call; every error message is made from it.
struct CallInfo {
  std::string name;  // torch.distributed's function name, e.g. "all_reduce"
  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::vector<at::Tensor> outputs;  // musa tensors: the value of the work's future
  int64_t bytes = 0;                // this rank's contribution (what it receives, for recv)
  int rank = 0;
  int size = 1;
  uint64_t seq = 0;
  std::string group;
  std::chrono::milliseconds timeout{0};

  std::string describe() const;
};

// A DistBackendError that says which call failed and why.
std::exception_ptr backend_error(const CallInfo& call, const std::string& why);

// A collective. Completes when every inner work has completed and `finalize` (division of AVG,
// copies out of scratch buffers) has run on the thread that completed the last of them.
class CollectiveWork : public c10d::Work {
 public:
  explicit CollectiveWork(CallInfo call);
  // Neither returns before the work knows its inner works; both may complete it at once.
  static WorkPtr start(CallInfo call, const std::vector<WorkPtr>& inner, std::function<void()> finalize);
  // A work that no peer will ever join: fails when `call.timeout` has passed.
  static WorkPtr hang(CallInfo call);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  FuturePtr getFuture() override {
    return future_;
  }
  std::vector<at::Tensor> result() override {
    return call_.outputs;
  }
  uint64_t getSequencenumber() const override {
    return call_.seq;
  }
  void abort() override;

 private:
  void inner_done(c10::ivalue::Future& inner);
  void complete(std::exception_ptr error);

  CallInfo call_;
  FuturePtr future_;
  std::function<void()> finalize_;
  std::mutex pending_mutex_;
  size_t pending_ = 0;
  std::exception_ptr inner_error_;
};

// send and recv: gloo completes these only inside wait(), so there is no future to give.
class PointToPointWork : public c10d::Work {
 public:
  PointToPointWork(CallInfo call, WorkPtr inner);
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override {
    return call_.outputs;
  }
  uint64_t getSequencenumber() const override {
    return call_.seq;
  }
  void abort() override;

 private:
  CallInfo call_;
  WorkPtr inner_;
};

// Everything issued between startCoalescing and endCoalescing.
class GroupedWork : public c10d::Work {
 public:
  GroupedWork(int rank, std::vector<WorkPtr> works);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  FuturePtr getFuture() override;
  std::vector<at::Tensor> result() override;
  void abort() override;

 private:
  std::vector<WorkPtr> works_;
};

}  // namespace musa_sim
