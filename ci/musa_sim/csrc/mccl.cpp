#include "mccl.h"

#include <algorithm>

#include <c10/util/irange.h>

#include "faults.h"
#include "mccl_tensors.h"

namespace musa_sim {

using c10d::OpType;

ProcessGroupMCCL::ProcessGroupMCCL(BackendPtr gloo, int rank, int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size), gloo_(std::move(gloo)), options_(std::move(options)) {}

ProcessGroupMCCL::~ProcessGroupMCCL() {
  // gloo joins its threads when it goes, and a callback on one of them may want the GIL.
  if (Py_IsInitialized() && PyGILState_Check()) {
    pybind11::gil_scoped_release no_gil;
    gloo_.reset();
  }
}

void ProcessGroupMCCL::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  gloo_->setTimeout(timeout);
}

void ProcessGroupMCCL::abort() {
  gloo_->abort();
}

void ProcessGroupMCCL::shutdown() {
  gloo_->shutdown();
}

ProcessGroupMCCL::BackendPtr ProcessGroupMCCL::split(
    const StorePtr& store, const std::vector<int>& ranks, const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  auto options = c10::make_intrusive<Options>(opts ? opts->timeout : options_->timeout);
  options->group_name = opts ? opts->group_name : options_->group_name;
  return create(store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), options);
}

void ProcessGroupMCCL::startCoalescing() {
  TORCH_CHECK(!coalescing_, "mccl: startCoalescing was called twice without endCoalescing");
  coalescing_ = true;
}

WorkPtr ProcessGroupMCCL::endCoalescing() {
  TORCH_CHECK(coalescing_, "mccl: endCoalescing was called without startCoalescing");
  coalescing_ = false;
  return c10::make_intrusive<GroupedWork>(rank_, std::exchange(coalesced_, {}));
}

CallInfo ProcessGroupMCCL::describe_call(
    const char* name, OpType type, const Tensors& outputs, const Tensors& inputs, std::chrono::milliseconds timeout) {
  CallInfo call;
  call.name = name;
  call.type = type;
  call.outputs = outputs;
  for (const auto& t : inputs) {
    call.bytes += static_cast<int64_t>(t.nbytes());
  }
  call.rank = rank_;
  call.size = size_;
  call.seq = ++seq_;
  call.group = options_->group_name;
  call.timeout = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  return call;
}

WorkPtr ProcessGroupMCCL::track(WorkPtr work) {
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

WorkPtr ProcessGroupMCCL::run(CallInfo call, const std::function<Started()>& start) {
  count_mccl_call(call.name, call.bytes);
  switch (on_collective(call.name, call.rank)) {
    case CollectiveFault::Hang:
      return track(CollectiveWork::hang(std::move(call)));
    case CollectiveFault::Error:
      std::rethrow_exception(backend_error(call, "failed: injected by MUSA_SIM_FAULTS or torch_musa.faults"));
    case CollectiveFault::None:
      break;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto started = start();
  return track(CollectiveWork::start(std::move(call), started.works, std::move(started.finalize)));
}

WorkPtr ProcessGroupMCCL::point_to_point(CallInfo call, const std::function<WorkPtr()>& start) {
  count_mccl_call(call.name, call.bytes);
  switch (on_collective(call.name, call.rank)) {
    case CollectiveFault::Hang:
      return track(CollectiveWork::hang(std::move(call)));
    case CollectiveFault::Error:
      std::rethrow_exception(backend_error(call, "failed: injected by MUSA_SIM_FAULTS or torch_musa.faults"));
    case CollectiveFault::None:
      break;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return track(c10::make_intrusive<PointToPointWork>(std::move(call), start()));
}

WorkPtr ProcessGroupMCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto& tensor = only_tensor("broadcast", tensors);
  return run(describe_call("broadcast", OpType::BROADCAST, tensors, tensors, opts.timeout), [&]() -> Started {
    Tensors flat{flat_bytes(tensor)};
    return {{gloo_->broadcast(flat, opts)}, nullptr};
  });
}

WorkPtr ProcessGroupMCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto& tensor = only_tensor("all_reduce", tensors);
  return run(describe_call("all_reduce", OpType::ALLREDUCE, tensors, tensors, opts.timeout), [&]() -> Started {
    Reduction reduction(opts.reduceOp, tensor.scalar_type(), size_);
    auto own = opts;
    own.reduceOp = reduction.gloo_op();
    Tensors flat{reduction.prepare(tensor)};
    auto work = gloo_->allreduce(flat, own);
    return {{work}, [reduction, buffer = flat[0]] { reduction.finish(buffer); }};
  });
}

WorkPtr ProcessGroupMCCL::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  auto call = describe_call("all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, tensors, tensors, opts.timeout);
  return run(std::move(call), [&]() -> Started {
    Started started;
    std::vector<std::function<void()>> rest;
    for (const auto& tensor : tensors) {
      Reduction reduction(opts.reduceOp, tensor.scalar_type(), size_);
      auto own = static_cast<const c10d::AllreduceOptions&>(opts);
      own.reduceOp = reduction.gloo_op();
      Tensors flat{reduction.prepare(tensor)};
      started.works.push_back(gloo_->allreduce(flat, own));
      rest.emplace_back([reduction, buffer = flat[0]] { reduction.finish(buffer); });
    }
    started.finalize = in_order(std::move(rest));
    return started;
  });
}

WorkPtr ProcessGroupMCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto& tensor = only_tensor("reduce", tensors);
  return run(describe_call("reduce", OpType::REDUCE, tensors, tensors, opts.timeout), [&]() -> Started {
    Reduction reduction(opts.reduceOp, tensor.scalar_type(), size_);
    auto own = opts;
    own.reduceOp = reduction.gloo_op();
    // A copy: gloo scribbles on the other ranks' buffers, which a device library leaves alone.
    Tensors scratch{reduction.prepare_copy(tensor)};
    auto work = gloo_->reduce(scratch, own);
    if (rank_ != opts.rootRank) {
      return {{work}, nullptr};
    }
    return {{work}, [reduction, buffer = scratch[0], out = reduction.view(tensor)] {
              reduction.finish(buffer);
              out.copy_(buffer);
            }};
  });
}

WorkPtr ProcessGroupMCCL::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const auto& input = only_tensor("all_gather", inputs);
  const auto& outs = only_list("all_gather", outputs, size_);
  return run(describe_call("all_gather", OpType::ALLGATHER, outs, inputs, opts.timeout), [&]() -> Started {
    const bool even = std::all_of(outs.begin(), outs.end(), [&](const auto& o) { return o.numel() == input.numel(); });
    auto flat_outs = flat_bytes(outs);
    if (even) {
      std::vector<Tensors> lists{flat_outs};
      Tensors flat_in{flat_bytes(input)};
      return {{gloo_->allgather(lists, flat_in, opts)}, nullptr};
    }
    // Ranks bring different sizes: one broadcast from each, as device libraries do it.
    flat_outs[rank_].copy_(flat_bytes(input));
    Started started;
    for (const auto root : c10::irange(size_)) {
      c10d::BroadcastOptions own;
      own.rootRank = root;
      own.timeout = opts.timeout;
      Tensors one{flat_outs[root]};
      started.works.push_back(gloo_->broadcast(one, own));
    }
    return started;
  });
}

WorkPtr ProcessGroupMCCL::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  check_sizes("all_gather_into_tensor", output, input, size_);
  auto call = describe_call("all_gather_into_tensor", OpType::_ALLGATHER_BASE, {output}, {input}, opts.timeout);
  return run(std::move(call), [&]() -> Started {
    auto flat_out = flat_bytes(output);
    auto flat_in = flat_bytes(input);
    return {{gloo_->_allgather_base(flat_out, flat_in, opts)}, nullptr};
  });
}

WorkPtr ProcessGroupMCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "mccl: all_gather_into_tensor_coalesced got ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  auto call = describe_call("all_gather_into_tensor_coalesced", OpType::COALESCED, outputs, inputs, opts.timeout);
  return run(std::move(call), [&]() -> Started {
    Started started;
    for (const auto i : c10::irange(inputs.size())) {
      check_sizes("all_gather_into_tensor_coalesced", outputs[i], inputs[i], size_);
      auto flat_out = flat_bytes(outputs[i]);
      auto flat_in = flat_bytes(inputs[i]);
      started.works.push_back(gloo_->_allgather_base(flat_out, flat_in, opts));
    }
    return started;
  });
}

WorkPtr ProcessGroupMCCL::gather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const auto& input = only_tensor("gather", inputs);
  const Tensors outs = rank_ == opts.rootRank ? only_list("gather", outputs, size_) : Tensors{};
  return run(describe_call("gather", OpType::GATHER, outs, inputs, opts.timeout), [&]() -> Started {
    std::vector<Tensors> lists;
    if (rank_ == opts.rootRank) {
      lists.push_back(flat_bytes(outs));
    }
    Tensors flat_in{flat_bytes(input)};
    return {{gloo_->gather(lists, flat_in, opts)}, nullptr};
  });
}

WorkPtr ProcessGroupMCCL::scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const auto& output = only_tensor("scatter", outputs);
  const Tensors ins = rank_ == opts.rootRank ? only_list("scatter", inputs, size_) : Tensors{};
  return run(describe_call("scatter", OpType::SCATTER, outputs, ins, opts.timeout), [&]() -> Started {
    std::vector<Tensors> lists;
    if (rank_ == opts.rootRank) {
      lists.push_back(flat_bytes(ins));
    }
    Tensors flat_out{flat_bytes(output)};
    return {{gloo_->scatter(flat_out, lists, opts)}, nullptr};
  });
}

// gloo's own reduce-scatter gives no future, so it cannot be finished asynchronously; an all-reduce of a copy can.
ProcessGroupMCCL::Started ProcessGroupMCCL::start_reduce_scatter(
    const at::Tensor& output, const at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  check_sizes("reduce_scatter_tensor", input, output, size_);
  Reduction reduction(opts.reduceOp, input.scalar_type(), size_);
  c10d::AllreduceOptions own;
  own.reduceOp = reduction.gloo_op();
  own.timeout = opts.timeout;
  Tensors scratch{reduction.prepare_copy(input)};
  auto work = gloo_->allreduce(scratch, own);
  auto chunk = scratch[0].narrow(0, rank_ * output.numel(), output.numel());
  return {{work}, [reduction, chunk, out = reduction.view(output)] {
            reduction.finish(chunk);
            out.copy_(chunk);
          }};
}

WorkPtr ProcessGroupMCCL::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  auto call = describe_call("reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, {output}, {input}, opts.timeout);
  return run(std::move(call), [&] { return start_reduce_scatter(output, input, opts); });
}

WorkPtr ProcessGroupMCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "mccl: reduce_scatter_tensor_coalesced got ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  auto call = describe_call(
      "reduce_scatter_tensor_coalesced", OpType::REDUCE_SCATTER_TENSOR_COALESCED, outputs, inputs, opts.timeout);
  return run(std::move(call), [&]() -> Started {
    Started all;
    std::vector<std::function<void()>> rest;
    for (const auto i : c10::irange(inputs.size())) {
      auto one = start_reduce_scatter(outputs[i], inputs[i], opts);
      all.works.push_back(one.works[0]);
      rest.push_back(std::move(one.finalize));
    }
    all.finalize = in_order(std::move(rest));
    return all;
  });
}

WorkPtr ProcessGroupMCCL::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  const auto& output = only_tensor("reduce_scatter", outputs);
  const auto& ins = only_list("reduce_scatter", inputs, size_);
  return run(describe_call("reduce_scatter", OpType::REDUCE_SCATTER, outputs, ins, opts.timeout), [&]() -> Started {
    TORCH_CHECK_WITH(
        ValueError, ins[rank_].numel() == output.numel(),
        "mccl: reduce_scatter on rank ", rank_, " needs an output of ", ins[rank_].numel(), " elements, found ", output.numel());
    Reduction reduction(opts.reduceOp, output.scalar_type(), size_);
    c10d::AllreduceOptions own;
    own.reduceOp = reduction.gloo_op();
    own.timeout = opts.timeout;
    Started started;
    at::Tensor mine;
    for (const auto i : c10::irange(size_)) {  // sizes may differ by rank, so one reduction for each
      Tensors scratch{reduction.prepare_copy(ins[i])};
      started.works.push_back(gloo_->allreduce(scratch, own));
      if (i == rank_) {
        mine = scratch[0];
      }
    }
    started.finalize = [reduction, mine, out = reduction.view(output)] {
      reduction.finish(mine);
      out.copy_(mine);
    };
    return started;
  });
}

WorkPtr ProcessGroupMCCL::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  auto out_bytes = split_bytes("all_to_all_single (output)", output, output_splits, size_);
  auto in_bytes = split_bytes("all_to_all_single (input)", input, input_splits, size_);
  auto call = describe_call("all_to_all_single", OpType::ALLTOALL_BASE, {output}, {input}, opts.timeout);
  return run(std::move(call), [&]() -> Started {
    auto flat_out = flat_bytes(output);
    auto flat_in = flat_bytes(input);
    return {{gloo_->alltoall_base(flat_out, flat_in, out_bytes, in_bytes, opts)}, nullptr};
  });
}

WorkPtr ProcessGroupMCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  check_list("all_to_all (output)", outputs, size_);
  check_list("all_to_all (input)", inputs, size_);
  return run(describe_call("all_to_all", OpType::ALLTOALL, outputs, inputs, opts.timeout), [&]() -> Started {
    // Packed into one buffer for each direction: sizes may differ by peer.
    auto flat_outs = flat_bytes(outputs);
    auto packed_in = at::cat(flat_bytes(inputs));
    auto out_bytes = lengths(flat_outs);
    auto in_bytes = lengths(flat_bytes(inputs));
    auto packed_out = at::empty({sum(out_bytes)}, packed_in.options());
    auto given_bytes = out_bytes;  // gloo empties the vectors it is given
    auto work = gloo_->alltoall_base(packed_out, packed_in, given_bytes, in_bytes, opts);
    return {{work}, [packed_out, out_bytes, flat_outs] {
              const auto parts = packed_out.split_with_sizes(out_bytes);
              for (const auto i : c10::irange(parts.size())) {
                flat_outs[i].copy_(parts[i]);
              }
            }};
  });
}

// Tags are dropped: a device library matches sends and receives of two ranks by their order alone.
WorkPtr ProcessGroupMCCL::send(Tensors& tensors, int dst, int /*tag*/) {
  const auto& tensor = only_tensor("send", tensors);
  return point_to_point(describe_call("send", OpType::SEND, {}, tensors, c10d::kUnsetTimeout), [&] {
    Tensors flat{flat_bytes(tensor)};
    return gloo_->send(flat, dst, 0);
  });
}

WorkPtr ProcessGroupMCCL::recv(Tensors& tensors, int src, int /*tag*/) {
  const auto& tensor = only_tensor("recv", tensors);
  return point_to_point(describe_call("recv", OpType::RECV, tensors, tensors, c10d::kUnsetTimeout), [&] {
    Tensors flat{flat_bytes(tensor)};
    return gloo_->recv(flat, src, 0);
  });
}

WorkPtr ProcessGroupMCCL::barrier(const c10d::BarrierOptions& opts) {
  return run(describe_call("barrier", OpType::BARRIER, {}, {}, opts.timeout), [&]() -> Started {
    auto own = opts;
    own.device = std::nullopt;
    own.device_ids.clear();
    return {{gloo_->barrier(own)}, nullptr};
  });
}

}  // namespace musa_sim
