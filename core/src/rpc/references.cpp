// SPDX-License-Identifier: Apache-2.0
//
// References: torch's RRef protocol. A worker that hands a reference on first tells the owner of the fork that the
// receiver will hold, and waits for its word; so the value cannot go while a fork is on its way. The receiver tells the
// owner when it has dropped its fork. `values.hpp` is the owner's side.
#include <utility>

#include "log.hpp"
#include "rpc/caught.hpp"
#include "rpc/worker.hpp"

namespace backplane::core::rpc {
namespace {

constexpr int64_t kDropNs = INT64_C(30) * 1000000000;  // for the word that a fork is gone, before it is told again

}  // namespace

Ref::Ref(std::shared_ptr<Worker> worker, const Passed& passed, bool confirmed)
    : worker_(std::move(worker)), passed_(passed), settled_(confirmed) {
  worker_->metrics_.refs.fetch_add(1, std::memory_order_relaxed);
}

Ref::~Ref() {
  worker_->metrics_.refs.fetch_sub(1, std::memory_order_relaxed);
  worker_->drop(passed_.owner, passed_.value, passed_.fork);
  worker_->discard(std::move(held_));
}

void Ref::hold(std::shared_ptr<Value> value) {
  const std::lock_guard lock(mutex_);
  held_ = std::move(value);  // always the same
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
    settled_ = true;
    if (error != nullptr) failure_.emplace(*error);
    waiting.swap(waiting_);
  }
  for (const auto& ready : waiting) ready(error);
}

std::shared_ptr<Ref> Worker::keep(std::shared_ptr<Value> value) {
  const Passed own = {rank_, next_id(), next_id()};
  values_.create(own.value, own.fork, rank_, "");
  values_.set(own.value, std::move(value));
  return std::make_shared<Ref>(shared_from_this(), own, true);
}

uint64_t Worker::fetch(const std::shared_ptr<Ref>& ref, int64_t timeout_ns, Done done) {
  require_may_wait();
  Header header;
  header.kind = Kind::kFetch;
  header.value = ref->value();
  // The reference stays until the value has come.
  const auto kept = std::make_shared<Done>(std::move(done));
  const Done whole = [ref, kept](std::shared_ptr<Parcel> value, const Error* error) {
    (*kept)(std::move(value), error);
  };
  const Deadline deadline = deadline_of(&timeout_ns);
  const uint64_t number = calls_.add({ref->owner(), header.kind, "", timeout_ns, {}, whole}, deadline);
  header.call = number;
  ref->when_confirmed([self = shared_from_this(), to = ref->owner(), header, timeout_ns](const Error* error) {
    if (error != nullptr) return self->end(header.call, *error);
    if (const auto loss = self->loss_of(to)) return self->end(header.call, *loss);
    if (self->calls_.has(header.call)) self->transmit_or_fail(to, header, {}, timeout_ns);
  });
  return number;
}

std::shared_ptr<Value> Worker::local(const Ref& ref, int64_t timeout_ns) {
  if (Inbound::running != nullptr && Inbound::running->is_short) timeout_ns = 1;  // what is not there yet never comes
  if (ref.owner() != rank_) {
    fail(BP_INVALID, "this value is worker '{}''s; only there it can be used in place, elsewhere ask for a copy",
         names_[static_cast<size_t>(ref.owner())]);
  }
  return values_.wait(ref.value(), deadline_of(&timeout_ns));
}

// The owner is told again if a connection broke, but not for ever: it may have left.
void Worker::drop(int32_t owner, const Id& value, const Id& fork, int attempts) {
  if (owner == rank_) return discard(values_.drop(value, fork));
  if (loss_of(owner)) return;
  Header word;
  word.kind = Kind::kDrop;
  word.value = value;
  word.fork = fork;
  try {
    request(
        owner, std::move(word), {}, kDropNs,
        [weak = weak_from_this(), owner, value, fork, attempts](const std::shared_ptr<Parcel>&, const Error* error) {
          const auto self = weak.lock();
          if (error == nullptr || error->status() == BP_CANCELLED || attempts <= 1 || !self) return;
          self->run([self, owner, value, fork, attempts] { self->drop(owner, value, fork, attempts - 1); });
        });
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: a reference was dropped after its worker had left: {}", e.what());
  }
}

void Worker::receive_refs(const Header& header, Parcel* parcel) {
  for (const Passed& ref : header.refs) {
    parcel->refs().push_back(std::make_shared<Ref>(shared_from_this(), ref, true));
  }
}

void Worker::serve_reference(int32_t from, const Header& header) {
  if (header.kind == Kind::kFork) {
    require_peer(header.holder);
    if (header.fork.maker != from) fail(BP_INVALID, "a reference is passed on under somebody else's number");
    values_.fork(header.value, header.fork, header.holder);
    // Afterwards, so that either this or the one who tells of the loss sees the other.
    if (const auto loss = loss_of(header.holder)) {
      drop(rank_, header.value, header.fork);
      throw Error(*loss);
    }
    return reply(from, header.call, {});
  }
  if (header.kind == Kind::kDrop) {
    drop(rank_, header.value, header.fork);
    return reply(from, header.call, {});
  }
  values_.when_ready(header.value, [self = shared_from_this(), from, call = header.call](
                                       const std::shared_ptr<Value>& value, const Error* error) {
    if (error != nullptr) return self->reply_error(from, call, *error);
    self->run([self, from, call, value] {
      try {
        self->reply(from, call, Value::encode(value));
      } catch (...) {
        self->reply_error(from, call, caught());
      }
    });
  });
}

}  // namespace backplane::core::rpc
