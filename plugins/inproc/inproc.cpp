// SPDX-License-Identifier: Apache-2.0
//
// `inproc`: the ranks of a group are threads of one process. Each has a mailbox in the group's hub, whose token is in
// the store. `self`: the same for a group of one rank. Only send and recv are native; the core implements the
// collectives.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "backplane/sdk/mailbox.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::inproc {
namespace {

// The mailboxes of one group.
struct Hub {
  explicit Hub(int32_t world_size) : mailboxes(static_cast<size_t>(world_size)) {}
  std::vector<sdk::Mailbox> mailboxes;
  size_t entered = 0;  // ranks; guarded by the mutex of Hubs
};

// Hubs by token. The first rank creates the hub. The groups of its ranks own it.
class Hubs {
 public:
  std::shared_ptr<Hub> enter(const std::string& token, int32_t world_size) {
    const std::lock_guard lock(mutex_);
    std::erase_if(hubs_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Hub>& slot = hubs_[token];
    std::shared_ptr<Hub> hub = slot.lock();
    if (!hub) {
      hub = std::make_shared<Hub>(world_size);
      slot = hub;
    }
    if (++hub->entered == hub->mailboxes.size()) std::erase(early_, hub);
    return hub;
  }
  // Keeps the hub until all ranks have entered, so that later ranks receive the messages of one that has left.
  void keep(const std::shared_ptr<Hub>& hub) {
    const std::lock_guard lock(mutex_);
    const bool kept = std::find(early_.begin(), early_.end(), hub) != early_.end();
    if (hub->entered < hub->mailboxes.size() && !kept) early_.push_back(hub);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Hub>> hubs_;
  std::vector<std::shared_ptr<Hub>> early_;  // until the last rank has entered
};

Hubs& hubs() {
  static Hubs* const instance = new Hubs;  // other threads may use it while the process ends
  return *instance;
}

class InprocGroup final : public sdk::ProcessGroup {
 public:
  InprocGroup(const sdk::Context& context, std::shared_ptr<Hub> hub) : rank_(context.rank), hub_(std::move(hub)) {}

  ~InprocGroup() override { leave(sdk::Failure(BP_CANCELLED, "this rank's group was destroyed")); }

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    std::shared_ptr<sdk::Completion> completion;
    sdk::Mailbox* mailbox = nullptr;
    if (op.kind == BP_SEND) {
      sent_.store(true);
      mailbox = &hub_->mailboxes[static_cast<size_t>(op.peer)];
      completion = mailbox->put(rank_, op.tag, op.input.data, op.input.count * bp_dtype_size(op.dtype));
    } else {
      mailbox = &mine();
      const uint64_t capacity = op.output.count * bp_dtype_size(op.dtype);
      sdk::Receive receive{op.peer, op.tag, op.output.data, capacity, op.result, nullptr, 0, false};
      completion =
          op.message == nullptr ? mailbox->take(std::move(receive)) : mailbox->take(op.message, std::move(receive));
    }
    if (!completion || completion->wait(0)) return nullptr;
    // The work owns the hub, in which it may cancel.
    try {
      return std::make_unique<sdk::CompletionWork>(
          completion, [hub = hub_, mailbox, which = completion.get()] { mailbox->cancel(which); });
    } catch (const std::bad_alloc&) {  // the caller frees the buffer after this error
      mailbox->cancel(completion.get());
      throw;
    }
  }

  void abort(const sdk::Failure& why) noexcept override { leave(why); }

  const void* extension(std::string_view id) override {
    if (id == BP_EXT_NOTIFY) return sdk::notify_table();
    return id == BP_EXT_PROBE ? probe_.table() : nullptr;
  }

 private:
  sdk::Mailbox& mine() const { return hub_->mailboxes[static_cast<size_t>(rank_)]; }

  // Fails this rank's operations, and those of the others with it.
  void leave(const sdk::Failure& why) noexcept {
    const std::lock_guard lock(leaving_);  // a second call returns after the first
    if (std::exchange(left_, true)) return;
    if (sent_.load()) hubs().keep(hub_);
    const sdk::Failure departure = sdk::peer_left(rank_, why.what());
    const sdk::Failure& for_peers = why.status() == BP_CANCELLED ? departure : why;
    mine().close(why, for_peers);
    for (size_t rank = 0; rank < hub_->mailboxes.size(); ++rank) {
      if (rank == static_cast<size_t>(rank_)) continue;
      hub_->mailboxes[rank].drop_peer(rank_, for_peers, hub_->mailboxes.size() - 1);
    }
  }

  const int32_t rank_;
  const std::shared_ptr<Hub> hub_;
  sdk::MailboxProbe probe_{mine()};
  std::mutex leaving_;
  bool left_ = false;
  std::atomic<bool> sent_ = false;
};

std::string token_of_rank_0(const sdk::Context& context) {
  try {
    return context.host.store_get("inproc", context.timeout_ns);
  } catch (const sdk::Failure& e) {
    if (e.status() != BP_TIMEOUT) throw;
    throw sdk::not_joined(0, e.what());
  }
}

// Rank 0 publishes the token of the hub. It names the process: a rank of another process fails instead of waiting.
std::unique_ptr<sdk::ProcessGroup> start(const sdk::Context& context) {
  static std::atomic<uint64_t> next_token = 0;
  const std::string here = "pid " + std::to_string(getpid());
  std::string token = here + " group " + std::to_string(next_token++);
  if (context.world_size > 1) {
    if (context.rank == 0) context.host.store_set("inproc", token);
    token = token_of_rank_0(context);
  }
  if (!token.starts_with(here + " ")) {
    throw sdk::Failure(BP_UNSUPPORTED, "inproc joins threads of one process, but rank 0 is " +
                                           token.substr(0, token.find(" group")) + " and rank " +
                                           std::to_string(context.rank) + " is " + here +
                                           "; choose a backend that joins processes, such as gloo or zmq");
  }
  return std::make_unique<InprocGroup>(context, hubs().enter(token, context.world_size));
}

struct Common {
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_ONE_PROCESS |
                                    BP_BACKEND_BOUNDED;
  static constexpr std::array<bp_option, 0> options = {};
  static constexpr std::array capabilities = {sdk::moves(BP_SEND), sdk::moves(BP_RECV)};
};

struct Inproc : Common {
  static constexpr const char* id = "inproc";
  static constexpr const char* summary = "ranks are threads of one process";
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) { return start(context); }
};

struct Self : Common {
  static constexpr const char* id = "self";
  static constexpr const char* summary = "the group of one rank";
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    if (context.world_size != 1) {
      throw sdk::Failure(BP_UNSUPPORTED, "self serves a world of one rank, not of " +
                                             std::to_string(context.world_size) + "; choose another backend");
    }
    return start(context);
  }
};

}  // namespace
}  // namespace backplane::inproc

BACKPLANE_PLUGIN("Backplane", backplane::inproc::Inproc, backplane::inproc::Self)
