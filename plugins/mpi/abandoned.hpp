// SPDX-License-Identifier: Apache-2.0
//
// Requests of operations that were aborted or cancelled, or that timed out. MPI cannot interrupt them, so their memory,
// which belongs to the plugin, is kept until MPI has completed them.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "api.hpp"

namespace backplane::mpi {

// A request and the memory that it uses. A list of one, so that giving it up allocates nothing.
struct PendingRequest {
  Request request{};
  std::shared_ptr<std::byte> in;
  std::shared_ptr<std::byte> out;
  Blocks blocks;
};
using PendingRequests = std::list<PendingRequest>;

// Thread-safe. One per process.
class AbandonedRequests {
 public:
  // Empties `pending`, unless MPI has freed the request.
  void add(PendingRequests& pending) noexcept;
  // Frees those that MPI has completed. Returns how many are left.
  size_t reap(Api& api);

 private:
  std::mutex mutex_;
  PendingRequests waiting_;
  PendingRequests failed_;         // MPI failed and kept the request: kept for ever
  std::atomic<size_t> count_ = 0;  // of both
};

}  // namespace backplane::mpi
