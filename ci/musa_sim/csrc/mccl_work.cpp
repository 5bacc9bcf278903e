#include "mccl_work.h"

#include <algorithm>
#include <thread>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

namespace musa_sim {

namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

bool says_timeout(const std::string& text) {
  return text.find("imed out") != std::string::npos || text.find("imeout") != std::string::npos;
}

std::exception_ptr translate(const CallInfo& call, const std::exception_ptr& error) {
  const auto text = text_of(error);
  if (says_timeout(text)) {
    return backend_error(
        call,
        c10::str("did not finish within its timeout of ", call.timeout.count(), " ms: a peer is absent, stuck, or called something else (", text, ")"));
  }
  return backend_error(call, c10::str("failed: ", text));
}

FuturePtr make_future(const CallInfo& call) {
  std::vector<c10::Device> devices;
  for (const auto& t : call.outputs) {
    if (std::find(devices.begin(), devices.end(), t.device()) == devices.end()) {
      devices.push_back(t.device());
    }
  }
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
}

}  // namespace

std::string CallInfo::describe() const {
  int64_t elements = 0;
  for (const auto& t : outputs) {
    elements += t.numel();
  }
  std::string dtype = outputs.empty() ? "no tensor" : c10::str(elements, " elements of ", outputs[0].scalar_type());
  return c10::str("mccl: ", name, " (rank ", rank, " of ", size, ", group '", group, "', sequence ", seq, ", ", dtype, ")");
}

std::exception_ptr backend_error(const CallInfo& call, const std::string& why) {
  try {
    C10_THROW_ERROR(DistBackendError, c10::str(call.describe(), " ", why));
  } catch (...) {
    return std::current_exception();
  }
}

CollectiveWork::CollectiveWork(CallInfo call)
    : Work(call.rank, call.type), call_(std::move(call)), future_(make_future(call_)) {}

WorkPtr CollectiveWork::start(
    CallInfo call, const std::vector<WorkPtr>& inner, std::function<void()> finalize) {
  auto work = c10::make_intrusive<CollectiveWork>(std::move(call));
  work->finalize_ = std::move(finalize);
  work->pending_ = inner.size();
  if (inner.empty()) {
    work->complete(nullptr);
  }
  for (const auto& one : inner) {
    one->getFuture()->addCallback([work](c10::ivalue::Future& done) { work->inner_done(done); });
  }
  return work;
}

WorkPtr CollectiveWork::hang(CallInfo call) {
  auto work = c10::make_intrusive<CollectiveWork>(std::move(call));
  // Detached on purpose: a real hung collective does not keep its process from ending either.
  std::thread([work]() {
    std::this_thread::sleep_for(work->call_.timeout);
    work->complete(backend_error(
        work->call_,
        c10::str("did not finish within its timeout of ", work->call_.timeout.count(), " ms (injected by MUSA_SIM_FAULTS or torch_musa.faults)")));
  }).detach();
  return work;
}

void CollectiveWork::inner_done(c10::ivalue::Future& inner) {
  {
    std::lock_guard<std::mutex> lock(pending_mutex_);
    if (inner.hasError() && !inner_error_) {
      inner_error_ = inner.exception_ptr();
    }
    if (--pending_ != 0) {
      return;
    }
  }
  complete(inner_error_ ? translate(call_, inner_error_) : nullptr);
}

void CollectiveWork::complete(std::exception_ptr error) {
  if (!error && finalize_) {
    try {
      // The completing thread is gloo's: the caller's grad mode does not reach it.
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      finalize_();
    } catch (...) {
      error = translate(call_, std::current_exception());
    }
  }
  finalize_ = nullptr;
  if (error) {
    future_->setErrorIfNeeded(error);
  } else {
    future_->markCompleted(c10::IValue(call_.outputs));
  }
  finish(error);
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) {
    return Work::wait(timeout);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (!cv_.wait_for(lock, timeout, [this] { return completed_; })) {
    std::rethrow_exception(backend_error(call_, c10::str("did not finish within the ", timeout.count(), " ms given to wait()")));
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

void CollectiveWork::abort() {
  TORCH_CHECK(false, call_.describe(), " cannot be aborted: gloo offers no way to; destroy the group instead");
}

PointToPointWork::PointToPointWork(CallInfo call, WorkPtr inner)
    : Work(call.rank, call.type), call_(std::move(call)), inner_(std::move(inner)) {}

bool PointToPointWork::wait(std::chrono::milliseconds timeout) {
  if (isCompleted()) {
    return Work::wait(kNoTimeout);
  }
  bool fine = false;
  std::exception_ptr error;
  try {
    // gloo bounds this by the group's own timeout when none is given.
    fine = inner_->wait(timeout);
  } catch (...) {
    error = translate(call_, std::current_exception());
  }
  finishAndThrow(error);
  return fine;
}

int PointToPointWork::sourceRank() const {
  return inner_->sourceRank();
}

void PointToPointWork::abort() {
  inner_->abort();
}

GroupedWork::GroupedWork(int rank, std::vector<WorkPtr> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool GroupedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const WorkPtr& w) { return w->isCompleted(); });
}

bool GroupedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const WorkPtr& w) { return w->isSuccess(); });
}

std::exception_ptr GroupedWork::exception() const {
  for (const auto& w : works_) {
    if (auto error = w->exception()) {
      return error;
    }
  }
  return nullptr;
}

bool GroupedWork::wait(std::chrono::milliseconds timeout) {
  bool fine = true;
  for (const auto& w : works_) {
    fine = w->wait(timeout) && fine;
  }
  return fine;
}

FuturePtr GroupedWork::getFuture() {
  auto element = c10::ListType::create(c10::TensorType::get());
  c10::List<FuturePtr> futures(c10::FutureType::create(element));
  for (const auto& w : works_) {
    futures.push_back(w->getFuture());
  }
  return c10::collectAll(futures);
}

std::vector<at::Tensor> GroupedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& w : works_) {
    const auto part = w->result();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void GroupedWork::abort() {
  for (const auto& w : works_) {
    w->abort();
  }
}

}  // namespace musa_sim
