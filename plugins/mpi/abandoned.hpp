// SPDX-License-Identifier: Apache-2.0
//
// Requests of operations that were aborted or cancelled, or that timed out. MPI cannot interrupt them, so their memory,
// which belongs to the plugin, is kept until MPI has completed them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "api.hpp"
#include "backplane/sdk/block.hpp"

namespace backplane::mpi {

// Memory of the plugin for one buffer.
class Copy {
 public:
  static constexpr uint64_t kInline = 128;  // bytes that need no allocation

  Copy() {}  // NOLINT(modernize-use-equals-default): leaves inline_ uninitialized

  // Call once. Throws std::bad_alloc.
  std::byte* take(sdk::BlockPool& pool, uint64_t bytes) {
    if (bytes <= kInline) return inline_.data();
    if (bytes <= block_size_) return block_.get();
    if (bytes < sdk::BlockPool::kSmallest) {
      block_.reset(new std::byte[bytes]);
      block_size_ = bytes;
      return block_.get();
    }
    pooled_ = pool.take(bytes);
    return pooled_.get();
  }
  // Uses memory that others use as well.
  void share(const std::shared_ptr<std::byte>& memory) { pooled_ = memory; }
  // Ends the use of the memory. A small block is kept for the next one.
  void reset() noexcept {
    constexpr uint64_t kKept = 1024;
    pooled_.reset();
    if (block_size_ <= kKept) return;
    block_.reset();
    block_size_ = 0;
  }

 private:
  alignas(16) std::array<std::byte, kInline> inline_;
  std::unique_ptr<std::byte[]> block_;
  uint64_t block_size_ = 0;
  std::shared_ptr<std::byte> pooled_;
};

// A request and the memory of the plugin that it uses. In a list, so that giving it up allocates nothing.
struct PendingRequest {
  Request request{};
  Copy in;
  Copy out;
  std::unique_ptr<Blocks> blocks;  // of v-forms
};
using PendingRequests = std::list<PendingRequest>;

// Thread-safe. One per process.
class AbandonedRequests {
 public:
  // Takes those that MPI has not completed.
  void add(PendingRequests& pending) noexcept;
  // Frees those that MPI has completed. Returns how many are left.
  size_t reap(Api& api);

 private:
  std::mutex mutex_;
  PendingRequests waiting_;
  PendingRequests failed_;         // MPI failed and kept the request: kept for ever
  std::atomic<size_t> count_ = 0;  // of both
};

// The requests of an operation. Each thread keeps a few, because their allocation takes longer than MPI needs for a
// small message. The destructor abandons those that MPI has not completed.
class OwnRequests {
 public:
  OwnRequests(AbandonedRequests& abandoned, size_t count) : abandoned_(abandoned) { add(count); }
  ~OwnRequests();
  OwnRequests(const OwnRequests&) = delete;
  OwnRequests& operator=(const OwnRequests&) = delete;

  PendingRequest& add(size_t count = 1);
  PendingRequest& front() { return list_.front(); }
  PendingRequest& back() { return list_.back(); }
  PendingRequests& list() { return list_; }

 private:
  AbandonedRequests& abandoned_;
  PendingRequests list_;
};

}  // namespace backplane::mpi
