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
#include "collectives_calls.hpp"

namespace backplane::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// NCCL launches on its own thread, usually within some ten microseconds. If it takes longer, it is connecting peers.
constexpr auto kLaunchTime = std::chrono::microseconds(100);

// CUDA blocks a thread that adds to a stream with some thousand entries, whatever its deadline. A launch adds a few.
constexpr size_t kMaxPending = 128;

// Yields at first, then sleeps with growing length.
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

// One operation.
struct Collectives::Launch {
  // kIssued: NCCL is launching it. kFinishing: one thread copies the result of staged buffers.
  enum class State { kQueued, kIssued, kInStream, kFinishing, kDone, kFailed };

  Launch(Collectives& collectives, const bp_op& operation) : owner(collectives), op(operation, collectives.c_.size) {}

  // Like Work::wait.
  bool wait(int64_t timeout_ns) {
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    const GroupFailure& group = owner.c_.failure;
    Backoff backoff;
    while (!is_done()) {
      if (group.is_set()) {
        if (!group.await_device_stopped(deadline.left_ns())) return false;
        if (fail()) {
          if (!failure) failure.emplace(group.cause());  // stays, even if an abort gives another cause later
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
    if (ends_on_host)
      throw sdk::Failure(BP_UNSUPPORTED, "nccl: a collective on staged host buffers does not end in a stream");
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    Backoff backoff;
    while (state.load() < State::kInStream) {
      if (deadline.passed()) return false;
      owner.advance();
      owner.c_.failure.throw_if_set();
      backoff.pause();
    }
    if (state.load() == State::kFailed) throw owner.c_.failure.cause();
    const OnDevice here(owner.c_.api, owner.c_.device);
    check(owner.c_.api, owner.c_.api.cuda.stream_wait_event(after, event.get(), 0),
          "making a stream wait for a collective");
    return true;
  }

  // Ends the group, because a single rank cannot leave a collective.
  void cancel() noexcept {
    if (is_over() || (state.load() == State::kInStream && is_done())) return;
    owner.c_.failure.set(owner.cancelled_);
  }

  bool is_done() {
    if (state.load() < State::kInStream) owner.advance();
    if (state.load() != State::kInStream) return state.load() == State::kDone;
    if (owner.c_.failure.is_set() || !has_passed()) return false;
    owner.check_health();  // the event of an operation that NCCL has aborted passes nevertheless
    if (owner.c_.failure.is_set()) return false;
    finish();
    return state.load() == State::kDone;
  }

  bool is_over() const { return state.load() == State::kDone || state.load() == State::kFailed; }

  // Call once it is in its stream. An error of the device ends the group.
  bool has_passed() {
    try {
      return event.passed();
    } catch (const sdk::Failure& why) {
      owner.c_.failure.set(why);
    } catch (const std::bad_alloc&) {
      owner.c_.failure.set(owner.no_memory_);
    }
    return false;
  }

  // Call once its event has passed. Only one of several threads has an effect.
  void finish() {
    State expected = State::kInStream;
    if (!state.compare_exchange_strong(expected, State::kFinishing)) return;
    if (staging) staging->finish();
    state.store(State::kDone);
  }

  // Marks it as failed, unless it is done or finishing, so that all threads report the same end.
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
  bool* connected = nullptr;  // the owner's entry for its shape; guarded by the owner's lock
  bool is_prompt = false;     // neither it nor an earlier one has to connect peers
  std::optional<Staging> staging;
  PooledMemory input_copy;  // for an all_to_all in place
  cudaStream_t stream = nullptr;
  bool ends_on_host = false;                       // its result is a host buffer
  ncclRedOp_t premul_sum = ncclNumOps;             // ncclNumOps: none was created
  Event before;                                    // the end of earlier work in the caller's stream
  Event event;                                     // its own end
  std::optional<sdk::Failure> failure;             // the one reported by wait
  std::optional<Clock::time_point> waiting_since;  // of the poller's thread: when it saw `before` passed
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

Collectives::Collectives(const GroupContext& context, Communicator& comm)
    : c_(context), comm_(comm), stream_(c_.api, c_.device), barrier_buffer_(c_.pool, 4) {
  const OnDevice here(c_.api, c_.device);
  check(c_.api, c_.api.cuda.memset_async(barrier_buffer_.data(), 0, 4, stream_.get()),
        "clearing the buffer of barriers");
}

Collectives::~Collectives() = default;

std::unique_ptr<sdk::Work> Collectives::submit(const bp_op& op) {
  c_.failure.throw_if_set();
  if (is_empty(op)) return nullptr;
  const sdk::Deadline deadline = sdk::Deadline::after(op.timeout_ns);
  await_room(deadline);
  auto launch = std::make_shared<Launch>(*this, op);
  launch->ends_on_host = is_staged(op) && op.kind != BP_BARRIER;
  // A barrier runs in the caller's stream, if there is one, to be ordered among device operations.
  const bool in_own_stream = is_staged(op) && (op.kind != BP_BARRIER || op.stream == nullptr);
  launch->stream = in_own_stream || op.stream == BP_NO_STREAM ? stream_.get() : static_cast<cudaStream_t>(op.stream);
  // After BP_RESOURCE the caller frees its buffers. From `append` on, out-of-memory ends the group instead.
  auto work = (op.flags & BP_OP_SYNC) == 0 ? std::make_unique<LaunchWork>(launch) : nullptr;
  append(launch);
  await_stream(*launch, deadline);
  if (work || launch->wait(deadline.left_ns())) return work;
  c_.failure.set(timed_out_);
  launch->wait(BP_NO_TIMEOUT);
  return nullptr;
}

void Collectives::await_room(const sdk::Deadline& deadline) {
  for (Backoff backoff; !has_room(); backoff.pause()) {
    advance();
    if (backoff.is_long()) check_health();
    if (deadline.passed()) {
      c_.failure.set(sdk::Failure(BP_TIMEOUT, "nccl: a collective timed out behind " + std::to_string(kMaxPending) +
                                                  " others; not all ranks took part in them in time"));
    }
    c_.failure.throw_if_set();
  }
}

// The communicator executes operations in order, so the oldest one that matters is enough.
bool Collectives::has_room() {
  std::shared_ptr<Launch> launch;
  {
    const std::lock_guard lock(mutex_);
    if (unfinished_.size() < kMaxPending) return true;
    launch = unfinished_[unfinished_.size() - kMaxPending].lock();
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
  while (!unfinished_.empty() && is_over(unfinished_.front())) unfinished_.pop_front();
  unfinished_.push_back(launch);
  queue_.push_back(launch);
}

// Later work of the program in that stream must come after the collective, so submit waits until it is in the stream.
// It cannot wait while peers are being connected, which may take until all ranks have submitted the collective.
void Collectives::await_stream(const Launch& launch, const sdk::Deadline& deadline) {
  const auto until = Clock::now() + kLaunchTime;
  Backoff backoff;
  for (int turn = 0; advance() && launch.state.load() < Launch::State::kInStream; ++turn) {
    if (Clock::now() < until) {
      if (turn > 64) std::this_thread::yield();
    } else {
      if (!launch.is_prompt || c_.failure.is_set() || deadline.passed()) return;
      backoff.pause();
    }
  }
}

// Only one thread launches. It calls CUDA without the lock: a full stream blocks the call, and the abort that empties
// it may need the lock.
bool Collectives::advance() {
  std::unique_lock lock(mutex_);
  if (is_advancing_) return !queue_.empty();
  is_advancing_ = true;
  bool launched = true;
  while (launched && !queue_.empty() && !c_.failure.is_set()) {
    Launch& launch = *queue_.front();
    lock.unlock();
    launched = try_launch(launch);
    lock.lock();
    if (!launched) break;
    *launch.connected = true;
    queue_.pop_front();
  }
  is_advancing_ = false;
  return !launched;
}

// False: NCCL is still launching, or has failed, which ends the group.
bool Collectives::try_launch(Launch& launch) {
  try {
    if (launch.state.load() == Launch::State::kQueued) issue(launch);
    if (!comm_.ready()) return false;
    record_end(launch);
    return true;
  } catch (const sdk::Failure& why) {
    c_.failure.set(why);
  } catch (const std::bad_alloc&) {
    c_.failure.set(no_memory_);
  }
  return false;
}

void Collectives::issue(Launch& launch) {
  const OnDevice here(c_.api, c_.device);
  if (launch.stream != stream_.get()) launch.before = Event(c_.pool, launch.stream);
  launch.staging.emplace(c_.api, c_.pool, &launch.op.get(), launch.stream);
  const bp_op& op = launch.op.get();
  const bool in_place = op.kind == BP_ALL_TO_ALL && op.input.data == op.output.data;
  if (in_place) launch.input_copy = PooledMemory(c_.pool, op.input.count * bp_dtype_size(op.dtype));
  const CollectiveContext context{c_.api, c_.rank, c_.size, launch.stream};
  // From here on, a part of the operation may be in the stream even if the rest fails.
  Launch::State expected = Launch::State::kQueued;
  launch.state.compare_exchange_strong(expected, Launch::State::kIssued);
  enqueue_own_copies(context, op, launch.input_copy.data());
  comm_.issue([this, &launch, &op, &context](ncclComm_t comm) {
    enqueue_collective(context, comm, op, launch.input_copy.data(), barrier_buffer_.data(), &launch.premul_sum);
  });
}

// The operation is in its stream: later work there sees its result.
void Collectives::record_end(Launch& launch) {
  const OnDevice here(c_.api, c_.device);
  if (launch.premul_sum != ncclNumOps) {
    comm_.run_if_idle([this, &launch](ncclComm_t comm) { c_.api.nccl.red_op_destroy(launch.premul_sum, comm); });
  }
  launch.staging->copy_out(launch.stream);
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
  while (!unfinished_.empty() && is_over(unfinished_.front())) unfinished_.pop_front();
  for (const auto& entry : unfinished_) {
    std::shared_ptr<Launch> launch = entry.lock();
    if (!launch || launch->is_over()) continue;
    if (launch->state.load() < Launch::State::kInStream || !launch->has_passed()) return launch;
  }
  return nullptr;
}

std::optional<Clock::time_point> Collectives::waiting_since() {
  const std::shared_ptr<Launch> launch = first_unfinished();
  if (!launch) return {};
  if (!launch->waiting_since) {
    if (launch->state.load() >= Launch::State::kInStream && launch->before && !launch->before.passed()) return {};
    launch->waiting_since = Clock::now();
  }
  return launch->waiting_since;
}

void Collectives::collect_finished() {
  const std::lock_guard lock(mutex_);
  try {
    comm_.ready();
    for (const auto& entry : unfinished_) {
      const std::shared_ptr<Launch> launch = entry.lock();
      if (launch && launch->state.load() == Launch::State::kInStream && launch->event.passed()) launch->finish();
    }
  } catch (const std::exception&) {
    // The events of operations that NCCL has aborted pass nevertheless, so it is unknown which are complete.
  }
}

bool Collectives::is_idle() {
  std::unique_lock lock(mutex_);
  if (is_advancing_) return false;
  try {
    const OnDevice here(c_.api, c_.device);
    for (const auto& entry : unfinished_) {
      const std::shared_ptr<Launch> launch = entry.lock();
      if (!launch || launch->is_over() || launch->state.load() < Launch::State::kInStream) continue;
      if (!launch->event.passed()) return false;
    }
    if (queue_.empty() || queue_.front()->state.load() != Launch::State::kIssued) return true;
    // A part of it may be in the stream. No thread launches any more, but adding an event may still block.
    const std::shared_ptr<Launch> issued = queue_.front();
    lock.unlock();
    if (!issued->event) issued->event = Event(c_.pool, issued->stream);
    return issued->event.passed();
  } catch (const sdk::Failure&) {
    return true;  // the device has failed and executes nothing
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Collectives::check_health() {
  try {
    comm_.ready();
  } catch (const sdk::Failure& why) {
    c_.failure.set(why);
  } catch (const std::bad_alloc&) {
    c_.failure.set(no_memory_);
  }
}

}  // namespace backplane::nccl
