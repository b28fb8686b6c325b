// SPDX-License-Identifier: Apache-2.0
#include <sched.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

using AllocationPtr = std::unique_ptr<sdk::Allocation>;

// A specimen with another pool.
template <class BadPool>
struct WithPool : Specimen {
  Pool& pool() override { return bad_; }
  BadPool bad_;
};

// Memory that overlaps another allocation.
class Borrowed final : public sdk::Allocation {
 public:
  Borrowed(std::shared_ptr<sdk::Allocation> owner, uint64_t offset) : owner_(std::move(owner)), offset_(offset) {}
  void* data() const override { return static_cast<std::byte*>(owner_->data()) + offset_; }

 private:
  const std::shared_ptr<sdk::Allocation> owner_;
  const uint64_t offset_;
};

struct AlignedToEight : Pool {
  AllocationPtr allocate(uint64_t bytes, uint32_t memory, int32_t device) override {
    return std::make_unique<Borrowed>(Pool::allocate(bytes + 8, memory, device), 8);
  }
};

struct GivesTheSameTwice : Pool {
  AllocationPtr allocate(uint64_t bytes, uint32_t memory, int32_t device) override {
    if (last_ == nullptr || bytes > size_) {
      last_ = Pool::allocate(bytes, memory, device);
      size_ = bytes;
    }
    return std::make_unique<Borrowed>(last_, 0);
  }
  std::shared_ptr<sdk::Allocation> last_;
  uint64_t size_ = 0;
};

struct TakesAnyKind : Pool {
  AllocationPtr allocate(uint64_t bytes, uint32_t, int32_t device) override {
    return Pool::allocate(bytes, BP_HOST, device);
  }
};

struct BlamesItselfForMemory : Pool {
  AllocationPtr allocate(uint64_t bytes, uint32_t memory, int32_t device) override {
    try {
      return Pool::allocate(bytes, memory, device);
    } catch (const sdk::Failure& why) {
      if (why.status() == BP_RESOURCE) throw sdk::Failure(BP_INTERNAL, why.what());
      throw;
    }
  }
};

struct KeepsAll : Pool {
  AllocationPtr allocate(uint64_t bytes, uint32_t memory, int32_t device) override {
    const std::shared_ptr<sdk::Allocation> kept = Pool::allocate(bytes, memory, device);
    const std::lock_guard lock(mutex_);
    kept_.push_back(kept);
    return std::make_unique<Borrowed>(kept, 0);
  }
  std::mutex mutex_;
  std::vector<std::shared_ptr<sdk::Allocation>> kept_;
};

struct OneThreadAtATime : Pool {
  AllocationPtr allocate(uint64_t bytes, uint32_t memory, int32_t device) override {
    if (inside_.exchange(true)) throw sdk::Failure(BP_INTERNAL, "another thread is allocating");
    for (int i = 0; i < 100; ++i) ::sched_yield();
    AllocationPtr made = Pool::allocate(bytes, memory, device);
    inside_.store(false);
    return made;
  }
  std::atomic<bool> inside_ = false;
};

// Its ranks allocate together, and give up on the others after three seconds.
struct AllocatesTogether : Specimen {
  struct Together : Pool {
    AllocationPtr allocate(uint64_t bytes, uint32_t memory, int32_t device) override {
      const int64_t ranks = group_->world_size();
      const int64_t came = group_->host_->store_add("allocating", 1);
      const std::string all_came = "allocated/" + std::to_string((came - 1) / ranks);
      if (came % ranks == 0) group_->host_->store_set(all_came, "yes");
      try {
        group_->host_->store_wait({all_came}, INT64_C(3'000'000'000));
      } catch (const sdk::Failure&) {
      }
      return Pool::allocate(bytes, memory, device);
    }
    AllocatesTogether* group_ = nullptr;
  };
  AllocatesTogether() { together_.group_ = this; }
  Pool& pool() override { return together_; }
  Together together_;
};

struct WipesAtTheEnd : Specimen {
  void close() noexcept override {
    pool().live().wipe();
    Specimen::close();
  }
};

struct NoMemoryAfterAbort : Specimen {
  struct Aborted : Pool {
    AllocationPtr allocate(uint64_t bytes, uint32_t memory, int32_t device) override {
      if (is_aborted_) throw sdk::Failure(BP_CANCELLED, "the group was aborted");
      return Pool::allocate(bytes, memory, device);
    }
    std::atomic<bool> is_aborted_ = false;
  };
  Pool& pool() override { return aborted_pool_; }
  void abort(const sdk::Failure& why) noexcept override {
    aborted_pool_.is_aborted_ = true;
    Specimen::abort(why);
  }
  Aborted aborted_pool_;
};

struct WipesAtAbort : Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    Specimen::abort(why);
    pool().live().wipe();
  }
};

// Takes a buffer in its memory to begin where the memory begins.
struct ForgetsThePlace : Specimen {
  explicit ForgetsThePlace(bool in_messages) : in_messages_(in_messages) {}
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const bool is_message = op.kind == BP_SEND || op.kind == BP_RECV;
    std::byte* const begin = is_message == in_messages_ ? pool().live().begin_of(op.output.data) : nullptr;
    if (begin == nullptr) return Specimen::submit(op);
    bp_op changed = op;
    changed.output.data = begin;
    return Specimen::submit(changed);
  }
  const bool in_messages_;
};
struct ForgetsThePlaceInCollectives : ForgetsThePlace {
  ForgetsThePlaceInCollectives() : ForgetsThePlace(false) {}
};
struct ForgetsThePlaceInMessages : ForgetsThePlace {
  ForgetsThePlaceInMessages() : ForgetsThePlace(true) {}
};

// Inputs that are not in its memory count as zeros.
struct ReadsItsMemoryOnly : Specimen {
  void run_collective(Collective& collective) override {
    if (pool().live().begin_of(collective.op.input.data) == nullptr && rank() > 0 && collective.op.input.count > 0) {
      std::vector<std::byte> nothing(collective.op.input.count * bp_dtype_size(collective.op.dtype));
      collective.op.input.data = nothing.data();
      return Specimen::run_collective(collective);
    }
    Specimen::run_collective(collective);
  }
};

// All ranks get the first of the blocks in its memory.
struct FindsTheFirstBlock : Specimen {
  void run_collective(Collective& collective) override {
    static constexpr uint64_t kNowhere[64] = {};
    if (collective.op.kind == BP_SCATTERV && pool().live().begin_of(collective.op.input.data) != nullptr) {
      collective.op.in_displs = kNowhere;
    }
    Specimen::run_collective(collective);
  }
};

// Takes a buffer in registered memory to begin where that begins.
struct ForgetsThePlaceInRegistered : Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    std::byte* const begin = pool().registered().begin_of(op.output.data);
    if (begin == nullptr) return Specimen::submit(op);
    bp_op changed = op;
    changed.output.data = begin;
    return Specimen::submit(changed);
  }
};

// Refuses memory that was registered before and is not any more.
struct RefusesTheReleased : Specimen {
  struct Remembers : Pool {
    AllocationPtr register_memory(void* data, uint64_t bytes, uint32_t memory, int32_t device) override {
      AllocationPtr made = Pool::register_memory(data, bytes, memory, device);
      once_.enter(static_cast<std::byte*>(data), bytes);
      return made;
    }
    Live once_;
  };
  Pool& pool() override { return remembers_; }
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const bool released = remembers_.once_.begin_of(op.output.data) != nullptr &&
                          remembers_.registered().begin_of(op.output.data) == nullptr;
    if (released) throw sdk::Failure(BP_INVALID, "this memory is not registered any more");
    return Specimen::submit(op);
  }
  Remembers remembers_;
};

struct WritesLate : Specimen {
  void run_collective(Collective& collective) override {
    if (pool().live().begin_of(late_) != nullptr) std::memset(late_, 0, 4);
    Specimen::run_collective(collective);
    late_ = collective.op.output.data;
  }
  void* late_ = nullptr;
};

}  // namespace

std::vector<Mutant> memory_mutants() {
  return {
      {"memory.aligned-and-apart", "memory begins at a multiple of 8", made<WithPool<AlignedToEight>>},
      {"memory.aligned-and-apart:2", "what fits gets the memory that was handed out last",
       made<WithPool<GivesTheSameTwice>>},
      {"memory.refusals", "every kind of memory is that of the host", made<WithPool<TakesAnyKind>>},
      {"memory.refusals:2", "exhausted memory is BP_INTERNAL", made<WithPool<BlamesItselfForMemory>>},
      {"memory.local", "allocating waits for all ranks", made<AllocatesTogether>},
      {"memory.outlives-the-group", "memory holds zeros after destroy", made<WipesAtTheEnd>},
      {"memory.after-abort", "there is no memory after an abort", made<NoMemoryAfterAbort>},
      {"memory.after-abort:2", "memory holds zeros after an abort", made<WipesAtAbort>},
      {"memory.gives-back", "nothing is given back before the group ends", made<WithPool<KeepsAll>>},
      {"memory.any-thread", "one thread may allocate at a time", made<WithPool<OneThreadAtATime>>},
      {"memory.any-buffer", "an output begins where the memory begins", made<ForgetsThePlaceInCollectives>},
      {"memory.any-buffer:2", "an input in other memory counts as zeros", made<ReadsItsMemoryOnly>},
      {"memory.any-buffer:3", "of blocks in its memory all ranks get the first", made<FindsTheFirstBlock>},
      {"memory.in-messages", "a message is received where the memory begins", made<ForgetsThePlaceInMessages>},
      {"memory.registered", "an output begins where registered memory begins", made<ForgetsThePlaceInRegistered>},
      {"memory.registered-again", "memory that was deregistered is refused", made<RefusesTheReleased>},
      {"memory.mine-again", "an output is written to once more at the next collective", made<WritesLate>},
  };
}

}  // namespace backplane::specimen
