// SPDX-License-Identifier: Apache-2.0
//
// What comes in.
#include <system_error>
#include <utility>

#include "log.hpp"
#include "rpc/caught.hpp"
#include "rpc/worker.hpp"

namespace backplane::core::rpc {
namespace {

// Answers carry their call's number with this bit, so that the caller hears of one that was lost, and which attempt it
// is to tell of that.
constexpr uint64_t kAnswer = uint64_t{1} << 63;
constexpr int kAttemptShift = 60;
constexpr uint64_t kAttempts = 3;
constexpr uint64_t kNumbers = (uint64_t{1} << kAttemptShift) - 1;

// How long a broken connection waits for the word of a death, so that everybody hears of it in the same words.
constexpr int64_t kGraceNs = INT64_C(500) * 1000000;

}  // namespace

thread_local Worker::Inbound* Worker::Inbound::running = nullptr;

std::shared_ptr<Worker> Worker::current() { return Inbound::running == nullptr ? nullptr : Inbound::running->worker; }
bool Worker::cancelled() { return Inbound::running != nullptr && Inbound::running->cancelled.load(); }

void Worker::require_may_wait() {
  if (Inbound::running == nullptr || !Inbound::running->is_inline) return;
  fail(BP_INVALID,
       "'{}' is registered as a short function, which calls nobody and does not wait; register it otherwise",
       Inbound::running->header.function);
}

void Worker::run(std::function<void()> task) {
  bool added = false;
  try {
    added = executor_->add(std::move(task));
  } catch (const std::system_error& e) {
    log(BP_LOG_WARN, "rpc: cannot start a thread for calls ({}); a function runs on the thread that received its call",
        e.what());
  }
  if (!added) task();  // NOLINT(bugprone-use-after-move): not moved from unless it was added
}

void Worker::discard(std::shared_ptr<Value> gone) {
  if (gone) run([gone = std::move(gone)]() mutable { gone.reset(); });
}

void Worker::received(int32_t from, const bp_rpc_message& message) { take(from, message, nullptr); }

void Worker::refused(int32_t from, const bp_rpc_message& message, const Error& error) { take(from, message, &error); }

void Worker::take(int32_t from, const bp_rpc_message& message, const Error* problem) {
  std::shared_ptr<Parcel> parcel;
  try {
    parcel = std::make_shared<Parcel>(message);
  } catch (const std::exception& e) {
    if (message.release != nullptr) message.release(message.owner);
    log(BP_LOG_ERROR, "rpc: a message was dropped: {}", e.what());
    return;
  }
  try {
    require_peer(from);
    metrics_.peers[static_cast<size_t>(from)].bytes_received.fetch_add(parcel->size(), std::memory_order_relaxed);
    std::string_view bytes = parcel->bytes();
    Header header = decode(&bytes);
    parcel->set_payload(bytes);
    for (const Passed& ref : header.refs) require_peer(ref.owner);
    receive_refs(header, parcel.get());
    handle(from, std::move(header), std::move(parcel), problem);
  } catch (const std::exception& e) {
    log(BP_LOG_WARN, "rpc: a message of rank {} was dropped: {}", from, e.what());
  }
}

void Worker::failed(int32_t to, uint64_t id, const Error& error) {
  if (id == kUnnumbered) return;
  require_peer(to);
  if ((id & kAnswer) != 0) {
    give_up(to, forks_.take_answer(to, id & kNumbers));
    const uint64_t attempt = (id & ~kAnswer) >> kAttemptShift;
    if (attempt >= kAttempts) return;
    // What could not even be sent is no matter of connections.
    const bool sent = error.status() != BP_INVALID && error.status() != BP_RESOURCE;
    const Error told(sent ? BP_PEER_LOST : error.status(),
                     fmt::format("its answer {}: {}", sent ? "was lost" : "could not be sent", error.what()), rank_);
    reply_error(to, id & kNumbers, told, attempt + 1);
  } else if (error.status() == BP_PEER_LOST && watched_) {
    calls_.doom(id, to, error, Deadline::after(kGraceNs));
  } else {
    end(id, error, to);
  }
}

void Worker::lost(int32_t peer, const Error& error) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(names_.size()); ++rank) {
    if (rank == rank_ || (peer >= 0 && peer != rank)) continue;
    calls_.doom_all_to(rank, error, Deadline::after(kGraceNs));
    cancel_again(rank);
    tell_doubt(rank);
  }
}

// What it was told of may have been lost with the connection.
void Worker::cancel_again(int32_t to) {
  if (loss_of(to)) return;
  for (const Cancels::Told& told : cancels_.again(to, Deadline::Clock::now())) tell_cancel(to, told);
}

// Its agent may have noticed nothing: answers that this worker had sent were its last on that connection.
void Worker::tell_doubt(int32_t to) {
  Header word;
  word.kind = Kind::kDoubt;
  word.call = metrics_.peers[static_cast<size_t>(to)].last_call.load();
  if (word.call == 0 || loss_of(to)) return;
  try {
    transmit(to, word, {}, kUnnumbered, rpc_timeout_ns_);
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: rank {} cannot be told of lost answers: {}", to, e.what());
  }
}

void Worker::on_doubt(int32_t from, uint64_t last) {
  const Error error(BP_PEER_LOST, "its answer may have been lost with a connection that broke", from);
  calls_.doom_all_to(from, error, Deadline::after(kGraceNs), last);
  cancel_again(from);
}

void Worker::handle(int32_t from, Header header, std::shared_ptr<Parcel> parcel, const Error* problem) {
  if (problem != nullptr && header.kind == Kind::kReply) {
    header.kind = Kind::kError;
    header.status = problem->status();
    header.function = fmt::format("its result has no place here: {}", problem->what());
  }
  if (header.kind == Kind::kReply || header.kind == Kind::kError) return on_answer(from, header, std::move(parcel));
  if (header.kind == Kind::kCancel) return on_cancel(from, header);
  if (header.kind == Kind::kLeave) return forget(from, Error(BP_CANCELLED, "it has shut down", from));
  if (header.kind == Kind::kDoubt) return on_doubt(from, header.call);
  arrived_.fetch_add(1);
  PeerMetrics& peer = metrics_.peers[static_cast<size_t>(from)];
  peer.calls_received.fetch_add(1, std::memory_order_relaxed);
  for (uint64_t last = peer.last_call;
       last < header.call && !peer.last_call.compare_exchange_weak(last, header.call);) {
  }
  const uint64_t call = header.call;
  try {
    if (problem != nullptr) throw Error(*problem);
    if (header.kind == Kind::kCall || header.kind == Kind::kRemote) {
      serve(from, std::move(header), std::move(parcel));
    } else {
      serve_reference(from, header);
    }
  } catch (...) {
    reply_error(from, call, caught());
  }
}

void Worker::serve(int32_t from, Header header, std::shared_ptr<Parcel> parcel) {
  auto inbound = std::make_shared<Inbound>();
  inbound->worker = shared_from_this();
  inbound->from = from;
  inbound->header = std::move(header);
  inbound->parcel = std::move(parcel);
  if (inbound->header.kind == Kind::kRemote) {
    const Header& asked = inbound->header;
    if (asked.value.maker != from || asked.fork.maker != from) {
      fail(BP_INVALID, "a value is asked for under somebody else's number");
    }
    const bool wanted = values_.create(asked.value, asked.fork, from, asked.function);
    if (loss_of(from)) {  // told before the value was in the books
      discard(values_.drop(asked.value, asked.fork));
      return;
    }
    reply(from, asked.call, {});
    if (!wanted) return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (closed_) fail(BP_CANCELLED, "this worker has left");
    if (!inbound_.emplace(std::pair(from, inbound->header.call), inbound).second) {
      fail(BP_INVALID, "a call has the number of another one");
    }
    if (cancels_.take(from, inbound->header.call)) inbound->cancelled = true;
  }
  // A call to itself comes on the caller's thread, which may hold locks.
  inbound->function = find_function(inbound->header.function);
  inbound->is_inline = from != rank_ && inbound->function && inbound->function->is_inline;
  if (inbound->is_inline) return perform(inbound);
  run([job = inbound.get()] { job->worker->perform(job->shared_from_this()); });  // the table keeps it until then
}

void Worker::perform(const std::shared_ptr<Inbound>& inbound) {
  Inbound* const before = std::exchange(Inbound::running, inbound.get());
  std::shared_ptr<Value> value;
  std::optional<Error> error;
  Content result;
  const auto begun = Deadline::Clock::now();
  inbound->runs = true;
  try {
    if (inbound->cancelled) fail(BP_CANCELLED, "its caller waits no more");
    value = invoke(inbound);
  } catch (...) {
    error.emplace(caught());
  }
  Inbound::running = before;
  const auto ended = Deadline::Clock::now();
  metrics_.peers[static_cast<size_t>(inbound->from)].run_times.add((ended - begun).count());
  const Header& asked = inbound->header;
  try {
    if (!error && asked.kind == Kind::kCall && !inbound->cancelled) result = Value::encode(value, true);
  } catch (...) {
    error.emplace(caught());
  }
  record_.add({true, inbound->from, asked.call, asked.kind, asked.function, inbound->arrived, ended,
               error ? error->status() : BP_OK, inbound->parcel->content_bytes(), result.bytes()});
  inbound->parcel.reset();
  inbound->ended = true;
  if (asked.kind == Kind::kRemote) {
    if (error) {
      values_.set(asked.value, Error(error->status(), fmt::format("'{}' failed: {}", asked.function, error->what()),
                                     rank_, error->native_code()));
    } else {
      values_.set(asked.value, std::move(value));
    }
  } else if (!inbound->cancelled) {
    answer(inbound, error ? &*error : nullptr, std::move(result));
    value.reset();
  }
  const std::lock_guard lock(mutex_);
  inbound_.erase({inbound->from, inbound->header.call});
  quiet_.notify_all();
}

std::shared_ptr<Value> Worker::invoke(const std::shared_ptr<Inbound>& inbound) {
  if (!inbound->function) fail_unknown_function(inbound->header.function);
  const bp_rpc_payload arguments = {{}, inbound->parcel};
  bp_rpc_value made = {};
  made.struct_size = sizeof(bp_rpc_value);
  bp_error err;
  bp_error_init(&err);
  const int32_t status = inbound->function->run(inbound->function->ctx, &arguments, &made, &err);
  if (status != BP_OK) throw_report(status, err, "");
  return std::make_shared<Value>(made);
}

void Worker::answer(const std::shared_ptr<Inbound>& inbound, const Error* error, Content result) {
  const int32_t to = inbound->from;
  const uint64_t call = inbound->header.call;
  if (error != nullptr) return reply_error(to, call, *error);
  try {
    reply(to, call, std::move(result));
  } catch (...) {
    reply_error(to, call, caught());
  }
}

void Worker::reply(int32_t to, uint64_t call, Content content) {
  Header header;
  header.kind = Kind::kReply;
  header.call = call;
  const auto finish = [self = shared_from_this(), to, call](const Header& passed, Content sent, const Error* error) {
    if (error != nullptr) return self->reply_error(to, call, *error);
    try {
      self->forks_.note_answer(to, call & kNumbers, passed.refs);
      self->transmit(to, passed, std::move(sent), (call & kNumbers) | kAnswer, self->rpc_timeout_ns_);
    } catch (...) {
      const Error e = caught();
      self->forks_.take_answer(to, call & kNumbers);
      self->drop_forks(passed);
      self->reply_error(to, call, Error(e.status(), fmt::format("its answer could not be sent: {}", e.what())));
    }
  };
  if (content.refs.empty()) return finish(header, std::move(content), nullptr);
  pass_on(to, std::move(header), std::move(content), finish);
}

void Worker::reply_error(int32_t to, uint64_t call, const Error& error, uint64_t attempt) {
  Header header;
  header.kind = Kind::kError;
  header.call = call;
  header.status = error.status();
  header.function = error.what();
  try {
    transmit(to, header, {}, (call & kNumbers) | kAnswer | attempt << kAttemptShift, rpc_timeout_ns_);
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: worker '{}' cannot be told of an error: {}", names_[static_cast<size_t>(to)], e.what());
  }
}

void Worker::on_answer(int32_t from, const Header& header, std::shared_ptr<Parcel> parcel) {
  const Ending ending(this);
  std::optional<Call> call = calls_.take(header.call, from);
  if (!call) return;  // it timed out or was cancelled
  PeerMetrics& peer = metrics_.peers[static_cast<size_t>(from)];
  const auto now = Deadline::Clock::now();
  record_.add({false, from, header.call, call->kind, call->function, call->begun, now, header.status,
               call->request_bytes, parcel->content_bytes()});
  if (header.kind == Kind::kReply) {
    peer.round_trips.add((now - call->begun).count());
    return call->done(std::move(parcel), nullptr);
  }
  peer.errors.fetch_add(1, std::memory_order_relaxed);
  const bool known = header.status >= BP_INVALID && header.status <= BP_INTERNAL && header.status != BP_AGAIN;
  const Error error = labelled(*call, Error(known ? header.status : BP_INTERNAL, header.function));
  call->done(nullptr, &error);
}

void Worker::on_cancel(int32_t from, const Header& header) {
  give_up(from, forks_.take_answer(from, header.call & kNumbers));
  if (header.value.maker >= 0) {       // one that fetches
    cancels_.keep(from, header.call);  // first: the other may come at the same time
    if (values_.stop_waiting(header.value, from, header.call)) cancels_.take(from, header.call);
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto found = inbound_.find({from, header.call});
  if (found != inbound_.end()) {
    found->second->cancelled = true;
  } else {
    cancels_.keep(from, header.call);
  }
}

}  // namespace backplane::core::rpc
