// SPDX-License-Identifier: Apache-2.0
//
// Gradients of data-parallel training: every rank computes them from its own samples, and all ranks need their sum or
// mean (megengine.distributed.helper).
//
//     backplane::GradientReducer reducer(group, {.method = backplane::ReduceMethod::kMean});
//     for (Layer& layer : backwards(layers)) {
//       layer.compute_gradient();
//       reducer.add(layer.name, layer.gradient);  // is reduced while the next layer is computed
//     }
//     reducer.finish();
#pragma once

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

#include "backplane/agreement.hpp"
#include "backplane/distributed.hpp"
#include "backplane/packing.hpp"

namespace backplane {

namespace detail {

// Gradients of one dtype that travel together. Filled by one thread, then reduced by another, watched by any.
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

  // False: not done after `timeout` (0: looks only). Throws what it failed with. `parameter` is the one asked about.
  bool wait_for(Timeout timeout, const std::string& parameter) {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return state_ == State::kDone || state_ == State::kFailed; };
    if (timeout != Timeout(0) && state_ == State::kFilling) {
      fail(Status::kInvalid, "the gradient of '" + parameter +
                                 "' is in a pack that is not full; call flush or finish before waiting for it");
    }
    if (timeout == kNoTimeout) {
      changed_.wait(lock, ended);
    } else {
      changed_.wait_for(lock, timeout, ended);
    }
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

  std::vector<std::string> parameters_;  // as they are called in sentences
  std::vector<Buffer> gradients_;
  Offsets offsets_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  State state_ = State::kFilling;
  std::optional<Error> failure_;
};

}  // namespace detail

// A gradient that was handed to a reducer. Copies share it; it may outlive the reducer.
class ReducedGradient {
 public:
  // Does not block. Throws what the reduction failed with, the same each time.
  bool is_completed() const { return pack_->wait_for(Timeout(0), parameter_); }
  // Waits until the gradient is reduced; the timeout of the reducer's operations ends it at the latest. Returns the
  // buffer that was handed over. Status::kInvalid at once if it was not sent yet, for nobody may ever send it.
  Buffer wait() const {
    pack_->wait_for(kNoTimeout, parameter_);
    return gradient_;
  }
  // Waits for up to `timeout`; false if it is not reduced then.
  bool wait_for(Timeout timeout) const { return pack_->wait_for(timeout, parameter_); }
  const std::string& parameter() const { return parameter_; }
  // Holds the result once it is completed.
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
  uint64_t pack_bytes = 10 * 1024 * 1024;  // a pack that holds more than this is sent
  std::string backend = {};                // instead of the group's, written as in GroupOptions
  Timeout timeout = kDefaultTimeout;       // of starting and of each operation; default: the group's
  PackMemory memory = {};                  // where packs live; `device` must be one that the backend serves
};

// Reduces gradients in packs while the caller computes the next ones: `add` returns at once, a thread of the reducer's
// own does the rest, over a group of its own with the ranks of the one that is given, so that the caller may use that
// one for anything meanwhile. One pack is under way at a time, and one is the memory it takes.
//
// A gradient belongs to the reducer from `add` until it is completed: its buffer must live and stay untouched. The
// result is written to the same buffer, on the device where it lives. Rounds: whatever is added up to a flush. All
// ranks must add the same parameters with the same dtypes and counts in the same order. If they do not, no gradient of
// that pack is touched: on all ranks the reducer fails with a sentence that names rank and parameter, and so does
// everything later. Any thread may call anything.
class GradientReducer {
 public:
  // Collective: all ranks of the group make theirs, in the same order as other groups. Blocks until they have.
  explicit GradientReducer(ProcessGroup group, ReducerOptions options = {})
      : options_(std::move(options)), group_(own_group(group, options_)), thread_([this] { work(); }) {}
  // Whatever is not completed fails with Status::kCancelled. Does not wait for other ranks.
  ~GradientReducer() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    try {
      group_.destroy();  // ends what is in flight
    } catch (const Error&) {
      // It has ended already.
    }
    thread_.join();
    give_up(cancelled());
  }
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Adds a gradient to the pack of its dtype, and sends that if it has become larger than pack_bytes. Returns at once.
  // Status::kInvalid: the parameter was added already in this round. Throws what the reducer failed with.
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

  // Ends the round: sends the packs that are left, in the order of their dtypes. Returns at once. Every rank must do it
  // as often as the others, also one that had nothing to add.
  void flush() {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
    Packs packs;
    for (auto& [dtype, pack] : filling_) packs.push_back(std::move(pack));
    filling_.clear();
    round_.clear();
    send(std::move(packs), true);
  }

  // Flushes, and waits until everything that was added is reduced and the ranks have compared their rounds. Throws what
  // the reducer failed with.
  void finish() {
    flush();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return failure_ || (sent_.empty() && !busy_); });
    if (failure_) throw Error(*failure_);
  }

 private:
  using Packs = std::vector<std::shared_ptr<detail::GradientPack>>;
  // What ranks compare and reduce in one go.
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
    require_agreement(
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

  // Under mutex_.
  void send(Packs packs, bool last) {
    for (const auto& pack : packs) pack->close();
    sent_.push_back({std::move(packs), last});
    changed_.notify_all();
  }

  // The thread's.
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
      } catch (const std::exception& e) {  // of the functions of PackMemory
        end_with(batch, failure_of(BP_INTERNAL, e.what()));
        return;
      }
    }
  }
  void reduce(const Batch& batch) {
    std::vector<std::string> said;
    for (const auto& pack : batch.packs) {
      said.insert(said.end(), pack->parameters().begin(), pack->parameters().end());
    }
    const size_t count = said.size();
    if (batch.last) said.emplace_back("the end");
    try {
      require_agreement(group_, said,
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
  // A failure may be this rank's alone: the others are told by the end of the group. A difference they find themselves,
  // unless the end of the group comes first.
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
  // Everything that is not completed fails.
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
  detail::PackReducer packer_{options_.memory};  // the thread's
  size_t compared_ = 0;                          // gradients of this round; the thread's
  bool known_to_all_ = false;                    // what it failed with; the thread's
  std::mutex mutex_;                             // guards what follows
  std::condition_variable changed_;
  std::map<DType, std::shared_ptr<detail::GradientPack>> filling_;
  std::set<std::string> round_;  // parameters that were added since the last flush
  std::deque<Batch> sent_;       // that the thread has not taken yet
  bool busy_ = true;             // the thread has taken one, or has not come yet
  bool stop_ = false;
  std::optional<Error> failure_;
  std::thread thread_;  // the last to begin
};

// Broadcasts every buffer of a list from `root` of the group, the first rank unless said otherwise. Collective; blocks.
// Lists that differ in number, dtypes or counts are Status::kInvalid on all ranks, and name the rank.
inline void bcast_list(std::span<const Buffer> buffers, const OptionalGroup& group = {}, int root = 0) {
  ProcessGroup chosen = detail::chosen(group);
  std::vector<std::string> said;
  for (const Buffer& buffer : buffers) said.push_back(name_of(buffer.dtype()) + " x " + std::to_string(buffer.count()));
  require_agreement(chosen, said,
                    {.noun = "buffer", .whole = "its list", .advice = "all ranks must broadcast the same list"});
  for (const Buffer& buffer : buffers) chosen.broadcast(buffer, root);
}

}  // namespace backplane
