// Device memory: blocks over CPU storages, accounting against a limit, and aliases in both directions.
#include "musa_sim.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <unordered_map>

namespace musa_sim {
namespace {

constexpr int64_t kRound = 512;             // bytes; the granularity that CUDA-like caching allocators report
constexpr int64_t kDefaultMiB = 8192;       // small enough that a runaway test fails before the host suffers

int64_t round_up(size_t nbytes) {
  return (static_cast<int64_t>(nbytes) + kRound - 1) / kRound * kRound;
}

int64_t total_memory() {
  static const int64_t total = [] {
    const char* text = std::getenv("MUSA_SIM_MEMORY_MIB");
    const long long value = text != nullptr ? std::strtoll(text, nullptr, 10) : 0;
    return (value > 0 ? value : kDefaultMiB) * 1024 * 1024;
  }();
  return total;
}

struct Account {
  std::mutex mutex;
  MemoryStats stats;
  double fraction = 1.0;
};

// Leaked on purpose: tensors may be freed after static destructors ran.
Account& account(int device) {
  static auto* accounts = new Account[kMaxDevices];
  return accounts[device];
}

std::string mib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
  return text;
}

thread_local int t_scope_device = -1;

// CPU allocations that count on a device, by address. A table rather than a context in the DataPtr, because
// raw_allocate() (oneDNN's scratch memory) wants data pointer and context to be the same.
class CountedTable {
 public:
  void add(void* data, int device, size_t nbytes) {
    Shard& shard = shard_of(data);
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.blocks[data] = {device, nbytes};
  }
  // Forgets `data` and gives back what it counted; false if it never did.
  bool release(void* data) {
    std::pair<int, size_t> block;
    {
      Shard& shard = shard_of(data);
      std::lock_guard<std::mutex> lock(shard.mutex);
      auto found = shard.blocks.find(data);
      if (found == shard.blocks.end()) {
        return false;
      }
      block = found->second;
      shard.blocks.erase(found);
    }
    account_free(block.first, block.second);
    return true;
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, std::pair<int, size_t>> blocks;
  };
  static constexpr size_t kShards = 16;
  Shard& shard_of(void* data) {
    return shards_[(reinterpret_cast<uintptr_t>(data) >> 6) % kShards];
  }
  Shard shards_[kShards];
};

CountedTable& counted_table() {
  static auto* table = new CountedTable();  // leaked: tensors may outlive static destructors
  return *table;
}

c10::DeleterFnPtr g_cpu_deleter = nullptr;  // of the allocator that CountingCpuAllocator wraps

void free_counted(void* data) {
  counted_table().release(data);
  g_cpu_deleter(data);
}

// Replaces the CPU allocator, so that what a kernel allocates while it runs for a device is checked against the
// device's limit before the host hands it out. Elsewhere it passes through.
struct CountingCpuAllocator final : c10::Allocator {
  explicit CountingCpuAllocator(c10::Allocator* inner) : inner_(inner) {
    g_cpu_deleter = inner->raw_deleter();
    TORCH_CHECK(g_cpu_deleter != nullptr, "the CPU allocator of this torch has no raw deleter");
  }

  c10::DataPtr allocate(size_t n) override {
    const int device = t_scope_device;
    if (device < 0 || n == 0) {
      return inner_->allocate(n);
    }
    account_alloc(device, n);
    c10::DataPtr inner;
    try {
      inner = inner_->allocate(n);
    } catch (...) {
      account_free(device, n);
      throw;
    }
    void* data = inner.release_context();
    counted_table().add(data, device, n);
    return {data, data, &free_counted, c10::Device(c10::kCPU)};
  }

  // raw_deallocate() does not say which of the two kinds it was given; free_counted tells them apart.
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_counted;
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    inner_->copy_data(dest, src, count);
  }

  c10::Allocator* inner_;
};

CountingCpuAllocator* cpu_allocator() {
  static auto* allocator = new CountingCpuAllocator(c10::GetCPUAllocator());
  return allocator;
}

[[maybe_unused]] const bool g_cpu_allocator_set = [] {
  c10::SetCPUAllocator(cpu_allocator(), /*priority=*/255);
  return true;
}();

// What the DataPtr of a musa storage owns.
struct Block {
  c10::intrusive_ptr<c10::StorageImpl> cpu;
  int device;
  size_t counted;  // bytes this block itself counts on the device; 0 if the CPU storage's memory does
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->counted > 0) {
    account_free(block->device, block->counted);
  }
  delete block;
}

c10::DataPtr make_data_ptr(c10::intrusive_ptr<c10::StorageImpl> cpu, int device, bool counted) {
  size_t own = 0;
  if (counted && cpu->nbytes() > 0 && cpu->data_ptr().get_deleter() != &free_counted) {
    own = cpu->nbytes();
    account_alloc(device, own);
  }
  void* data = const_cast<void*>(cpu->data());
  auto* block = new Block{std::move(cpu), device, own};
  return {data, block, &free_block, c10::Device(kMusa, static_cast<c10::DeviceIndex>(device))};
}

Block* block_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& ptr = storage.data_ptr();
  TORCH_CHECK(
      ptr.get_deleter() == &free_block,
      "the storage on ",
      ptr.device(),
      " does not hold memory of the simulated musa device");
  return static_cast<Block*>(ptr.get_context());
}

struct MusaAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n) override {
    ensure_initialized();
    const int device = current_device();
    check_ordinal(device);
    DeviceMemoryScope scope(device);
    auto cpu = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), n, cpu_allocator()->allocate(n), cpu_allocator(), /*resizable=*/true);
    return make_data_ptr(std::move(cpu), device, true);
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

  bool initialized() override {
    return is_initialized();
  }
  void emptyCache(c10::MempoolId_t) override {}  // nothing is cached
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // all work is synchronous

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryStats stats = memory_stats(device);
    c10::CachingDeviceAllocator::DeviceStats out;
    c10::CachingAllocator::Stat bytes;
    bytes.current = stats.current;
    bytes.peak = stats.peak;
    bytes.allocated = stats.allocated;
    bytes.freed = stats.freed;
    c10::CachingAllocator::Stat blocks;
    blocks.current = stats.blocks;
    blocks.peak = stats.peak_blocks;
    blocks.allocated = stats.alloc_count;
    blocks.freed = stats.free_count;
    out.allocated_bytes[0] = out.reserved_bytes[0] = out.active_bytes[0] = out.requested_bytes[0] = bytes;
    out.allocation[0] = out.segment[0] = out.active[0] = blocks;
    out.num_ooms = stats.ooms;
    out.num_device_alloc = stats.alloc_count;
    out.num_device_free = stats.free_count;
    return out;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    reset_accumulated_stats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    reset_peak_stats(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const MemoryStats stats = memory_stats(device);
    return {static_cast<size_t>(stats.total - stats.current), static_cast<size_t>(stats.total)};
  }
};

MusaAllocator* musa_allocator() {
  static auto* allocator = new MusaAllocator();
  return allocator;
}

[[maybe_unused]] const bool g_musa_allocator_set = [] {
  c10::SetAllocator(kMusa, musa_allocator());
  return true;
}();

// A tensor over `storage` with the metadata of `like`, conj and neg bits included.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey backend, const at::Tensor& like) {
  auto out = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(backend), like.dtype());
  c10::TensorImpl* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (C10_UNLIKELY(like.unsafeGetTensorImpl()->is_wrapped_number())) {
    impl->set_wrapped_number(true);
  }
  at::Tensor result(std::move(out));
  if (C10_UNLIKELY(like.is_conj())) {
    result._set_conj(true);
  }
  if (C10_UNLIKELY(like.is_neg())) {
    result._set_neg(true);
  }
  return result;
}

}  // namespace

// ---- accounting ---------------------------------------------------------------------------------------------

void account_alloc(int device, size_t nbytes) {
  if (nbytes == 0) {
    return;
  }
  on_allocate(device, nbytes);
  const int64_t size = round_up(nbytes);
  Account& entry = account(device);
  std::lock_guard<std::mutex> lock(entry.mutex);
  MemoryStats& stats = entry.stats;
  const auto limit = static_cast<int64_t>(static_cast<double>(total_memory()) * entry.fraction);
  if (stats.current + size > limit) {
    stats.ooms += 1;
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        false,
        "MUSA out of memory. Tried to allocate ", mib(size), ". GPU ", device, " has a total capacity of ",
        mib(total_memory()), " of which ", mib(limit - stats.current), " is free (this process may use ",
        mib(limit), "). ", mib(stats.current), " is allocated by PyTorch on the simulated device.");
  }
  stats.current += size;
  stats.peak = std::max(stats.peak, stats.current);
  stats.allocated += size;
  stats.blocks += 1;
  stats.peak_blocks = std::max(stats.peak_blocks, stats.blocks);
  stats.alloc_count += 1;
}

void account_free(int device, size_t nbytes) noexcept {
  const int64_t size = round_up(nbytes);
  Account& entry = account(device);
  std::lock_guard<std::mutex> lock(entry.mutex);
  entry.stats.current -= size;
  entry.stats.freed += size;
  entry.stats.blocks -= 1;
  entry.stats.free_count += 1;
}

MemoryStats memory_stats(int device) {
  check_ordinal(device);
  Account& entry = account(device);
  std::lock_guard<std::mutex> lock(entry.mutex);
  MemoryStats stats = entry.stats;
  stats.total = total_memory();
  stats.limit = static_cast<int64_t>(static_cast<double>(stats.total) * entry.fraction);
  return stats;
}

void reset_peak_stats(int device) {
  check_ordinal(device);
  Account& entry = account(device);
  std::lock_guard<std::mutex> lock(entry.mutex);
  entry.stats.peak = entry.stats.current;
  entry.stats.peak_blocks = entry.stats.blocks;
}

void reset_accumulated_stats(int device) {
  check_ordinal(device);
  Account& entry = account(device);
  std::lock_guard<std::mutex> lock(entry.mutex);
  MemoryStats& stats = entry.stats;
  stats.allocated = stats.freed = stats.alloc_count = stats.free_count = stats.ooms = 0;
}

void set_memory_fraction(double fraction, int device) {
  check_ordinal(device);
  TORCH_CHECK_VALUE(
      fraction >= 0.0 && fraction <= 1.0, "Invalid fraction value: ", fraction, ". Allowed range: 0.0~1.0");
  Account& entry = account(device);
  std::lock_guard<std::mutex> lock(entry.mutex);
  entry.fraction = fraction;
}

DeviceMemoryScope::DeviceMemoryScope(int device) noexcept : previous_(t_scope_device) {
  t_scope_device = device;
}

DeviceMemoryScope::~DeviceMemoryScope() {
  t_scope_device = previous_;
}

// ---- aliases ------------------------------------------------------------------------------------------------

c10::DeviceAllocator* device_allocator() {
  return musa_allocator();
}

c10::intrusive_ptr<c10::StorageImpl> cpu_storage_of(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (C10_LIKELY(impl->data_ptr().get_deleter() == &free_block)) {
    return block_of(*impl)->cpu;
  }
  // A pointer wrapped by from_blob (torch's storage writer does that): host memory that somebody else owns.
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), impl->nbytes(),
      c10::DataPtr(const_cast<void*>(impl->data()), c10::Device(c10::kCPU)), nullptr, /*resizable=*/false);
}

at::Tensor cpu_alias(const at::Tensor& musa_tensor) {
  if (!musa_tensor.defined() || musa_tensor.device().type() != kMusa) {
    return musa_tensor;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      musa_tensor.layout() == c10::kStrided && musa_tensor.has_storage(),
      "the simulated musa device holds strided tensors only, got layout ",
      musa_tensor.layout());
  return tensor_over(c10::Storage(cpu_storage_of(musa_tensor.storage())), c10::DispatchKey::CPU, musa_tensor);
}

at::Tensor musa_alias(const at::Tensor& cpu_tensor, c10::DeviceIndex device, bool counted) {
  ensure_initialized();
  check_ordinal(device);
  TORCH_CHECK(
      cpu_tensor.device().is_cpu() && cpu_tensor.layout() == c10::kStrided,
      "musa_alias wants a strided CPU tensor, got ", cpu_tensor.toString());
  auto cpu = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(cpu_tensor.storage().unsafeGetStorageImpl());
  const size_t nbytes = cpu->nbytes();
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), nbytes, make_data_ptr(std::move(cpu), device, counted), musa_allocator(),
      /*resizable=*/true);
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, cpu_tensor);
}

at::Tensor musa_view_like(const at::Tensor& cpu_view, const at::Tensor& base) {
  return tensor_over(base.storage(), c10::DispatchKey::PrivateUse1, cpu_view);
}

void rebind_storage(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  Block* block = block_of(*impl);
  auto cpu = block->cpu;
  const int device = block->device;
  const size_t nbytes = cpu->nbytes();
  cpu->set_allocator(cpu_allocator());  // share_memory_ leaves none, and says that the storage cannot be resized
  cpu->set_resizable(true);
  // Drop the old block first, so that memory which moved is not counted twice against the limit.
  impl->set_data_ptr_noswap(c10::DataPtr());
  impl->set_data_ptr_noswap(make_data_ptr(std::move(cpu), device, true));
  impl->set_nbytes(nbytes);
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  ensure_initialized();
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  Block* block = block_of(*impl);
  const int device = block->device;
  DeviceMemoryScope scope(device);
  c10::DataPtr data = cpu_allocator()->allocate(nbytes);
  const size_t keep = std::min(nbytes, impl->nbytes());
  if (keep > 0) {
    std::memcpy(data.get(), impl->data(), keep);
  }
  auto cpu = block->cpu;
  cpu->set_data_ptr_noswap(std::move(data));
  cpu->set_nbytes(nbytes);
  rebind_storage(storage);
}

}  // namespace musa_sim
