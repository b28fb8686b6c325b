// SPDX-License-Identifier: Apache-2.0
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <set>
#include <thread>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

bool is_loss(const sdk::Failure& why) { return why.status() == BP_PEER_LOST; }

class ForgetsLostRank final : public Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    {
      const Lock lock(mutex_);
      if (aborted_ && is_loss(*aborted_)) throw sdk::Failure(BP_INTERNAL, "the group is broken");
    }
    return Specimen::submit(op);
  }
};

// Ends only operations that involve the lost rank.
class EndsOnlyDirectOperations final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    if (!is_loss(why) || why.peer_rank() < 0) return Specimen::abort(why);
    const Lock lock(mutex_);
    if (!peer(why.peer_rank()).gone) drop_peer(why.peer_rank(), why);
  }
};

class KeepsCollectives final : public Specimen {
  void run_collective(Collective& collective) override {
    try {
      Specimen::run_collective(collective);
    } catch (const sdk::Failure& e) {
      Lock lock(mutex_);
      if (is_loss(e)) changed_.wait(lock, [this] { return stopping_; });
      throw;
    }
  }
};

class ReportsLossInGatherAsInternal final : public Specimen {
  void run_collective(Collective& collective) override {
    try {
      Specimen::run_collective(collective);
    } catch (const sdk::Failure& e) {
      if (is_loss(e) && collective.op.kind == BP_ALL_GATHER) throw sdk::Failure(BP_INTERNAL, "a gather has failed");
      throw;
    }
  }
};

class ReportsRootAsInternal final : public Specimen {
  static sdk::Failure translated(int32_t rank, const sdk::Failure& why) {
    return rank == 0 && is_loss(why) ? sdk::Failure(BP_INTERNAL, "the root is not there", 0) : why;
  }
  void drop_peer(int32_t rank, const sdk::Failure& why) override { Specimen::drop_peer(rank, translated(rank, why)); }
  void abort(const sdk::Failure& why) noexcept override { Specimen::abort(translated(why.peer_rank(), why)); }
};

class IgnoresSilentRank final : public Specimen {
  void on_frame(int32_t rank, const Frame& frame) override {
    spoke_.insert(rank);
    Specimen::on_frame(rank, frame);
  }
  void on_message(int32_t rank) override {
    spoke_.insert(rank);
    Specimen::on_message(rank);
  }
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      if (is_loss(why) && !spoke_.contains(why.peer_rank())) return;
    }
    Specimen::abort(why);
  }
  std::set<int32_t> spoke_;
};

// Begins late and returns from a failed start later still.
class StartsLate final : public Specimen {
  void start(const sdk::Context& context) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    try {
      Specimen::start(context);
    } catch (const sdk::Failure&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3500));
      throw;
    }
  }
};

class FailsOnSecondLoss final : public Specimen {
  static sdk::Failure too_much() { return {BP_INTERNAL, "two connections are gone at once"}; }
  void drop_peer(int32_t rank, const sdk::Failure& why) override {
    if (is_loss(why) && !peer(rank).gone && ++losses_ >= 2 && aborted_) aborted_.emplace(too_much());
    Specimen::drop_peer(rank, why);
  }
  void abort(const sdk::Failure& why) noexcept override {
    bool one = true;
    {
      const Lock lock(mutex_);
      one = losses_ < 2;
    }
    Specimen::abort(one ? why : too_much());
  }
  int losses_ = 0;
};

// destroy waits for a rank that abort has named and that has not closed its connection.
class WaitsForStoppedRank final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      if (is_loss(why) && why.peer_rank() >= 0) {
        const Peer& named = peer(why.peer_rank());
        sleeps_ = sleeps_ || (named.fd >= 0 && !named.broken && !aborted_);
      }
    }
    Specimen::abort(why);
  }
  void close() noexcept override {
    if (sleeps_) std::this_thread::sleep_for(std::chrono::seconds(7));
    Specimen::close();
  }
  bool sleeps_ = false;
};

class ReportsSilence final : public Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    constexpr int64_t kSecond = 1'000'000'000;
    if (timeout_ns >= 0 && timeout_ns <= kSecond) return Specimen::wait(task, timeout_ns);
    if (Specimen::wait(task, kSecond)) return true;
    const Lock lock(mutex_);
    fail(task, sdk::Failure(BP_PEER_LOST, "a rank has been silent for a second"));
    throw sdk::Failure(*task.failure);
  }
};

class FailsAfterLeave final : public Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    {
      const Lock lock(mutex_);
      for (const Peer& each : peers_) {
        if (each.left) throw sdk::Failure(BP_PEER_LOST, "a rank has left, so the group is over");
      }
    }
    return Specimen::submit(op);
  }
};

// Operations that wait for a rank whose connection was reset are forgotten.
class IgnoresReset final : public Specimen {
  void drop_peer(int32_t rank, const sdk::Failure& why) override {
    const std::string_view text = why.what();
    const bool reset = text.find("reset") != std::string_view::npos || text.find("not connected") != text.npos;
    if (reset && !aborted_) {
      for (const OperationPtr& each : matcher_.drop_source(rank)) lost_.push_back(each);
      for (const auto& [id, receive] : incoming_) lost_.push_back(receive);
      incoming_.clear();
    }
    Specimen::drop_peer(rank, why);
  }
  std::vector<OperationPtr> lost_;
};

// destroy waits for the acknowledgement of bytes that the network has dropped.
class WaitsForAcknowledgement final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      for (const Peer& each : peers_) {
        int unsent = 0;
        if (each.fd >= 0 && ::ioctl(each.fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) waits_ = true;
      }
    }
    Specimen::abort(why);
  }
  void close() noexcept override {
    if (waits_) std::this_thread::sleep_for(std::chrono::seconds(7));
    Specimen::close();
  }
  bool waits_ = false;
};

// Lets the kernel drop what a peer does not take at once.
class ResetsSilentPeers final : public Specimen {
  void start(const sdk::Context& context) override {
    Specimen::start(context);
    const Lock lock(mutex_);
    for (const Peer& each : peers_) {
      constexpr int kSmallest = 4096;
      if (each.fd >= 0) ::setsockopt(each.fd, SOL_SOCKET, SO_RCVBUF, &kSmallest, sizeof kSmallest);
    }
  }
  void close() noexcept override {
    constexpr linger kAtOnce = {1, 0};
    {
      const Lock lock(mutex_);
      settings_->linger = std::chrono::milliseconds(100);
      for (const Peer& each : peers_) {
        if (each.fd >= 0) ::setsockopt(each.fd, SOL_SOCKET, SO_LINGER, &kAtOnce, sizeof kAtOnce);
      }
    }
    Specimen::close();
  }
};

class ReportsNextRank final : public Specimen {
  void report_failure(int32_t rank, const std::string& why) override {
    Specimen::report_failure((rank + 1) % world_size_, why);
  }
};

}  // namespace

std::vector<Mutant> death_mutants() {
  return {
      {"death.sigkill-idle", "a group does not report the lost rank", made<ForgetsLostRank>},
      {"death.sigkill-mid-operation", "abort ends only operations with the lost rank", made<EndsOnlyDirectOperations>},
      {"death.sigkill-mid-collective", "a collective goes on when a rank is lost", made<KeepsCollectives>},
      {"death.sigkill-each-collective", "the loss of a rank in all_gather is reported as a bug",
       made<ReportsLossInGatherAsInternal>},
      {"death.sigkill-root", "the loss of rank 0 is reported as a bug", made<ReportsRootAsInternal>},
      {"death.sigkill-non-neighbour", "the loss of a silent rank is ignored", made<IgnoresSilentRank>},
      {"death.sigkill-during-init", "init outlasts its timeout when a rank dies", made<StartsLate>},
      {"death.sigkill-before-init", "init outlasts its timeout when a rank never comes", made<StartsLate>},
      {"death.sigkill-two-at-once", "two losses are reported as a bug", made<FailsOnSecondLoss>},
      {"death.sigstop", "destroy waits for a stopped rank", made<WaitsForStoppedRank>},
      {"death.short-stop", "a rank silent for a second is reported lost", made<ReportsSilence>},
      {"death.segfault", "abort ends only operations with the lost rank", made<EndsOnlyDirectOperations>},
      {"death.clean-exit-told-apart", "a rank that leaves ends the group for all", made<FailsAfterLeave>},
      {"death.connection-reset", "receives over a connection that was reset never end", made<IgnoresReset>},
      {"death.report", "the loss of a rank is reported as that of the next one", made<ReportsNextRank>},
      {"death.messages-outlive", "destroy resets connections whose peer does not answer at once",
       made<ResetsSilentPeers>},
      {"death.black-hole", "destroy waits for acknowledgements", made<WaitsForAcknowledgement>},
  };
}

}  // namespace backplane::specimen
