// What PyTorch asks of a device: guard, streams, events, hooks, pinned host memory. All work is synchronous, so a
// stream is a number and an event is a time.
#include "musa_sim.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <cstdlib>
#include <map>

namespace musa_sim {
namespace {

thread_local c10::StreamId t_streams[kMaxDevices] = {};

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kMusa, device), id);
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : static_cast<c10::DeviceIndex>(current_device());
}

struct Event {
  std::chrono::steady_clock::time_point time;
};

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kMusa;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device.index() != previous.index()) {
      set_device(device.index());
    }
    return previous;
  }
  c10::Device getDevice() const override {
    return {kMusa, static_cast<c10::DeviceIndex>(current_device())};
  }
  void setDevice(c10::Device device) const override {
    set_device(index_of(device));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    exchange_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = index_of(device);
    return stream_of(index, t_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    ensure_initialized();
    check_ordinal(index_of(device));
    return stream_of(index_of(device), next.fetch_add(1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::DeviceIndex index = stream.device_index();
    const c10::Stream previous = stream_of(index, t_streams[index]);
    t_streams[index] = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {
    ensure_initialized();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    ensure_initialized();
    check_ordinal(device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device, const c10::EventFlag)
      const override {
    ensure_initialized();
    TORCH_CHECK(
        device == -1 || device == stream.device_index(), "Event device index ", device,
        " does not match recording stream's device index ", stream.device_index());
    if (*event == nullptr) {
      *event = new Event();
    }
    static_cast<Event*>(*event)->time = std::chrono::steady_clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "Both events must be recorded before calculating elapsed time.");
    const auto span = static_cast<Event*>(second)->time - static_cast<Event*>(first)->time;
    return std::chrono::duration<double, std::milli>(span).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

// ---- pinned host memory: page-aligned blocks in a table, so that is_pinned() can be answered -----------------------

class PinnedMemory {
 public:
  static PinnedMemory& get() {
    static auto* memory = new PinnedMemory();
    return *memory;
  }
  void add(const void* data, size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(data)] = nbytes;
  }
  void remove(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.erase(reinterpret_cast<uintptr_t>(data));
  }
  bool contains(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) {
      return false;
    }
    --after;
    return address < after->first + after->second;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
};

void free_pinned(void* data) {
  PinnedMemory::get().remove(data);
  std::free(data);
}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t n) override {
    ensure_initialized();
    if (n == 0) {
      return {nullptr, nullptr, &free_pinned, c10::Device(c10::kCPU)};
    }
    constexpr size_t kPage = 4096;
    void* data = std::aligned_alloc(kPage, (n + kPage - 1) / kPage * kPage);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "cannot allocate ", n, " bytes of pinned host memory");
    PinnedMemory::get().add(data, n);
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedAllocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator();
  return allocator;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return is_initialized();
  }
  void init() const override {
    ensure_initialized();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_device(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int previous = current_device();
    set_device(device);
    return static_cast<c10::DeviceIndex>(previous);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  bool isPinnedPtr(const void* data) const override {
    return PinnedMemory::get().contains(data);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};

[[maybe_unused]] const bool g_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  at::setHostAllocator(kMusa, pinned_allocator());
  return true;
}();

}  // namespace
}  // namespace musa_sim
