// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "backplane/sdk/owned_op.hpp"
#include "collective.hpp"
#include "staging.hpp"

namespace backplane::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// NCCL launches on a thread of its own, which usually takes some ten microseconds. Longer, it connects peers.
constexpr auto kLaunchTime = std::chrono::microseconds(100);

// CUDA blocks a thread that adds to a stream with some thousand entries, whatever its deadline. A launch adds a few.
constexpr size_t kMostLaunches = 128;

// First short turns for others, then sleeps that grow.
class Backoff {
 public:
  void pause() {
    if (++turns_ < 64) return std::this_thread::yield();
    std::this_thread::sleep_for(length_);
    length_ = std::min(length_ * 2, std::chrono::microseconds(500));
  }
  bool is_long() const { return turns_ >= 64; }

 private:
  int turns_ = 0;
  std::chrono::microseconds length_{20};
};

}  // namespace

// One operation, from submit to its end.
struct Collectives::Launch {
  enum class State { kQueued, kIssued, kInStream, kFinishing, kDone, kFailed };

  Launch(Collectives& its_owner, const bp_op& given) : owner(its_owner), op(given, its_owner.c_.size) {}

  // Like Work::wait.
  bool wait(int64_t timeout_ns) {
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    const Fate& fate = owner.c_.fate;
    Backoff backoff;
    while (!is_done()) {
      if (fate.decided()) {
        if (!fate.await_settled(deadline.left_ns())) return false;
        if (fail()) {
          if (!failure) failure.emplace(fate.why());  // from now on, whatever an abort says later
          throw sdk::Failure(*failure);
        }
      }
      if (deadline.passed()) return false;
      backoff.pause();
      if (backoff.is_long()) owner.check_health();
    }
    return true;
  }

  // Like sdk::Work::wait_on_stream.
  bool wait_on_stream(cudaStream_t after, int64_t timeout_ns) {
    if (ends_on_host) throw sdk::Failure(BP_UNSUPPORTED, "nccl: staged buffers do not end in a stream");
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    Backoff backoff;
    while (state.load() < State::kInStream) {
      if (deadline.passed()) return false;
      owner.advance();
      owner.c_.fate.throw_if_decided();
      backoff.pause();
    }
    if (state.load() == State::kFailed) throw owner.c_.fate.why();
    const OnDevice here(owner.c_.api, owner.c_.device);
    check(owner.c_.api, owner.c_.api.cuda.stream_wait_event(after, event.get(), 0),
          "having a stream wait for a collective");
    return true;
  }

  // One rank cannot leave a collective alone: the group ends.
  void cancel() noexcept {
    if (is_over() || (state.load() == State::kInStream && is_done())) return;
    owner.c_.fate.decide(owner.cancelled_);
  }

  bool is_done() {
    if (state.load() < State::kInStream) owner.advance();
    if (state.load() != State::kInStream) return state.load() == State::kDone;
    if (owner.c_.fate.decided() || !has_passed()) return false;
    owner.check_health();  // an operation that NCCL gave up has passed its event, too
    if (owner.c_.fate.decided()) return false;
    finish();
    return state.load() == State::kDone;
  }

  // Is it known how it ended?
  bool is_over() const { return state.load() == State::kDone || state.load() == State::kFailed; }

  // Once it is in its stream. What the device reports instead ends the group.
  bool has_passed() {
    try {
      return event.passed();
    } catch (const sdk::Failure& why) {
      owner.c_.fate.decide(why);
    } catch (const std::bad_alloc&) {
      owner.c_.fate.decide(owner.no_memory_);
    }
    return false;
  }

  // For one that has passed its event. One thread does it, the others see that.
  void finish() {
    State expected = State::kInStream;
    if (!state.compare_exchange_strong(expected, State::kFinishing)) return;
    if (staging) staging->finish();
    state.store(State::kDone);
  }

  // From now on its answer is that it failed, unless it is done or about to be: there is only one answer.
  bool fail() {
    State now = state.load();
    while (now < State::kFinishing) {
      if (state.compare_exchange_weak(now, State::kFailed)) return true;
    }
    return now == State::kFailed;
  }

  Collectives& owner;
  std::atomic<State> state = State::kQueued;
  sdk::OwnedOp op;
  bool* connected = nullptr;  // the owner's entry for such operations; with its lock
  bool is_prompt = false;     // neither it nor those before it have to connect peers
  std::optional<Staging> staging;
  Piece copy;  // of an input in place
  cudaStream_t stream = nullptr;
  bool ends_on_host = false;  // staged
  ncclRedOp_t made = ncclNumOps;
  Event before;  // what the caller's stream held
  Event event;
  std::optional<sdk::Failure> failure;           // what was answered
  std::optional<Clock::time_point> alone_since;  // the poller's: when it had seen `before` pass
};

namespace {

class LaunchWork final : public sdk::Work {
 public:
  explicit LaunchWork(std::shared_ptr<Collectives::Launch> launch) : launch_(std::move(launch)) {}
  bool wait(int64_t timeout_ns) override { return launch_->wait(timeout_ns); }
  bool wait_on_stream(void* stream, int64_t timeout_ns) override {
    return launch_->wait_on_stream(static_cast<cudaStream_t>(stream), timeout_ns);
  }
  void cancel() noexcept override { launch_->cancel(); }

 private:
  const std::shared_ptr<Collectives::Launch> launch_;
};

bool is_over(const std::weak_ptr<Collectives::Launch>& entry) {
  const std::shared_ptr<Collectives::Launch> launch = entry.lock();
  return !launch || launch->is_over();
}

bool is_staged(const bp_op& op) {
  const bool has_device_input = op.input.count > 0 && op.input.memory == BP_CUDA;
  const bool has_device_output = op.output.count > 0 && op.output.memory == BP_CUDA;
  return !has_device_input && !has_device_output;
}

}  // namespace

Collectives::Collectives(const Config& config) : c_(config), stream_(config.api, config.device), token_(c_.pool, 4) {
  const OnDevice here(c_.api, c_.device);
  check(c_.api, c_.api.cuda.memset_async(token_.data(), 0, 4, stream_.get()), "clearing the memory of barriers");
}

Collectives::~Collectives() = default;

std::unique_ptr<sdk::Work> Collectives::submit(const bp_op& op) {
  c_.fate.throw_if_decided();
  if (is_empty(op)) return nullptr;
  const sdk::Deadline deadline = sdk::Deadline::after(op.timeout_ns);
  await_room(deadline);
  auto launch = std::make_shared<Launch>(*this, op);
  launch->ends_on_host = is_staged(op) && op.kind != BP_BARRIER;
  // A barrier among device operations belongs into their stream.
  const bool is_staged_here = is_staged(op) && (op.kind != BP_BARRIER || op.stream == nullptr);
  launch->stream = is_staged_here || op.stream == BP_NO_STREAM ? stream_.get() : static_cast<cudaStream_t>(op.stream);
  // After BP_RESOURCE the caller frees the buffers. From `append` on, a lack of memory ends the group instead.
  auto work = (op.flags & BP_OP_SYNC) == 0 ? std::make_unique<LaunchWork>(launch) : nullptr;
  append(launch);
  await_stream(*launch, deadline);
  if (work || launch->wait(deadline.left_ns())) return work;
  c_.fate.decide(late_);
  launch->wait(BP_NO_TIMEOUT);
  return nullptr;
}

void Collectives::await_room(const sdk::Deadline& deadline) {
  for (Backoff backoff; !has_room(); backoff.pause()) {
    advance();
    if (backoff.is_long()) check_health();
    if (deadline.passed()) {
      c_.fate.decide(sdk::Failure(BP_TIMEOUT, "nccl: the other ranks did not take part in the " +
                                                  std::to_string(kMostLaunches) +
                                                  " collectives before this one in time"));
    }
    c_.fate.throw_if_decided();
  }
}

// The communicator does them in order.
bool Collectives::has_room() {
  std::shared_ptr<Launch> launch;
  {
    const std::lock_guard lock(mutex_);
    if (submitted_.size() < kMostLaunches) return true;
    launch = submitted_[submitted_.size() - kMostLaunches].lock();
  }
  if (!launch || launch->is_over()) return true;
  return launch->state.load() >= Launch::State::kInStream && launch->has_passed();
}

void Collectives::append(const std::shared_ptr<Launch>& launch) {
  const bp_op& op = launch->op.get();
  const uint64_t bytes = std::max(op.input.count, op.output.count) * bp_dtype_size(op.dtype);
  const std::lock_guard lock(mutex_);
  launch->connected = &connected_[{op.kind, op.dtype, op.reduce_op, op.root, std::bit_width(bytes)}];
  launch->is_prompt = *launch->connected && (queue_.empty() || queue_.back()->is_prompt);
  while (!submitted_.empty() && is_over(submitted_.front())) submitted_.pop_front();
  submitted_.push_back(launch);
  queue_.push_back(launch);
}

// What the program puts into that stream next has to come after it. Only while peers are being connected, which may
// take until all ranks have submitted it, can that not be waited for.
void Collectives::await_stream(const Launch& launch, const sdk::Deadline& deadline) {
  const auto until = Clock::now() + kLaunchTime;
  Backoff backoff;
  for (int turn = 0; advance() && launch.state.load() < Launch::State::kInStream; ++turn) {
    if (Clock::now() < until) {
      if (turn > 64) std::this_thread::yield();
    } else {
      if (!launch.is_prompt || c_.fate.decided() || deadline.passed()) return;
      backoff.pause();
    }
  }
}

// One thread at a time, and CUDA is called without the lock: it blocks while a stream's queue is full, and what empties
// that may be the abort that comes through here.
bool Collectives::advance() {
  std::unique_lock lock(mutex_);
  if (is_advancing_) return !queue_.empty();
  is_advancing_ = true;
  bool goes_on = true;
  while (goes_on && !queue_.empty() && !c_.fate.decided()) {
    Launch& launch = *queue_.front();
    lock.unlock();
    goes_on = try_launch(launch);
    lock.lock();
    if (!goes_on) break;
    *launch.connected = true;
    queue_.pop_front();
  }
  is_advancing_ = false;
  return !goes_on;
}

// False: NCCL is still at it, or it failed, and so does the group.
bool Collectives::try_launch(Launch& launch) {
  try {
    if (launch.state.load() == Launch::State::kQueued) begin(launch);
    if (!c_.comm.ready()) return false;
    enter(launch);
    return true;
  } catch (const sdk::Failure& why) {
    c_.fate.decide(why);
  } catch (const std::bad_alloc&) {
    c_.fate.decide(no_memory_);
  }
  return false;
}

void Collectives::begin(Launch& launch) {
  const OnDevice here(c_.api, c_.device);
  if (launch.stream != stream_.get()) launch.before = Event(c_.pool, launch.stream);
  launch.staging.emplace(c_.api, c_.pool, &launch.op.get(), launch.stream);
  const bp_op& op = launch.op.get();
  const bool in_place = op.kind == BP_ALL_TO_ALL && op.input.data == op.output.data;
  if (in_place) launch.copy = Piece(c_.pool, op.input.count * bp_dtype_size(op.dtype));
  const Place place{c_.api, c_.rank, c_.size, launch.stream};
  // From now on some of it may be in the stream, also if the rest fails.
  Launch::State expected = Launch::State::kQueued;
  launch.state.compare_exchange_strong(expected, Launch::State::kIssued);
  copy_blocks(place, op, launch.copy.data());
  c_.comm.issue([this, &launch, &op, &place](ncclComm_t comm) {
    start_collective(place, comm, op, launch.copy.data(), token_.data(), &launch.made);
  });
}

// It is in the stream: what follows it there sees its result.
void Collectives::enter(Launch& launch) {
  const OnDevice here(c_.api, c_.device);
  if (launch.made != ncclNumOps) {
    c_.comm.use([this, &launch](ncclComm_t comm) { c_.api.nccl.red_op_destroy(launch.made, comm); });
  }
  launch.staging->bring_back(launch.stream);
  launch.event = Event(c_.pool, launch.stream);
  Launch::State expected = Launch::State::kIssued;
  launch.state.compare_exchange_strong(expected, Launch::State::kInStream);
}

bool Collectives::launching() {
  const std::lock_guard lock(mutex_);
  return !queue_.empty();
}

std::shared_ptr<Collectives::Launch> Collectives::first_unfinished() {
  const std::lock_guard lock(mutex_);
  while (!submitted_.empty() && is_over(submitted_.front())) submitted_.pop_front();
  for (const auto& entry : submitted_) {
    std::shared_ptr<Launch> launch = entry.lock();
    if (!launch || launch->is_over()) continue;
    if (launch->state.load() < Launch::State::kInStream || !launch->has_passed()) return launch;
  }
  return nullptr;
}

std::optional<Clock::time_point> Collectives::waits_since() {
  const std::shared_ptr<Launch> launch = first_unfinished();
  if (!launch) return {};
  if (!launch->alone_since) {
    if (launch->state.load() >= Launch::State::kInStream && launch->before && !launch->before.passed()) return {};
    launch->alone_since = Clock::now();
  }
  return launch->alone_since;
}

void Collectives::look_once_more() {
  const std::lock_guard lock(mutex_);
  try {
    c_.comm.ready();
    for (const auto& entry : submitted_) {
      const std::shared_ptr<Launch> launch = entry.lock();
      if (launch && launch->state.load() == Launch::State::kInStream && launch->event.passed()) launch->finish();
    }
  } catch (const std::exception&) {
    // What NCCL gave up passes its event as well: then nothing can be said.
  }
}

bool Collectives::is_still() {
  std::unique_lock lock(mutex_);
  if (is_advancing_) return false;
  try {
    const OnDevice here(c_.api, c_.device);
    for (const auto& entry : submitted_) {
      const std::shared_ptr<Launch> launch = entry.lock();
      if (!launch || launch->is_over() || launch->state.load() < Launch::State::kInStream) continue;
      if (!launch->event.passed()) return false;
    }
    if (queue_.empty() || queue_.front()->state.load() != Launch::State::kIssued) return true;
    // Part of it may be in the stream. No thread launches any more, but adding to the stream may still block.
    const std::shared_ptr<Launch> issued = queue_.front();
    lock.unlock();
    if (!issued->event) issued->event = Event(c_.pool, issued->stream);
    return issued->event.passed();
  } catch (const sdk::Failure&) {
    return true;  // the device has failed: it does nothing any more
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Collectives::check_health() {
  try {
    c_.comm.ready();
  } catch (const sdk::Failure& why) {
    c_.fate.decide(why);
  } catch (const std::bad_alloc&) {
    c_.fate.decide(no_memory_);
  }
}

}  // namespace backplane::nccl
