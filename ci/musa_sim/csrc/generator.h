// The generator behind torch.Generator(device="musa") and what random kernels need of it.
#pragma once

#include "musa_sim.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

namespace musa_sim {

struct MusaGeneratorImpl final : c10::GeneratorImpl {
  explicit MusaGeneratorImpl(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() {
    return kMusa;
  }
  // The key of the next op's CPU generator; moves the offset on by `numel` draws.
  uint64_t next_key(int64_t numel);

 private:
  MusaGeneratorImpl* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

uint64_t draw_key(const std::optional<at::Generator>& generator, int device, int64_t numel);

// For kernels that take no generator: keys the CPU's default generator while it lives and restores it afterwards.
// Other threads' CPU draws in the meantime would see the keyed state; kernels of that kind are rare.
class DefaultCpuRngScope {
 public:
  explicit DefaultCpuRngScope(uint64_t key);
  ~DefaultCpuRngScope();
  DefaultCpuRngScope(const DefaultCpuRngScope&) = delete;
  DefaultCpuRngScope& operator=(const DefaultCpuRngScope&) = delete;

 private:
  static std::recursive_mutex& mutex();

  std::unique_lock<std::recursive_mutex> lock_;
  at::mt19937 engine_;
  std::optional<float> next_float_;
  std::optional<double> next_double_;
};

}  // namespace musa_sim
