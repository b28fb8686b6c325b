// SPDX-License-Identifier: Apache-2.0
#include "stream.hpp"

#include <pthread.h>
#include <signal.h>

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace backplane::nccl_double {

uint64_t Mark::record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

void Mark::pass(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number > passed_) passed_ = number;
  changed_.notify_all();
}

void Mark::await(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, number] { return passed_ >= number; });
}

uint64_t Mark::recorded() {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

bool Mark::passed() {
  const std::lock_guard lock(mutex_);
  return passed_ >= recorded_;
}

Stream::Stream() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::add(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return items_.size() < capacity_; });
  items_.push_back({std::move(task), {}});
  changed_.notify_all();
}

void Stream::add_behind(std::function<void()> task, std::function<void()> entered) {
  const std::lock_guard lock(mutex_);
  if (items_.size() < capacity_) std::exchange(entered, {})();
  items_.push_back({std::move(task), std::move(entered)});
  changed_.notify_all();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !items_.empty(); });
    if (items_.empty()) return;
    const std::function<void()> task = std::move(items_.front().task);
    items_.pop_front();
    if (items_.size() >= capacity_ && items_[capacity_ - 1].entered) std::exchange(items_[capacity_ - 1].entered, {})();
    changed_.notify_all();
    lock.unlock();
    task();
    lock.lock();
  }
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

namespace {

std::mutex devices_mutex;
struct Device {
  std::optional<Stream> null;  // the default stream, whose thread is created on demand
  std::set<CUstream_st*> others;
};
Device& device_at(int number) {
  static auto* const devices = new std::map<int, Device>;  // never destroyed
  return (*devices)[number];
}

}  // namespace

Stream& stream_of(CUstream_st* handle) {
  if (handle != nullptr) return handle->stream;
  const std::lock_guard lock(devices_mutex);
  std::optional<Stream>& null = device_at(current_device()).null;
  if (!null) null.emplace();
  return *null;
}

void synchronize(int device) {
  std::vector<std::shared_ptr<Mark>> marks;
  const auto mark = [&marks](Stream& stream) {
    marks.push_back(std::make_shared<Mark>());
    stream.add([each = marks.back(), number = marks.back()->record()] { each->pass(number); });
  };
  {
    const std::lock_guard lock(devices_mutex);
    Device& it = device_at(device);
    if (it.null) mark(*it.null);
    for (CUstream_st* const each : it.others) mark(each->stream);
  }
  for (const auto& each : marks) each->await(1);
}

}  // namespace backplane::nccl_double

// Creates the default stream with the first other one, so that its use allocates nothing.
CUstream_st::CUstream_st() {
  const std::lock_guard lock(backplane::nccl_double::devices_mutex);
  backplane::nccl_double::Device& it = backplane::nccl_double::device_at(device);
  if (!it.null) it.null.emplace();
  it.others.insert(this);
}

// Ends the default stream with the last other one.
CUstream_st::~CUstream_st() {
  const std::lock_guard lock(backplane::nccl_double::devices_mutex);
  backplane::nccl_double::Device& it = backplane::nccl_double::device_at(device);
  it.others.erase(this);
  if (it.others.empty()) it.null.reset();
}
