// SPDX-License-Identifier: Apache-2.0
#include "rpc/references.hpp"

#include "log.hpp"
#include "rpc/current_error.hpp"
#include "rpc/inbound_call.hpp"

namespace backplane::core::rpc {

Ref::Ref(std::shared_ptr<References> references, const Fork& fork, bool confirmed)
    : references_(std::move(references)), fork_(fork), settled_(confirmed) {
  Metrics& metrics = references_->context_.metrics;
  metrics.refs.fetch_add(1, std::memory_order_relaxed);
  if (!settled_) metrics.unconfirmed.fetch_add(1, std::memory_order_relaxed);
}

Ref::~Ref() {
  Metrics& metrics = references_->context_.metrics;
  metrics.refs.fetch_sub(1, std::memory_order_relaxed);
  if (!settled_) metrics.unconfirmed.fetch_sub(1, std::memory_order_relaxed);
  references_->forks_.release(fork_.id);
  references_->drop(fork_.owner, fork_.value, fork_.id);
  references_->context_.discard(std::move(held_));
}

std::shared_ptr<Worker> Ref::worker() const { return std::shared_ptr<Worker>(references_->context_.worker); }

void Ref::hold(std::shared_ptr<Value> value) {
  const std::lock_guard lock(mutex_);
  held_ = std::move(value);  // always the same one
}

void Ref::when_confirmed(std::function<void(const Error* error)> ready) {
  {
    const std::lock_guard lock(mutex_);
    if (!settled_) {
      waiting_.push_back(std::move(ready));
      return;
    }
  }
  ready(failure_ ? &*failure_ : nullptr);
}

void Ref::confirm(const Error* error) {
  std::vector<std::function<void(const Error*)>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(settled_, true)) {
      references_->context_.metrics.unconfirmed.fetch_sub(1, std::memory_order_relaxed);
    }
    if (error != nullptr) failure_.emplace(*error);
    waiting.swap(waiting_);
  }
  for (const auto& ready : waiting) ready(error);
}

// The forks of one message, while their owners register them.
struct References::Registration {
  std::mutex mutex;
  Header header;
  Content content;
  Registered next;
  size_t left = 0;
  std::optional<Error> error;
};

uint64_t References::request(int32_t to, Header header, Content content, int64_t timeout_ns, Done done) {
  if (content.refs.empty()) {
    return caller_.request(to, std::move(header), std::move(content), timeout_ns, std::move(done));
  }
  const uint64_t number = caller_.begin(to, header, content.bytes(), &timeout_ns, std::move(done));
  header.call = number;
  if (const auto absence = context_.peers.absence(to)) {
    caller_.end(number, *absence);
    return number;
  }
  register_forks(to, std::move(header), std::move(content),
                 [self = self(), to, number, timeout_ns](const Header& registered, Content sent, const Error* error) {
                   if (error != nullptr) return self->caller_.end(number, *error);
                   const auto release = [self, to, forks = registered.refs](bool was_sent) {
                     was_sent ? self->abandon(to, forks) : self->drop(forks);
                   };
                   if (!self->caller_.calls().set_release_forks(number, release)) {
                     return self->drop(registered.refs);  // the call was cancelled
                   }
                   self->caller_.send(to, registered, std::move(sent), timeout_ns);
                 });
  return number;
}

void References::register_forks(int32_t to, Header header, Content content, Registered next) {
  auto all = std::make_shared<Registration>();
  for (const auto& ref : content.refs) header.refs.push_back({ref->owner(), ref->value(), next_id()});
  // `owner` keeps the references alive. Their release, after the send, begins other requests.
  if (!content.buffers.empty()) {
    content.owner = std::make_shared<std::pair<Caller::Completion, std::shared_ptr<void>>>(&caller_, content.owner);
  }
  all->header = std::move(header);
  all->content = std::move(content);
  all->next = std::move(next);
  all->left = all->header.refs.size();
  const auto confirmed = [self = self(), all](const Error* error) {
    {
      const std::lock_guard lock(all->mutex);
      if (error != nullptr && !all->error) all->error.emplace(*error);
      if (--all->left > 0) return;
    }
    if (all->error) self->drop(all->header.refs);
    all->next(all->header, std::move(all->content), all->error ? &*all->error : nullptr);
  };
  // Copies: the last confirmation, which moves the content away, may come during the loop.
  const std::vector<std::shared_ptr<Ref>> refs = all->content.refs;
  const std::vector<Fork> forks = all->header.refs;
  for (size_t i = 0; i < refs.size(); ++i) register_fork(to, forks[i], refs[i], confirmed);
}

// `ref` stays alive until its owner has replied.
void References::register_fork(int32_t to, const Fork& fork, const std::shared_ptr<Ref>& ref,
                               std::function<void(const Error* error)> done) {
  ref->when_confirmed([self = self(), fork, ref, to, done = std::move(done)](const Error* error) {
    if (error != nullptr) return done(error);
    Header header;
    header.kind = Kind::kFork;
    header.value = fork.value;
    header.fork = fork.id;
    header.holder = to;
    try {
      self->caller_.request(fork.owner, std::move(header), {}, BP_INHERIT_TIMEOUT,
                            [ref, done](const std::shared_ptr<Payload>&, const Error* failure) { done(failure); });
    } catch (...) {
      const Error refused = current_error();
      done(&refused);
    }
  });
}

std::shared_ptr<Ref> References::remote(int32_t to, const std::string& function, Content arguments,
                                        int64_t timeout_ns) {
  InboundCall::require_may_wait();
  context_.peers.require_rank(to);
  caller_.require_new_calls();  // first: a reference to a value that is not requested would send messages
  Header header;
  header.kind = Kind::kRemote;
  header.function = function;
  header.value = next_id();
  header.fork = next_id();
  auto ref = std::make_shared<Ref>(self(), Fork{to, header.value, header.fork}, false);
  request(to, std::move(header), std::move(arguments), timeout_ns,
          [ref](const std::shared_ptr<Payload>&, const Error* error) { ref->confirm(error); });
  return ref;
}

std::shared_ptr<Ref> References::create(std::shared_ptr<Value> value) {
  const int32_t rank = context_.peers.own_rank();
  const Fork own = {rank, next_id(), next_id()};
  values_.create(own.value, own.id, rank, "");
  values_.set(own.value, std::move(value));
  return std::make_shared<Ref>(self(), own, true);
}

uint64_t References::fetch(const std::shared_ptr<Ref>& ref, int64_t timeout_ns, Done done) {
  InboundCall::require_may_wait();
  Header header;
  header.kind = Kind::kFetch;
  header.value = ref->value();
  // Keeps the reference until the value has arrived. Shared, because copies of the closure must not copy `done`.
  const auto shared = std::make_shared<Done>(std::move(done));
  const Done whole = [ref, shared](std::shared_ptr<Payload> value, const Error* error) {
    (*shared)(std::move(value), error);
  };
  const int32_t owner = ref->owner();
  header.call = caller_.begin(owner, header, 0, &timeout_ns, whole);
  ref->when_confirmed([self = self(), owner, header, timeout_ns](const Error* error) {
    if (error != nullptr) return self->caller_.end(header.call, *error);
    if (const auto absence = self->context_.peers.absence(owner)) return self->caller_.end(header.call, *absence);
    if (self->caller_.calls().contains(header.call)) self->caller_.send(owner, header, {}, timeout_ns);
  });
  return header.call;
}

std::shared_ptr<Value> References::wait_for(const Ref& ref, int64_t timeout_ns) {
  if (InboundCall::inside_inline()) timeout_ns = 1;  // nothing arrives while an inline function waits
  const int32_t rank = context_.peers.own_rank();
  if (ref.owner() != rank) {
    fail(BP_INVALID, "the value belongs to {}, and only that worker can use it in place; fetch a copy",
         context_.peers.describe(ref.owner()));
  }
  Call call;
  call.to = rank;
  call.kind = Kind::kFetch;
  try {
    return values_.wait(ref.value(), Deadline::after(caller_.resolve_timeout(timeout_ns)));
  } catch (const Error& error) {
    throw caller_.describe(call, error);
  }
}

// Sends a message about forks until it is confirmed. Stops after some attempts, because the peer may have left.
void References::notify(int32_t to, Header header, int attempts) {
  if (context_.peers.absence(to)) return;
  try {
    Header sent = header;
    // Weak: the closure is in a table of the worker.
    caller_.request(to, std::move(sent), {}, caller_.retry_timeout_ns(),
                    [weak = context_.worker, this, to, header = std::move(header), attempts](
                        const std::shared_ptr<Payload>&, const Error* error) {
                      if (error == nullptr || attempts <= 1) return;
                      if (const auto worker = weak.lock()) {
                        context_.run([worker, this, to, header, attempts] { notify(to, header, attempts - 1); });
                      }
                    });
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: {} is not told of a dropped reference: {}", context_.peers.describe(to), e.what());
  }
}

void References::drop(int32_t owner, const Id& value, const Id& fork) {
  if (owner == context_.peers.own_rank()) return drop_own(value, fork);
  Header header;
  header.kind = Kind::kDrop;
  header.value = value;
  header.fork = fork;
  notify(owner, std::move(header));
}

void References::drop(const std::vector<Fork>& forks) {
  for (const Fork& each : forks) drop(each.owner, each.value, each.id);
}

void References::abandon(int32_t receiver, std::vector<Fork> forks) {
  if (receiver == context_.peers.own_rank() || forks.empty()) return;
  Header header;
  header.kind = Kind::kAbandon;
  header.refs = std::move(forks);
  notify(receiver, std::move(header));
}

void References::receive(const Header& header, Payload* payload) {
  if (!carries_refs(header.kind) || header.refs.empty()) return;
  if (!forks_.hold(header.refs)) fail(BP_CANCELLED, "its sender has abandoned it");
  for (const Fork& each : header.refs) payload->refs().push_back(std::make_shared<Ref>(self(), each, true));
}

void References::on_fork(int32_t from, const Header& header) {
  context_.peers.require_rank(header.holder);
  if (header.fork.maker != from) {
    fail(BP_INVALID, "a reference is passed on under the number of worker {}", header.fork.maker);
  }
  values_.fork(header.value, header.fork, header.holder);
  // Afterwards: either this check or on_peer_gone sees what the other has recorded.
  if (const auto absence = context_.peers.absence(header.holder)) {
    drop_own(header.value, header.fork);
    throw Error(*absence);
  }
}

void References::on_abandon(int32_t from, const Header& header) {
  for (const Fork& each : header.refs) {
    if (each.id.maker != from)
      fail(BP_INVALID, "a reference is abandoned under the number of worker {}", each.id.maker);
  }
  drop(forks_.abandon(header.refs));
}

void References::on_peer_gone(int32_t peer) {
  for (auto& value : values_.drop_all_of(peer)) context_.discard(std::move(value));
}

}  // namespace backplane::core::rpc
