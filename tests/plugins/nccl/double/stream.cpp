// SPDX-License-Identifier: Apache-2.0
#include "stream.hpp"

#include <pthread.h>
#include <signal.h>

#include <map>
#include <utility>

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
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

Stream& stream_of(CUstream_st* handle) {
  if (handle != nullptr) return handle->stream;
  static std::mutex mutex;
  static auto* const null_streams = new std::map<int, Stream>;  // they never end, as the devices do not
  const std::lock_guard lock(mutex);
  return (*null_streams)[current_device()];
}

}  // namespace backplane::nccl_double
