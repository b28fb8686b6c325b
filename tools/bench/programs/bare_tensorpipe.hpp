// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"

namespace backplane::bench {

// Bare TensorPipe with the transports and channels of torch and the plugin. Rank 1 returns what rank 0 sends, within
// TensorPipe's callbacks.
class BareTensorPipe {
 public:
  // `transport`: "shm" or "uv". The ranks connect through the store.
  BareTensorPipe(int rank, Store& store, const std::string& transport);
  ~BareTensorPipe();
  BareTensorPipe(const BareTensorPipe&) = delete;
  BareTensorPipe& operator=(const BareTensorPipe&) = delete;

  // On rank 0: sends a message with `data` as its tensor (none if empty) and receives the reply into `reply`, which
  // must have the same size and may be the same vector. Blocks.
  void round_trip(std::vector<uint8_t>* data, std::vector<uint8_t>* reply);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace backplane::bench
