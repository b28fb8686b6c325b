// SPDX-License-Identifier: Apache-2.0
#include "mutants_init.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <set>

namespace backplane::specimen {
namespace {

struct FailsAlone final : Specimen {
  void submit_receive(const OperationPtr& receive) override {
    if (world_size_ == 1) return;  // no rank will send
    Specimen::submit_receive(receive);
  }
};

struct FailsWithSix final : Specimen {
  void start(const sdk::Context& context) override {
    if (context.world_size == 6) throw sdk::Failure(BP_INTERNAL, "six is too many");
    Specimen::start(context);
  }
};

// In a world of five, the last rank's messages to the first are mixed up.
struct MixesUpWithFive final : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    if (world_size_ != 5 || rank_ != 0 || source != 4 || size == 0) {
      return Specimen::deliver(receive, source, data, size);
    }
    std::vector<std::byte> mixed(data, data + size);
    mixed.front() ^= std::byte{1};
    Specimen::deliver(receive, source, mixed.data(), size);
  }
};

struct Impatient final : Specimen {
  void start(const sdk::Context& context) override {
    sdk::Context shorter = context;
    shorter.timeout_ns = 200 * kMillisecond;
    Specimen::start(shorter);
  }
};

// Drops the messages of a rank that leaves.
struct ForgetsRanksThatLeft final : Specimen {
  void on_goodbye(int32_t rank) override {
    for (const OperationPtr& each : matcher_.clear()) fail(*each, sdk::Failure(BP_PEER_LOST, "a rank left", rank));
    Specimen::on_goodbye(rank);
  }
};

int32_t puts_rank_in_range(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  bp_init mended = *init;
  mended.world_size = std::max(mended.world_size, 1);
  mended.rank = std::clamp(mended.rank, 0, mended.world_size - 1);
  return plain_init(self, &mended, agent, err);
}

// Waits four times as long as it may.
struct ExceedsTimeout final : Specimen {
  void start(const sdk::Context& context) override {
    sdk::Context longer = context;
    longer.timeout_ns *= 4;
    Specimen::start(longer);
  }
};

int32_t names_no_rank(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const int32_t status = plain_init(self, init, agent, err);
  return status == BP_TIMEOUT ? bp_error_set(err, status, 0, -1, "a rank is late") : status;
}
int32_t blames_itself(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const int32_t status = plain_init(self, init, agent, err);
  if (status != BP_TIMEOUT) return status;
  const std::string text = "rank " + std::to_string(init->rank) + " did not come in time";
  return bp_error_set(err, status, 0, init->rank, text.c_str());
}

// A host whose abort_requested answers 800 ms late. Never freed.
struct SlowHost {
  bp_host table;
  const bp_host* real;
  std::atomic<int64_t> wanted{0};
};
int32_t asked_late(void* ctx) {
  SlowHost& host = *static_cast<SlowHost*>(ctx);
  if (host.real->abort_requested(host.real->ctx) == 0) return 0;
  const int64_t time = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  int64_t none = 0;
  host.wanted.compare_exchange_strong(none, time);
  return time - host.wanted.load() > 800 * kMillisecond ? 1 : 0;
}
int32_t polls_abort_rarely(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  static std::list<SlowHost> hosts;
  static std::mutex mutex;
  bp_init changed = *init;
  {
    const std::lock_guard lock(mutex);
    SlowHost& host = hosts.emplace_back();
    host.real = init->host;
    host.table = *init->host;
    host.table.ctx = &host;
    host.table.abort_requested = asked_late;
    host.table.log = [](void* ctx, uint32_t level, const char* text) {
      const bp_host& real = *static_cast<SlowHost*>(ctx)->real;
      real.log(real.ctx, level, text);
    };
    host.table.store_set = [](void* ctx, const char* key, const void* value, uint64_t size, bp_error* error) {
      const bp_host& real = *static_cast<SlowHost*>(ctx)->real;
      return real.store_set(real.ctx, key, value, size, error);
    };
    host.table.store_get = [](void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size,
                              int64_t timeout_ns, bp_error* error) {
      const bp_host& real = *static_cast<SlowHost*>(ctx)->real;
      return real.store_get(real.ctx, key, buffer, capacity, size, timeout_ns, error);
    };
    changed.host = &host.table;
  }
  return plain_init(self, &changed, agent, err);
}
int32_t reports_abort_as_internal(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const int32_t status = plain_init(self, init, agent, err);
  return status == BP_CANCELLED ? bp_error_set(err, BP_INTERNAL, 0, -1, "unexpected end") : status;
}

int32_t reports_port_as_internal(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const int32_t status = plain_init(self, init, agent, err);
  return status == BP_RESOURCE ? bp_error_set(err, BP_INTERNAL, 0, -1, err == nullptr ? "" : err->text) : status;
}
int32_t omits_port(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  const int32_t status = plain_init(self, init, agent, err);
  return status == BP_RESOURCE ? bp_error_set(err, status, 0, -1, "cannot listen") : status;
}

// Always listens at its first port and checks no key.
struct AcceptsAnyKey final : Specimen {
  void listen() override {
    static std::atomic<uint16_t> first{0};
    if (settings_->port == 0) settings_->port = first.load();
    Specimen::listen();
    sockaddr_in bound = {};
    socklen_t size = sizeof bound;
    if (::getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) == 0) first.store(ntohs(bound.sin_port));
  }
  uint32_t judge(const Hello& hello, bool& trusted) override {
    Hello believed = hello;
    believed.key = key_;
    return Specimen::judge(believed, trusted);
  }
};

// The groups of this process that have started and not ended.
struct Registry {
  std::mutex mutex;
  std::set<Specimen*> groups;
};
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

struct OneAtATime final : Specimen {
  void start(const sdk::Context& context) override {
    {
      const std::lock_guard lock(registry().mutex);
      if (!registry().groups.empty()) throw sdk::Failure(BP_RESOURCE, "one group at a time");
      registry().groups.insert(this);
    }
    Specimen::start(context);
  }
  void close() noexcept override {
    {
      const std::lock_guard lock(registry().mutex);
      registry().groups.erase(this);
    }
    Specimen::close();
  }
};

struct NeverRecovers final : Specimen {
  void start(const sdk::Context& context) override {
    static std::atomic<bool> failed{false};
    if (failed.load()) throw sdk::Failure(BP_INTERNAL, "it has failed before");
    try {
      Specimen::start(context);
    } catch (...) {
      failed.store(true);
      throw;
    }
  }
};

// The end of one group aborts all.
struct AbortsOtherGroups final : Specimen {
  void start(const sdk::Context& context) override {
    Specimen::start(context);
    const std::lock_guard lock(registry().mutex);
    registry().groups.insert(this);
  }
  void close() noexcept override {
    {
      const std::lock_guard lock(registry().mutex);
      registry().groups.erase(this);
      for (Specimen* other : registry().groups) other->abort(sdk::Failure(BP_CANCELLED, "another group has ended"));
    }
    Specimen::close();
  }
};

// Asks no more once the other rank of a pair has published its endpoint.
class AsksForKeysOnly final : public Specimen {
  void check_abort() const override {
    if (!published_) {
      Specimen::check_abort();
      try {
        (void)host_->store_get("specimen/" + std::to_string(1 - rank_), 0);
        published_ = world_size_ == 2;
      } catch (const sdk::Failure&) {
      }
    }
  }
  mutable bool published_ = false;
};

}  // namespace

std::vector<Mutant> init_mutants() {
  return {
      {.name = "init.world-1", .bug = "receives nothing alone", .make = made<FailsAlone>},
      {.name = "init.each-world", .bug = "fails in a world of six", .make = made<FailsWithSix>},
      {.name = "init.each-world:2", .bug = "mixes up messages in a world of five", .make = made<MixesUpWithFive>},
      {.name = "init.late-joiner", .bug = "waits 200 ms only", .make = made<Impatient>},
      {.name = "init.gone-before-others", .bug = "forgets ranks that left", .make = made<ForgetsRanksThatLeft>},
      {.name = "init.rank-out-of-range", .bug = "takes any rank", .patch_backend = starting<puts_rank_in_range>},
      {.name = "init.duplicate-rank", .bug = "exceeds its timeout", .make = made<ExceedsTimeout>},
      {.name = "init.size-mismatch", .bug = "exceeds its timeout", .make = made<ExceedsTimeout>},
      {.name = "init.missing-rank-named", .bug = "exceeds its timeout", .make = made<ExceedsTimeout>},
      {.name = "init.missing-rank-named:2", .bug = "names no rank", .patch_backend = starting<names_no_rank>},
      {.name = "init.missing-rank-named:3", .bug = "names itself", .patch_backend = starting<blames_itself>},
      {.name = "init.missing-first-rank-named", .bug = "exceeds its timeout", .make = made<ExceedsTimeout>},
      {.name = "init.missing-first-rank-named:2", .bug = "names no rank", .patch_backend = starting<names_no_rank>},
      {.name = "init.abort-during-init", .bug = "asks too rarely", .patch_backend = starting<polls_abort_rarely>},
      {.name = "init.abort-during-init:2", .bug = "BP_INTERNAL", .patch_backend = starting<reports_abort_as_internal>},
      {.name = "init.abort-at-each-step", .bug = "asks only while a key is missing", .make = made<AsksForKeysOnly>},
      {.name = "init.port-busy", .bug = "reports BP_INTERNAL", .patch_backend = starting<reports_port_as_internal>},
      {.name = "init.port-busy:2", .bug = "does not name the port", .patch_backend = starting<omits_port>},
      {.name = "init.stale-session", .bug = "accepts any connection", .make = made<AcceptsAnyKey>},
      {.name = "init.two-worlds-at-once", .bug = "one group at a time", .make = made<OneAtATime>},
      {.name = "init.retry-after-failure", .bug = "never recovers", .make = made<NeverRecovers>},
      {.name = "init.destroy-twice", .bug = "ends all groups with one", .make = made<AbortsOtherGroups>},
  };
}

}  // namespace backplane::specimen
