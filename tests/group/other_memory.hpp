// SPDX-License-Identifier: Apache-2.0
//
// Host memory labelled as device memory, to observe copies between devices without a device.
#pragma once

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/detail/packing.hpp"

namespace backplane::test {

class OtherMemory {
 public:
  // Packs in host memory; buffers may be anywhere.
  PackMemory packs_on_host() {
    PackMemory memory;
    memory.copy = [this](const ConstBuffer& from, const Buffer& to) { copy(from, to); };
    return memory;
  }
  // The same, without recording.
  static PackMemory plain() {
    PackMemory memory;
    memory.copy = [](const ConstBuffer& from, const Buffer& to) {
      std::memcpy(to.data(), from.data(), from.count() * size_of(from.dtype()));
    };
    return memory;
  }
  // "cuda:1 to host memory", in order.
  std::vector<std::string> copies() {
    const std::lock_guard lock(mutex_);
    return copies_;
  }

 private:
  void copy(const ConstBuffer& from, const Buffer& to) {
    const std::lock_guard lock(mutex_);
    copies_.push_back(detail::name_of_device(from.device()) + " to " + detail::name_of_device(to.device()));
    std::memcpy(to.data(), from.data(), from.count() * size_of(from.dtype()));
  }

  std::mutex mutex_;
  std::vector<std::string> copies_;
};

}  // namespace backplane::test
