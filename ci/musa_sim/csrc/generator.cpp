// Random state of a device: 16 bytes, (seed, offset), as Philox generators of real devices have. Each random op draws
// from a fresh CPU generator keyed by the pair, and moves the offset on.
#include "generator.h"

namespace musa_sim {
namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);
constexpr uint64_t kOffsetStep = 4;  // Philox makes four values a round; PyTorch wants offsets in multiples of it

// splitmix64: spreads neighbouring (seed, offset) pairs over the whole seed space.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

MusaGeneratorImpl::MusaGeneratorImpl(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kMusa, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void MusaGeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void MusaGeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % kOffsetStep == 0, "offset must be a multiple of ", kOffsetStep, ", got ", offset);
  offset_ = offset;
}

uint64_t MusaGeneratorImpl::get_offset() const {
  return offset_;
}

uint64_t MusaGeneratorImpl::current_seed() const {
  return seed_;
}

uint64_t MusaGeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(/*is_cuda=*/true));
  return seed_;
}

void MusaGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK_TYPE(
      new_state.layout() == c10::kStrided && new_state.device_type() == c10::kCPU &&
          new_state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
      "RNG state must be a torch.ByteTensor");
  TORCH_CHECK(
      new_state.is_contiguous() && new_state.numel() == static_cast<int64_t>(kStateBytes),
      "RNG state of a musa device is wrong size: expected ", kStateBytes, " bytes, got ", new_state.numel());
  const auto* bytes = static_cast<const uint8_t*>(new_state.data());
  uint64_t offset = 0;
  std::memcpy(&seed_, bytes, sizeof(seed_));
  std::memcpy(&offset, bytes + sizeof(seed_), sizeof(offset));
  set_offset(offset);
}

c10::intrusive_ptr<c10::TensorImpl> MusaGeneratorImpl::get_state() const {
  at::Tensor state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, c10::kByte);
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, sizeof(seed_));
  std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
  return state.getIntrusivePtr();
}

MusaGeneratorImpl* MusaGeneratorImpl::clone_impl() const {
  auto* copy = new MusaGeneratorImpl(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

uint64_t MusaGeneratorImpl::next_key(int64_t numel) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t key = mix(mix(seed_) ^ offset_);
  const auto draws = static_cast<uint64_t>(std::max<int64_t>(numel, 1));
  offset_ += (draws + kOffsetStep - 1) / kOffsetStep * kOffsetStep;
  return key;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = [] {
    auto* list = new std::vector<at::Generator>();
    for (int i = 0; i < kMaxDevices; ++i) {
      list->push_back(at::make_generator<MusaGeneratorImpl>(static_cast<c10::DeviceIndex>(i)));
    }
    return list;
  }();
  const int index = device < 0 ? current_device() : device;
  check_ordinal(index);
  return (*generators)[index];
}

at::Generator new_generator(c10::DeviceIndex device) {
  const int index = device < 0 ? current_device() : device;
  check_ordinal(index);
  return at::make_generator<MusaGeneratorImpl>(static_cast<c10::DeviceIndex>(index));
}

uint64_t draw_key(const std::optional<at::Generator>& generator, int device, int64_t numel) {
  const bool given = generator.has_value() && generator->defined();
  const at::Generator& source = given ? *generator : default_generator(static_cast<c10::DeviceIndex>(device));
  TORCH_CHECK(
      source.device().type() == kMusa,
      "Expected a 'musa' device type for generator but found '", source.device().type(), "'");
  return at::check_generator<MusaGeneratorImpl>(source)->next_key(numel);
}

at::Generator draw_cpu_generator(const std::optional<at::Generator>& generator, int device, int64_t numel) {
  return at::detail::createCPUGenerator(draw_key(generator, device, numel));
}

DefaultCpuRngScope::DefaultCpuRngScope(uint64_t key) : lock_(mutex()) {
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
  std::lock_guard<std::mutex> guard(cpu->mutex_);
  engine_ = cpu->engine();
  next_float_ = cpu->next_float_normal_sample();
  next_double_ = cpu->next_double_normal_sample();
  cpu->set_current_seed(key);
}

DefaultCpuRngScope::~DefaultCpuRngScope() {
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
  std::lock_guard<std::mutex> guard(cpu->mutex_);
  cpu->set_engine(engine_);
  cpu->set_next_float_normal_sample(next_float_);
  cpu->set_next_double_normal_sample(next_double_);
}

std::recursive_mutex& DefaultCpuRngScope::mutex() {
  static auto* mutex = new std::recursive_mutex();
  return *mutex;
}

}  // namespace musa_sim
