// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

void spoil(const Collective& collective) {
  const bp_op& op = collective.op;
  if (op.output.count == 0 || op.out_counts != nullptr) return;
  static_cast<std::byte*>(op.output.data)[0] ^= std::byte{1};
}

struct SpoilsLater : Specimen {  // operations after the 700th
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    if (++done_ > 700) spoil(collective);
  }
  int done_ = 0;
};

std::atomic<int> groups = 0;

struct OnlyOneGroup : Specimen {  // two groups of a process disturb each other
  OnlyOneGroup() { ++groups; }
  ~OnlyOneGroup() override { --groups; }
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    if (groups > 1) spoil(collective);
  }
};

struct OneChannel : Specimen {  // messages with tag 0 are taken for those of collectives
  OperationPtr make_operation(const bp_op& op) override {
    OperationPtr operation = Specimen::make_operation(op);
    if (operation->tag == 0) operation->channel = kCollectives;
    return operation;
  }
};

struct SpoilsEarly : Specimen {  // what comes before this rank has a collective in flight
  void arrive(Arrival arrival) override {
    const bool early = collectives_.empty() && !running_;
    if (early && arrival.channel == kCollectives && !arrival.bytes.empty()) arrival.bytes[0] ^= std::byte{1};
    Specimen::arrive(std::move(arrival));
  }
  void run_collective(Collective& collective) override {
    running_ = true;
    Specimen::run_collective(collective);
    running_ = false;
  }
  std::atomic<bool> running_ = false;
};

// Refuses to wait for an operation if one that was submitted more than kSlack later has been waited for.
template <bool kCollectiveOnes, uint64_t kSlack>
struct WaitsInOrder : Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    const auto* collective = dynamic_cast<const Collective*>(&task);
    if ((collective != nullptr) == kCollectiveOnes) {
      const Lock lock(mutex_);
      const uint64_t number = collective != nullptr ? collective->op.seq : dynamic_cast<const Operation&>(task).id;
      if (number + kSlack < latest_) throw sdk::Failure(BP_INVALID, "operations are to be waited for in their order");
      latest_ = std::max(latest_, number);
    }
    return Specimen::wait(task, timeout_ns);
  }
  uint64_t latest_ = 0;
};

// Leaks 16 KiB per operation after the first thousand.
struct KeepsMuchForOrder : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    if (++made_ > 1000) kept_.emplace_back(16 * 1024, 1);
    return Specimen::make_operation(op);
  }
  int made_ = 0;
  std::list<std::vector<char>> kept_;
};

struct OpensMuch : Specimen {  // a descriptor for each collective
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    if (op.kind != BP_SEND && op.kind != BP_RECV) open_.push_back(::eventfd(0, EFD_CLOEXEC));
    return Specimen::submit(op);
  }
  void close() noexcept override {
    Specimen::close();
    for (const int each : open_) ::close(each);
  }
  std::vector<int> open_;
};

struct KeepsTags : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    kept_.try_emplace(op.tag, 16 * 1024, 1);
    return Specimen::make_operation(op);
  }
  std::map<uint64_t, std::vector<char>> kept_;
};

}  // namespace

std::vector<Mutant> order_mutants() {
  return {
      {"order.back-to-back", "results are wrong after the 700th operation", made<SpoilsLater>},
      {"order.two-groups", "two groups disturb each other", made<OnlyOneGroup>},
      {"order.p2p-beside-collectives", "messages with tag 0 are taken for those of collectives", made<OneChannel>},
      {"order.skewed-arrival", "messages of a rank that is ahead are spoilt", made<SpoilsEarly>},
      {"order.waits-out-of-order", "collectives are to be waited for in their order", made<WaitsInOrder<true, 0>>},
      {"order.messages-out-of-order", "messages are to be waited for nearly in their order",
       made<WaitsInOrder<false, 100>>},
      {"order.outstanding", "each message costs 16 KiB", made<KeepsMuchForOrder>},
      {"order.collectives-outstanding", "each collective costs a descriptor", made<OpensMuch>},
      {"order.many-tags", "each tag costs 16 KiB for ever", made<KeepsTags>},
  };
}

}  // namespace backplane::specimen
