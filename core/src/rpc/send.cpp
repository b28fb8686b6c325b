// SPDX-License-Identifier: Apache-2.0
//
// What goes out: requests, each of which ends once, and the references in them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "log.hpp"
#include "rpc/caught.hpp"
#include "rpc/worker.hpp"

namespace backplane::core::rpc {
namespace {

// What a message is made of while it is being sent.
struct Package {
  std::string bytes;
  std::shared_ptr<void> owner;
};

// The message to a worker's own self: a copy, because its receiver may write to the buffers.
struct Copy {
  std::string bytes;
  std::vector<std::vector<std::byte>> buffers;
};

}  // namespace

Worker::Sending::Sending(Worker* worker) : worker_(*worker) {
  const std::lock_guard lock(worker_.mutex_);
  if (worker_.closed_ || !worker_.transport_) fail(BP_CANCELLED, "this worker has left, or not yet joined");
  ++worker_.sending_;
}

Worker::Sending::~Sending() {
  const std::lock_guard lock(worker_.mutex_);
  --worker_.sending_;
  worker_.quiet_.notify_all();
}

// One message's references on their way to the owners' books.
struct Worker::Passing {
  std::mutex mutex;
  Header header;
  Content content;
  std::function<void(Header, Content, const Error*)> next;
  size_t left = 0;
  std::optional<Error> error;
};

Deadline Worker::deadline_of(int64_t* timeout_ns) const {
  *timeout_ns = timeout_or(*timeout_ns, rpc_timeout_ns_);
  return Deadline::after(*timeout_ns);
}

void Worker::require_peer(int32_t to) const {
  if (to >= 0 && static_cast<size_t>(to) < names_.size()) return;
  fail(BP_INVALID, "there is no worker of rank {}; there are {}", to, names_.size());
}

uint64_t Worker::call(int32_t to, const std::string& function, Content arguments, int64_t timeout_ns, Done done) {
  require_may_wait();
  require_peer(to);
  Header header;
  header.function = function;
  return request(to, std::move(header), std::move(arguments), timeout_ns, std::move(done));
}

std::shared_ptr<Ref> Worker::remote(int32_t to, const std::string& function, Content arguments, int64_t timeout_ns) {
  require_may_wait();
  require_peer(to);
  Header header;
  header.kind = Kind::kRemote;
  header.function = function;
  header.value = next_id();
  header.fork = next_id();
  auto ref = std::make_shared<Ref>(shared_from_this(), Passed{to, header.value, header.fork}, false);
  request(to, std::move(header), std::move(arguments), timeout_ns,
          [ref](const std::shared_ptr<Parcel>&, const Error* error) { ref->confirm(error); });
  return ref;
}

uint64_t Worker::begin(int32_t to, const Header& header, uint64_t request_bytes, int64_t* timeout_ns, Done done) {
  const Deadline deadline = deadline_of(timeout_ns);
  Call call = {to, header.kind, header.function, *timeout_ns, {}, std::move(done), header.value};
  call.request_bytes = request_bytes;
  const uint64_t number = calls_.add(std::move(call), deadline);
  metrics_.peers[static_cast<size_t>(to)].calls_sent.fetch_add(1, std::memory_order_relaxed);
  return number;
}

uint64_t Worker::request(int32_t to, Header header, Content content, int64_t timeout_ns, Done done) {
  const uint64_t number = begin(to, header, content.bytes(), &timeout_ns, std::move(done));
  header.call = number;
  if (const auto loss = loss_of(to)) {
    end(number, *loss);
    return number;
  }
  if (content.refs.empty()) {
    transmit_or_fail(to, header, std::move(content), timeout_ns);
    return number;
  }
  pass_on(to, std::move(header), std::move(content),
          [self = shared_from_this(), to, number, timeout_ns](const Header& passed, Content sent, const Error* error) {
            if (error != nullptr) return self->end(number, *error);
            if (!self->calls_.set_forks(number, passed.refs)) return self->drop_forks(passed);  // it was cancelled
            self->transmit_or_fail(to, passed, std::move(sent), timeout_ns);
          });
  return number;
}

void Worker::transmit_or_fail(int32_t to, const Header& header, Content content, int64_t timeout_ns) {
  const uint64_t number = header.call;
  try {
    transmit(to, header, std::move(content), number, timeout_ns);
  } catch (...) {
    const Error error = caught();
    if (calls_.set_forks(number, {})) drop_forks(header);
    failed(to, number, error);
  }
}

void Worker::drop_forks(const Header& header) {
  for (const Passed& fork : header.refs) drop(fork.owner, fork.value, fork.fork);
}

void Worker::transmit(int32_t to, const Header& header, Content content, uint64_t id, int64_t timeout_ns) {
  auto package = std::make_unique<Package>();
  package->bytes = encode(header, content.payload.size());
  package->bytes += content.payload;
  package->owner = std::move(content.owner);
  // With buffers goes what holds the references, too, and their end begins other requests.
  if (!header.refs.empty() && !content.buffers.empty()) {
    package->owner = std::make_shared<std::pair<Ending, std::shared_ptr<void>>>(this, std::move(package->owner));
  }
  const uint64_t size = package->bytes.size() + sum_of(content.buffers);
  const Sending sending(this);
  const auto limit = [this, size](int32_t rank) {
    const uint64_t most = most_bytes_[static_cast<size_t>(rank)];
    if (size <= most) return;
    fail(BP_INVALID, "the message has {} bytes, and max_message_bytes of worker '{}' (rank {}) allows {}", size,
         names_[static_cast<size_t>(rank)], rank, most);
  };
  limit(rank_);
  limit(to);
  metrics_.peers[static_cast<size_t>(to)].bytes_sent.fetch_add(size, std::memory_order_relaxed);
  bp_rpc_message message = {};
  message.struct_size = sizeof(bp_rpc_message);
  message.buffer_count = static_cast<uint32_t>(content.buffers.size());
  message.id = id;
  message.payload = package->bytes.data();
  message.payload_size = package->bytes.size();
  message.buffers = content.buffers.data();
  message.release = [](void* owner) { delete static_cast<Package*>(owner); };
  message.owner = package.release();
  if (to == rank_) return loop_back(message);
  sending->send(to, message, timeout_ns);
}

void Worker::loop_back(const bp_rpc_message& message) {
  auto copy = std::make_unique<Copy>();
  copy->bytes.assign(static_cast<const char*>(message.payload), message.payload_size);
  std::vector<bp_buffer> buffers(message.buffers, message.buffers + message.buffer_count);
  for (bp_buffer& buffer : buffers) {
    if (buffer.memory != BP_HOST) {
      message.release(message.owner);
      fail(BP_UNSUPPORTED,
           "a worker's calls of its own functions carry host memory only; copy arrays of devices there");
    }
    const auto* const data = static_cast<const std::byte*>(buffer.data);
    buffer.data = copy->buffers.emplace_back(data, data + buffer.count).data();
  }
  message.release(message.owner);
  bp_rpc_message same = message;
  same.payload = copy->bytes.data();
  same.buffers = buffers.data();
  same.release = [](void* owner) { delete static_cast<Copy*>(owner); };
  same.owner = copy.release();
  received(rank_, same);
}

void Worker::pass_on(int32_t to, Header header, Content content,
                     std::function<void(Header header, Content content, const Error* error)> next) {
  auto passing = std::make_shared<Passing>();
  for (const auto& ref : content.refs) header.refs.push_back({ref->owner(), ref->value(), next_id()});
  passing->header = std::move(header);
  passing->content = std::move(content);
  passing->next = std::move(next);
  passing->left = passing->header.refs.size();
  const auto told = [self = shared_from_this(), passing](const Error* error) {
    {
      const std::lock_guard lock(passing->mutex);
      if (error != nullptr && !passing->error) passing->error.emplace(*error);
      if (--passing->left > 0) return;
    }
    if (passing->error) self->drop_forks(passing->header);
    passing->next(std::move(passing->header), std::move(passing->content), passing->error ? &*passing->error : nullptr);
  };
  // By number: the last word may come while this goes through them.
  const std::vector<std::shared_ptr<Ref>> refs = passing->content.refs;
  const std::vector<Passed> forks = passing->header.refs;
  for (size_t i = 0; i < refs.size(); ++i) {
    refs[i]->when_confirmed([self = shared_from_this(), fork = forks[i], ref = refs[i], to, told](const Error* error) {
      if (error != nullptr) return told(error);
      Header word;
      word.kind = Kind::kFork;
      word.value = fork.value;
      word.fork = fork.fork;
      word.holder = to;
      try {
        self->request(fork.owner, std::move(word), {}, BP_INHERIT_TIMEOUT,
                      [ref, told](const std::shared_ptr<Parcel>&, const Error* failure) { told(failure); });
      } catch (...) {
        const Error refused = caught();
        told(&refused);
      }
    });
  }
}

void Worker::cancel(uint64_t number) { end(number, Error(BP_CANCELLED, "it was cancelled by its caller")); }

void Worker::expire(uint64_t number) { end(number, Error(BP_TIMEOUT, "")); }

// Ends a request that has not been answered; whoever was asked hears of it.
void Worker::end(uint64_t number, const Error& why, int32_t to) {
  const Ending ending(this);
  const std::optional<Call> call = calls_.take(number, to);
  if (!call) return;
  const Error& error = why.status() == BP_TIMEOUT && call->failure ? *call->failure : why;
  PeerMetrics& peer = metrics_.peers[static_cast<size_t>(call->to)];
  peer.errors.fetch_add(1, std::memory_order_relaxed);
  if (error.status() == BP_TIMEOUT) peer.timeouts.fetch_add(1, std::memory_order_relaxed);
  record_.add({false, call->to, number, call->kind, call->function, call->begun, Deadline::Clock::now(), error.status(),
               call->request_bytes});
  if (!call->forks.empty()) give_up(call->to, call->forks);
  // An answer that was lost with a connection leaves a callee that lives, and that nobody waits for either.
  const bool waits_no_more = error.status() == BP_TIMEOUT || error.status() == BP_CANCELLED ||
                             (error.status() == BP_PEER_LOST && !loss_of(call->to));
  const bool fetches = call->kind == Kind::kFetch;
  if (waits_no_more && (call->kind == Kind::kCall || call->kind == Kind::kRemote || fetches)) {
    Cancels::Told word;
    word.call = number;
    word.timeout_ns = call->timeout_ns < 0 ? BP_NO_TIMEOUT : std::max(call->timeout_ns, word_timeout_ns());
    if (fetches) word.value = call->value;
    // If a connection broke, it goes over another one, which may break as well.
    if (error.status() == BP_PEER_LOST) word.left = Cancels::kMostTimes;
    cancels_.note(call->to, word);
    tell_cancel(call->to, word);
  }
  const Error told = labelled(*call, error);
  call->done(nullptr, &told);
}

void Worker::tell_cancel(int32_t to, const Cancels::Told& told) {
  Header word;
  word.kind = Kind::kCancel;
  word.call = told.call;
  word.value = told.value;
  try {
    transmit(to, word, {}, kUnnumbered, told.timeout_ns);
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: {} cannot be told of a call's end: {}", names_[static_cast<size_t>(to)], e.what());
  }
}

Error Worker::labelled(const Call& call, const Error& error) const {
  const char* what = "";
  if (call.kind == Kind::kFetch) what = "fetching a value";
  if (call.kind == Kind::kFork || call.kind == Kind::kDrop || call.kind == Kind::kLost) what = "passing on a reference";
  const std::string whom = fmt::format("worker '{}' (rank {})", names_[static_cast<size_t>(call.to)], call.to);
  const std::string subject =
      call.function.empty() ? fmt::format("{} of {}", what, whom) : fmt::format("'{}' on {}", call.function, whom);
  if (error.status() == BP_TIMEOUT && *error.what() == '\0') {
    return Error(BP_TIMEOUT, fmt::format("{} did not answer within {} s", subject, seconds(call.timeout_ns)), call.to);
  }
  return Error(error.status(), fmt::format("{} failed: {}", subject, error.what()), call.to, error.native_code());
}

}  // namespace backplane::core::rpc
