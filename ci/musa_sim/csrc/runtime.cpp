// Devices of this process: how many, which one is current, initialisation and the fork check.
#include "musa_sim.h"

#include <pthread.h>

#include <cstdlib>
#include <sstream>

namespace musa_sim {
namespace {

struct DeviceList {
  int count = 0;
  int physical[kMaxDevices] = {};
};

std::mutex g_mutex;
std::atomic<bool> g_initialized{false};
std::atomic<bool> g_bad_fork{false};
DeviceList g_devices;  // fixed once initialised
thread_local int t_current = 0;

// Simulated cards in the machine. Anything but a number from 0 to kMaxDevices counts as no device, since
// device_count() must not throw; the Python side reports the bad value (torch_musa/__init__.py).
int machine_devices() noexcept {
  const char* text = std::getenv("MUSA_SIM_DEVICES");
  if (text == nullptr || *text == '\0') {
    return 8;  // one server node of eight cards
  }
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return (*end != '\0' || value < 0 || value > kMaxDevices) ? 0 : static_cast<int>(value);
}

// MUSA_VISIBLE_DEVICES follows CUDA's rule: ordinals up to the first invalid or repeated one.
DeviceList read_devices() noexcept {
  DeviceList list;
  const int machine = machine_devices();
  const char* text = std::getenv("MUSA_VISIBLE_DEVICES");
  if (text == nullptr) {
    list.count = machine;
    for (int i = 0; i < machine; ++i) {
      list.physical[i] = i;
    }
    return list;
  }
  const char* at = text;
  while (*at != '\0' && list.count < kMaxDevices) {
    char* end = nullptr;
    const long value = std::strtol(at, &end, 10);
    bool valid = end != at && (*end == ',' || *end == '\0' || *end == ' ') && value >= 0 && value < machine;
    for (int i = 0; i < list.count; ++i) {
      valid = valid && list.physical[i] != value;
    }
    if (!valid) {
      break;
    }
    list.physical[list.count++] = static_cast<int>(value);
    at = end;
    while (*at == ' ' || *at == ',') {
      ++at;
    }
  }
  return list;
}

void mark_child() noexcept {
  if (g_initialized.load()) {
    g_bad_fork.store(true);
  }
}

[[maybe_unused]] const int g_atfork = pthread_atfork(nullptr, nullptr, &mark_child);

}  // namespace

bool is_initialized() {
  return g_initialized.load(std::memory_order_relaxed);
}

bool is_in_bad_fork() {
  return g_bad_fork.load(std::memory_order_relaxed);
}

void ensure_initialized() {
  TORCH_CHECK(
      !is_in_bad_fork(),
      "Cannot re-initialize MUSA in forked subprocess. To use MUSA with multiprocessing, you must use the 'spawn' "
      "start method");
  if (is_initialized()) {
    return;
  }
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_initialized.load()) {
    g_devices = read_devices();
    TORCH_CHECK(
        g_devices.count > 0,
        "No MUSA device is visible to this process (simulator: MUSA_SIM_DEVICES, MUSA_VISIBLE_DEVICES)");
    g_initialized.store(true);
  }
}

int device_count() {
  return is_initialized() ? g_devices.count : read_devices().count;
}

int physical_device(int device) {
  check_ordinal(device);
  return is_initialized() ? g_devices.physical[device] : read_devices().physical[device];
}

void check_ordinal(int device) {
  const int count = device_count();
  TORCH_CHECK(
      device >= 0 && device < count,
      "MUSA error: invalid device ordinal ",
      device,
      "; this process sees ",
      count,
      " device(s)");
}

int current_device() {
  return t_current;
}

void set_device(int device) {
  ensure_initialized();
  check_ordinal(device);
  t_current = device;
}

int exchange_device_unchecked(int device) noexcept {
  const int previous = t_current;
  t_current = device;
  return previous;
}

}  // namespace musa_sim
