// SPDX-License-Identifier: Apache-2.0
//
// References: torch's RRef protocol. Before a worker sends a reference, it registers with the owner the fork that the
// receiver will hold, and waits for the confirmation: a value outlives every fork on its way. The receiver tells the
// owner when it drops its fork. The tables have locks of their own; a Ref has one for its state. Calls the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc/caller.hpp"
#include "rpc/context.hpp"
#include "rpc/fork_table.hpp"
#include "rpc/values.hpp"

namespace backplane::core::rpc {

class References;

// One fork that this worker holds. Keeps the worker alive. The destructor tells the owner.
class Ref {
 public:
  // `confirmed`: the owner knows the fork already.
  Ref(std::shared_ptr<References> references, const Fork& fork, bool confirmed);
  ~Ref();
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;

  int32_t owner() const { return fork_.owner; }
  const Id& value() const { return fork_.value; }
  std::shared_ptr<Worker> worker() const;

  // Calls `ready` once the owner has confirmed the fork (NULL) or has not; immediately, if that is known.
  void when_confirmed(std::function<void(const Error* error)> ready);
  void confirm(const Error* error);
  // At the owner: keeps the value as long as this reference, also after shutdown.
  void hold(std::shared_ptr<Value> value);

 private:
  const std::shared_ptr<References> references_;
  const Fork fork_;
  std::mutex mutex_;  // guards the fields below
  bool settled_;
  std::optional<Error> failure_;
  std::vector<std::function<void(const Error*)>> waiting_;
  std::shared_ptr<Value> held_;
};

class References {
 public:
  References(Context* context, Caller* caller) : context_(*context), caller_(*caller) {}

  // Sends a request whose content may carry references.
  uint64_t request(int32_t to, Header header, Content content, int64_t timeout_ns, Done done);
  // Calls a function whose result stays at the callee.
  std::shared_ptr<Ref> remote(int32_t to, const std::string& function, Content arguments, int64_t timeout_ns);
  // A reference to a value of this worker.
  std::shared_ptr<Ref> create(std::shared_ptr<Value> value);
  uint64_t fetch(const std::shared_ptr<Ref>& ref, int64_t timeout_ns, Done done);
  // Waits for the value of a reference, at its owner.
  std::shared_ptr<Value> wait_for(const Ref& ref, int64_t timeout_ns);

  // Calls `next` with the header extended by forks for `to` of the references in `content`, once their owners have
  // registered them, or with an error.
  using Registered = std::function<void(const Header& header, Content content, const Error* error)>;
  void register_forks(int32_t to, Header header, Content content, Registered next);
  // Releases forks that no message carries.
  void drop(const std::vector<Fork>& forks);
  // Releases those forks of an unanswered message that its receiver does not hold. Those of this worker to itself
  // do not get lost.
  void abandon(int32_t receiver, std::vector<Fork> forks);

  // Messages of peers about references (Server replies to them).
  void receive(const Header& header, Payload* payload);
  void on_fork(int32_t from, const Header& header);
  void on_drop(const Header& header) { drop_own(header.value, header.fork); }
  void on_abandon(int32_t from, const Header& header);
  void on_peer_gone(int32_t peer);

  ForkTable& forks() { return forks_; }
  Values& values() { return values_; }

 private:
  friend class Ref;
  struct Registration;

  Id next_id() { return {context_.peers.own_rank(), next_id_.fetch_add(1) + 1}; }
  std::shared_ptr<References> self() { return context_.keep_alive(this); }
  void register_fork(int32_t to, const Fork& fork, const std::shared_ptr<Ref>& ref,
                     std::function<void(const Error* error)> done);
  void drop_own(const Id& value, const Id& fork) { context_.discard(values_.drop(value, fork)); }
  void drop(int32_t owner, const Id& value, const Id& fork);
  void notify(int32_t to, Header header, int attempts = 5);

  Context& context_;
  Caller& caller_;
  ForkTable forks_;
  Values values_;
  std::atomic<uint64_t> next_id_ = 0;
};

}  // namespace backplane::core::rpc
