// SPDX-License-Identifier: Apache-2.0
//
// References: torch's RRef protocol. A worker that hands a reference on first tells the owner of the fork that the
// receiver will hold, and waits for its word; so the value cannot go while a fork is on its way. The receiver tells the
// owner when it has dropped its fork. `values.hpp` is the owner's side.
#include <algorithm>
#include <utility>

#include "log.hpp"
#include "rpc/caught.hpp"
#include "rpc/worker.hpp"

namespace backplane::core::rpc {
namespace {

// How long the answer to a word about forks may take before it is told again, and at least that long. Cancels live as
// long.
constexpr int64_t kTellNs = INT64_C(30) * 1000000000;
constexpr int64_t kTellSoonestNs = INT64_C(1) * 1000000000;

}  // namespace

Ref::Ref(std::shared_ptr<Worker> worker, const Passed& passed, bool confirmed)
    : worker_(std::move(worker)), passed_(passed), settled_(confirmed) {
  worker_->metrics_.refs.fetch_add(1, std::memory_order_relaxed);
  if (!settled_) worker_->metrics_.unconfirmed.fetch_add(1, std::memory_order_relaxed);
}

Ref::~Ref() {
  worker_->metrics_.refs.fetch_sub(1, std::memory_order_relaxed);
  if (!settled_) worker_->metrics_.unconfirmed.fetch_sub(1, std::memory_order_relaxed);
  worker_->forks_.let_go(passed_.fork);
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
    if (!std::exchange(settled_, true)) worker_->metrics_.unconfirmed.fetch_sub(1, std::memory_order_relaxed);
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
  const uint64_t number = begin(ref->owner(), header, 0, &timeout_ns, whole);
  header.call = number;
  ref->when_confirmed([self = shared_from_this(), to = ref->owner(), header, timeout_ns](const Error* error) {
    if (error != nullptr) return self->end(header.call, *error);
    if (const auto loss = self->loss_of(to)) return self->end(header.call, *loss);
    if (self->calls_.set_forks(header.call, {})) self->transmit_or_fail(to, header, {}, timeout_ns);
  });
  return number;
}

std::shared_ptr<Value> Worker::local(const Ref& ref, int64_t timeout_ns) {
  if (Inbound::running != nullptr && Inbound::running->is_inline) timeout_ns = 1;  // what is not there yet never comes
  if (ref.owner() != rank_) {
    fail(BP_INVALID, "this value is worker '{}''s; only there it can be used in place, elsewhere ask for a copy",
         names_[static_cast<size_t>(ref.owner())]);
  }
  Call asked;
  asked.to = rank_;
  asked.kind = Kind::kFetch;
  const Deadline deadline = deadline_of(&timeout_ns);
  try {
    return values_.wait(ref.value(), deadline);
  } catch (const Error& error) {
    throw labelled(asked, error);
  }
}

int64_t Worker::word_timeout_ns() const {
  return rpc_timeout_ns_ < 0 ? kTellNs : std::clamp(rpc_timeout_ns_, kTellSoonestNs, kTellNs);
}

// The other one is told again if a connection broke, but not for ever: it may have left.
void Worker::tell(int32_t to, Header word, int attempts) {
  if (loss_of(to)) return;
  try {
    Header sent = word;
    request(to, std::move(sent), {}, word_timeout_ns(),
            [weak = weak_from_this(), to, word = std::move(word), attempts](const std::shared_ptr<Parcel>&,
                                                                            const Error* error) {
              const auto self = weak.lock();
              if (error == nullptr || attempts <= 1 || !self) return;
              self->run([self, to, word, attempts] { self->tell(to, word, attempts - 1); });
            });
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: a reference was dropped after its worker had left: {}", e.what());
  }
}

void Worker::drop(int32_t owner, const Id& value, const Id& fork) {
  if (owner == rank_) return discard(values_.drop(value, fork));
  Header word;
  word.kind = Kind::kDrop;
  word.value = value;
  word.fork = fork;
  tell(owner, std::move(word));
}

// A message with these was not answered, and perhaps never arrived: its receiver, to whom they belong, drops those that
// it has not got. Not those that went to this worker itself, which do not get lost.
void Worker::give_up(int32_t receiver, std::vector<Passed> forks) {
  if (receiver == rank_ || forks.empty()) return;
  Header word;
  word.kind = Kind::kLost;
  word.refs = std::move(forks);
  tell(receiver, std::move(word));
}

void Worker::receive_refs(const Header& header, Parcel* parcel) {
  if (!brings_refs(header.kind) || header.refs.empty()) return;
  if (!forks_.hold(header.refs)) fail(BP_CANCELLED, "its sender has given it up for lost");
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
  if (header.kind == Kind::kLost) {
    for (const Passed& each : header.refs) {
      if (each.fork.maker != from) fail(BP_INVALID, "a reference is given up under somebody else's number");
    }
    for (const Passed& each : forks_.give_up(header.refs)) drop(each.owner, each.value, each.fork);
    return reply(from, header.call, {});
  }
  const auto ready = [self = shared_from_this(), from, call = header.call](const std::shared_ptr<Value>& value,
                                                                           const Error* error) {
    if (error != nullptr) return self->reply_error(from, call, *error);
    self->run([self, from, call, value] {
      try {
        self->reply(from, call, Value::encode(value, false));
      } catch (...) {
        self->reply_error(from, call, caught());
      }
    });
  };
  values_.when_ready(header.value, ready, from, header.call);
  if (cancels_.take(from, header.call)) values_.stop_waiting(header.value, from, header.call);
}

}  // namespace backplane::core::rpc
