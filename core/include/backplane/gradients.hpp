// SPDX-License-Identifier: Apache-2.0
//
// Gradients of data-parallel training: every rank computes them from its own samples, and all ranks need their sum or
// mean. The documentation's "Gradients" describes the protocol.
//
//     backplane::GradientReducer reducer(group, {.method = backplane::ReduceMethod::kMean});
//     for (Layer& layer : backwards(layers)) {
//       layer.compute_gradient();
//       reducer.add(layer.name, layer.gradient);  // reduced while the next layer is computed
//     }
//     reducer.finish();
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backplane/detail/agreement.hpp"
#include "backplane/detail/packing.hpp"
#include "backplane/distributed.hpp"

namespace backplane {

namespace detail {

// Waits until ready(), for at most `timeout`. Throws Status::kCancelled if the program interrupts this thread, which is
// asked every 100 ms.
template <typename Ready>
void wait_interruptibly(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Timeout timeout,
                        const Ready& ready) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook{100};
  const auto end =
      timeout < Timeout(0) ? Clock::time_point::max() : Clock::now() + std::min(timeout, Timeout::max() / 2);
  for (auto look = Clock::now() + kLook; !changed.wait_until(lock, std::min(end, look), ready); look += kLook) {
    if (look >= end) return;
    lock.unlock();
    const bool is_interrupted = bp_interrupted() != 0;
    lock.lock();
    if (is_interrupted && !ready()) fail(Status::kCancelled, "interrupted by the program; the reduction continues");
  }
}

// Gradients of one dtype that are reduced together. One thread fills it, another reduces it, any thread may wait for
// it.
class GradientPack {
 public:
  void add(const std::string& parameter, const Buffer& gradient) {
    parameters_.push_back("'" + parameter + "' (" + name_of(gradient.dtype()) + " x " +
                          std::to_string(gradient.count()) + ")");
    offsets_.push_back(offsets_.empty() ? 0 : offsets_.back());
    offsets_.push_back(offsets_.back() + gradient.count());
    gradients_.push_back(gradient);
  }
  uint64_t bytes() const { return offsets_.empty() ? 0 : offsets_.back() * size_of(gradients_.front().dtype()); }
  const std::vector<std::string>& parameters() const { return parameters_; }
  std::span<const Buffer> gradients() const { return gradients_; }
  std::span<const uint64_t> offsets() const { return offsets_; }

  void close() { set(State::kUnderWay); }
  void succeed() { set(State::kDone); }
  void fail_with(const Error& failure) {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kDone) return;
    failure_ = failure;
    state_ = State::kFailed;
    changed_.notify_all();
  }

  // Returns false if the pack is not done after `timeout`; 0 does not wait. Throws its failure. `parameter` is for the
  // error's text.
  bool wait_for(Timeout timeout, const std::string& parameter) {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return state_ == State::kDone || state_ == State::kFailed; };
    if (timeout != Timeout(0) && state_ == State::kFilling) {
      fail(Status::kInvalid, "the gradient of '" + parameter +
                                 "' is in a pack that is not full; call flush or finish before waiting for it");
    }
    wait_interruptibly(changed_, lock, timeout, ended);
    if (failure_) throw Error(*failure_);
    return state_ == State::kDone;
  }

 private:
  enum class State { kFilling, kUnderWay, kDone, kFailed };
  void set(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }

  std::vector<std::string> parameters_;  // descriptions for error texts
  std::vector<Buffer> gradients_;
  std::vector<uint64_t> offsets_;  // {begin0, end0, begin1, end1, ...}, in elements
  std::mutex mutex_;               // guards the members below
  std::condition_variable changed_;
  State state_ = State::kFilling;
  std::optional<Error> failure_;
};

}  // namespace detail

// A gradient that was added to a reducer. Copies share it. It may outlive the reducer.
class ReducedGradient {
 public:
  // Does not block. Throws the reduction's failure, the same each time.
  bool is_completed() const { return pack_->wait_for(Timeout(0), parameter_); }
  // Blocks until the gradient is reduced, at most until the timeout of the reducer's operations. Returns the buffer
  // that was added. Throws the reduction's failure. Status::kInvalid at once if the gradient's pack is still being
  // filled: call flush or finish first.
  Buffer wait() const {
    pack_->wait_for(kNoTimeout, parameter_);
    return gradient_;
  }
  // Blocks for at most `timeout`. Returns false if the gradient is not reduced by then.
  bool wait_for(Timeout timeout) const { return pack_->wait_for(timeout, parameter_); }
  const std::string& parameter() const { return parameter_; }
  // The buffer that was added. Holds the result once the gradient is completed.
  Buffer buffer() const { return gradient_; }

 private:
  friend class GradientReducer;
  ReducedGradient(std::shared_ptr<detail::GradientPack> pack, std::string parameter, const Buffer& gradient)
      : pack_(std::move(pack)), parameter_(std::move(parameter)), gradient_(gradient) {}
  std::shared_ptr<detail::GradientPack> pack_;
  std::string parameter_;
  Buffer gradient_;
};

struct ReducerOptions {
  ReduceMethod method = ReduceMethod::kSum;
  uint64_t pack_bytes = 10 * 1024 * 1024;  // a pack with more bytes than this is sent
  std::string backend = {};                // written as in GroupOptions; empty: the group's
  Timeout timeout = kDefaultTimeout;       // of construction and of each operation; default: the group's
  PackMemory memory = {};                  // that holds packs; the backend must serve its device
};

// Reduces gradients in packs while the caller computes the next ones. `add` returns at once. A thread of the reducer
// does the reduction, over a separate group with the same ranks, so that the caller may use its own group at any time.
// One pack is reduced at a time; the reducer holds the memory of one pack.
//
// From `add` until the gradient is completed, its buffer must stay alive and untouched. The result is written to the
// same buffer. A round is everything that is added up to a flush. All ranks must add the same parameters, with the same
// dtypes and counts, in the same order. Otherwise the reducer fails on all ranks with an error that names rank and
// parameter; no gradient of that pack is changed, and later calls throw the same error. All members may be called from
// any thread.
class GradientReducer {
 public:
  // All ranks of the group must construct one, in the same order as other groups. Blocks until they have.
  explicit GradientReducer(ProcessGroup group, ReducerOptions options = {})
      : options_(std::move(options)), group_(own_group(group, options_)), thread_([this] { work(); }) {}
  // Gradients that are not completed fail with Status::kCancelled. Does not wait for other ranks.
  ~GradientReducer() {
    if (group_.rank() < 0) {  // in a child made by fork
      forget_thread();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    try {
      group_.destroy();       // ends operations in flight
    } catch (const Error&) {  // it has ended already, or this is a callback, which must not wait for the end
      bp_group_abort(group_.get(), "the reducer was destroyed", nullptr);
    }
    thread_.join();
    give_up(cancelled());
  }
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Adds a gradient to the pack of its dtype, and sends the pack if it exceeds pack_bytes. Returns at once.
  // Status::kInvalid if the parameter was added already in this round. Throws the reducer's failure.
  ReducedGradient add(const std::string& parameter, const Buffer& gradient) {
    if (gradient.data() == nullptr && gradient.count() > 0) {
      detail::fail(Status::kInvalid, "the gradient of '" + parameter + "' has no memory");
    }
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
    if (!round_.insert(parameter).second) {
      detail::fail(Status::kInvalid, "the gradient of '" + parameter + "' was added twice since the last flush");
    }
    std::shared_ptr<detail::GradientPack>& slot = filling_[gradient.dtype()];
    if (!slot) slot = std::make_shared<detail::GradientPack>();
    slot->add(parameter, gradient);
    ReducedGradient reduced(slot, parameter, gradient);
    if (slot->bytes() > options_.pack_bytes) {
      send({std::move(slot)}, false);
      filling_.erase(gradient.dtype());
    }
    return reduced;
  }

  // Ends the round: sends the remaining packs, in the order of their dtypes. Returns at once. All ranks must call it
  // equally often, including ranks that added nothing. Throws the reducer's failure.
  void flush() {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
    Packs packs;
    for (auto& [dtype, pack] : filling_) packs.push_back(std::move(pack));
    filling_.clear();
    round_.clear();
    send(std::move(packs), true);
  }

  // Flushes, and blocks until all added gradients are reduced and the ranks have compared their rounds. Throws the
  // reducer's failure.
  void finish() {
    flush();
    std::unique_lock lock(mutex_);
    detail::wait_interruptibly(changed_, lock, kNoTimeout, [this] { return failure_ || (sent_.empty() && !busy_); });
    if (failure_) throw Error(*failure_);
  }

 private:
  using Packs = std::vector<std::shared_ptr<detail::GradientPack>>;
  // The packs that ranks compare at once.
  struct Batch {
    Packs packs;
    bool last = false;  // of its round
  };

  static ProcessGroup own_group(ProcessGroup& group, const ReducerOptions& options) {
    if (group.rank() < 0) {
      detail::fail(Status::kInvalid,
                   "this rank is not a member of group '" + group.name() + "' and has no gradients to reduce in it");
    }
    ProcessGroup own = options.backend.empty() ? group.new_group(all_ranks(group), "", options.timeout)
                                               : group.with_backend(options.backend, options.timeout);
    detail::require_agreement(
        own,
        {options.method == ReduceMethod::kSum ? "sum" : "mean", std::to_string(options.pack_bytes) + " bytes a pack"},
        {.noun = "option", .whole = "its gradient reducer", .advice = "all ranks must ask for the same"});
    return own;
  }
  static std::vector<int> all_ranks(const ProcessGroup& group) {
    std::vector<int> ranks;
    for (int rank = 0; rank < group.world_size(); ++rank) ranks.push_back(rank);
    return ranks;
  }
  static Error failure_of(int32_t status, const char* text) {
    bp_error err;
    bp_error_init(&err);
    bp_error_set(&err, status, 0, -1, text);
    return Error(err);
  }
  static Error cancelled() {
    return failure_of(BP_CANCELLED, "the gradient reducer was destroyed before this gradient was reduced");
  }

  // The thread exists in the parent only. Joining it, or destroying what it waits for, would block for ever.
  void forget_thread() {
    struct Forgotten {
      std::thread thread;
      std::unique_ptr<std::condition_variable> changed;
      Forgotten* next;
    };
    static std::atomic<Forgotten*> newest = nullptr;  // keeps them reachable for leak checkers
    auto* const made = new Forgotten{std::move(thread_), std::move(condition_), newest.load()};
    while (!newest.compare_exchange_weak(made->next, made)) {
    }
  }

  // Requires mutex_.
  void send(Packs packs, bool last) {
    for (const auto& pack : packs) pack->close();
    sent_.push_back({std::move(packs), last});
    changed_.notify_all();
  }

  // Runs on thread_.
  void work() {
    for (;;) {
      Batch batch;
      {
        std::unique_lock lock(mutex_);
        busy_ = false;
        changed_.notify_all();
        changed_.wait(lock, [this] { return stop_ || !sent_.empty(); });
        if (stop_) return;
        batch = std::move(sent_.front());
        sent_.pop_front();
        busy_ = true;
      }
      try {
        reduce(batch);
      } catch (const Error& failure) {
        end_with(batch, failure);
        return;
      } catch (const std::exception& e) {  // thrown by a function of PackMemory
        end_with(batch, failure_of(BP_INTERNAL, e.what()));
        return;
      }
    }
  }
  void reduce(const Batch& batch) {
    std::vector<std::string> descriptions;
    for (const auto& pack : batch.packs) {
      descriptions.insert(descriptions.end(), pack->parameters().begin(), pack->parameters().end());
    }
    const size_t count = descriptions.size();
    if (batch.last) descriptions.emplace_back("the end");
    try {
      detail::require_agreement(group_, descriptions,
                                {.noun = "gradient",
                                 .whole = "its round",
                                 .advice = "all ranks must add the same gradients in the same order, and then flush",
                                 .first = compared_});
    } catch (const Error& difference) {
      known_to_all_ = difference.status() == Status::kInvalid;
      throw;
    }
    compared_ = batch.last ? 0 : compared_ + count;
    for (const auto& pack : batch.packs) {
      packer_.reduce(group_, pack->gradients(), pack->offsets(), options_.method);
      pack->succeed();
    }
  }
  // A failure may concern this rank only: aborting the group reports it to the others. A difference is known to all
  // ranks already, so that the group is not aborted.
  void end_with(const Batch& batch, const Error& failure) {
    try {
      if (!known_to_all_) group_.abort(failure.what());
    } catch (const Error&) {
      // It has ended already.
    }
    const std::lock_guard lock(mutex_);
    const Error shown = stop_ ? cancelled() : failure;
    sent_.push_front(batch);
    give_up(shown);
    failure_ = shown;
    changed_.notify_all();
  }
  // Fails all gradients that are not completed. Requires mutex_, or that thread_ has ended.
  void give_up(const Error& failure) {
    for (const auto& [dtype, pack] : filling_) pack->fail_with(failure);
    for (const Batch& batch : sent_) {
      for (const auto& pack : batch.packs) pack->fail_with(failure);
    }
    filling_.clear();
    sent_.clear();
  }

  const ReducerOptions options_;
  ProcessGroup group_;
  detail::PackReducer packer_{options_.memory};  // used by thread_ only
  size_t compared_ = 0;                          // gradients of this round so far; used by thread_ only
  bool known_to_all_ = false;                    // whether all ranks have the failure; used by thread_ only
  std::mutex mutex_;                             // guards the members below
  std::unique_ptr<std::condition_variable> condition_ = std::make_unique<std::condition_variable>();
  std::condition_variable& changed_ = *condition_;
  std::map<DType, std::shared_ptr<detail::GradientPack>> filling_;
  std::set<std::string> round_;  // parameters that were added since the last flush
  std::deque<Batch> sent_;       // that thread_ has not taken yet
  bool busy_ = true;             // thread_ reduces a batch, or has not started yet
  bool stop_ = false;
  std::optional<Error> failure_;
  std::thread thread_;  // constructed last
};

// Broadcasts each buffer of a list from rank `root` of the group. All ranks must call it. Blocks. Status::kInvalid on
// all ranks, naming the rank, if the lists differ in number, dtypes or counts.
inline void bcast_list(std::span<const Buffer> buffers, const OptionalGroup& group = {}, int root = 0) {
  ProcessGroup chosen = detail::chosen(group);
  std::vector<std::string> descriptions;
  for (const Buffer& buffer : buffers)
    descriptions.push_back(name_of(buffer.dtype()) + " x " + std::to_string(buffer.count()));
  detail::require_agreement(
      chosen, descriptions,
      {.noun = "buffer", .whole = "its list", .advice = "all ranks must broadcast the same list"});
  for (const Buffer& buffer : buffers) chosen.broadcast(buffer, root);
}

}  // namespace backplane
