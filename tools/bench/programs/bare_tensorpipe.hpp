// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"

namespace backplane::bench {

// TensorPipe by itself, with the transports and channels that torch and the plugin register: rank 1 sends back what
// rank 0 sends, from within TensorPipe's callbacks.
class BareTensorPipe {
 public:
  // `transport`: "shm" or "uv". Both ranks meet in the store.
  BareTensorPipe(int rank, Store& store, const std::string& transport);
  ~BareTensorPipe();
  BareTensorPipe(const BareTensorPipe&) = delete;
  BareTensorPipe& operator=(const BareTensorPipe&) = delete;

  // On rank 0: a message with `data` as its tensor, or with none if that is empty, and back into `answer`, which is as
  // large. Blocks. May be the same vector; a call's argument and its result are not.
  void round_trip(std::vector<uint8_t>* data, std::vector<uint8_t>* answer);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace backplane::bench
