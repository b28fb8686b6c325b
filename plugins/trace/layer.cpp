// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <optional>

#include "backplane/abi/ext/calls.h"
#include "chrome.hpp"
#include "file.hpp"
#include "prometheus.hpp"

namespace backplane::trace {
namespace {

int64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// The data of an operation in flight.
struct OperationStart {
  explicit OperationStart(const bp_op& op)
      : kind(known_kind(op)),
        dtype(op.dtype),
        other(op.kind == BP_SEND || op.kind == BP_RECV ? op.peer
              : rooted(op.kind)                        ? op.root
                                                       : -1),
        seq(op.seq),
        bytes(std::max(op.input.count, op.output.count) * (op.kind == BP_BARRIER ? 0 : bp_dtype_size(op.dtype))),
        result(op.kind == BP_RECV ? op.result : nullptr),
        begin_ns(now_ns(CLOCK_MONOTONIC)) {}

  static bool rooted(uint32_t kind) {
    return kind == BP_BROADCAST || kind == BP_REDUCE || kind == BP_GATHER || kind == BP_GATHERV || kind == BP_SCATTER ||
           kind == BP_SCATTERV;
  }

  uint32_t kind;
  uint32_t dtype;
  int32_t other;
  uint64_t seq;
  uint64_t bytes;
  const bp_result* result;  // of a recv, valid until its end
  int64_t begin_ns;
};

class TraceLayer final : public sdk::Layer {
 public:
  explicit TraceLayer(const sdk::Context& context)
      : Layer(context),
        host_(context.host),
        group_(context.name),
        rank_(context.global_ranks[static_cast<size_t>(context.rank)]),
        interval_ns_(context.options.integer("interval")),
        realtime_offset_ns_(now_ns(CLOCK_REALTIME) - now_ns(CLOCK_MONOTONIC)) {
    // A subgroup of one rank that is not rank 0 of the job needs a path with its rank.
    const int32_t world_size = rank_ == 0 ? context.world_size : std::max(context.world_size, 2);
    const std::string& file = context.options.text("file");
    const std::string& chrome = context.options.text("chrome");
    if (!file.empty()) metrics_path_.emplace(file, rank_, world_size, group_);
    if (!chrome.empty()) {
      chrome_path_.emplace(chrome, rank_, world_size, group_);
      events_.emplace(static_cast<size_t>(context.options.integer("events")));
    }
    write();  // reports a path that cannot be written at once
    if (metrics_path_ && interval_ns_ > 0) writer_ = sdk::start_thread([this] { write_periodically(); });
  }

  ~TraceLayer() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (writer_.joinable()) writer_.join();
    try_to_write();
  }

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const OperationStart started(op);
    statistics_[started.kind].start();
    std::unique_ptr<sdk::Work> work;
    try {
      work = inner().submit(op);
    } catch (const sdk::Failure& failure) {
      end(started, failure.status());
      throw;
    }
    if (work == nullptr) {
      end(started, BP_OK);
      return nullptr;
    }
    const auto ended = [this, started](const sdk::Failure* failure) {
      end(started, failure == nullptr ? BP_OK : failure->status());
    };
    return std::make_unique<sdk::ObservedWork<decltype(ended)>>(std::move(work), ended);
  }

  const void* extension(std::string_view id) override { return id == BP_EXT_CALLS ? &calls_ : Layer::extension(id); }

  // Makes the writer write the files soon, because the program may never destroy the group.
  void abort(const sdk::Failure& why) noexcept override {
    inner().abort(why);
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
    }
    changed_.notify_all();
  }

 private:
  void end(const bp_call& call) {
    const uint32_t kind = call.served != 0 ? kServedCall : kCall;
    const uint32_t number = functions_.number(call.function);
    Function& function = functions_.at(number);
    for (Counts* const counts : {&statistics_[kind], call.served != 0 ? &function.served : &function.made}) {
      counts->start();
      counts->end(call.status, call.request_bytes + call.answer_bytes, call.end_ns - call.begin_ns);
    }
    if (!events_) return;
    events_->add({call.begin_ns, call.end_ns, call.number, call.request_bytes, call.answer_bytes, kind, number,
                  call.peer, call.status});
  }

  void end(const OperationStart& started, int32_t status) {
    const int64_t end_ns = now_ns(CLOCK_MONOTONIC);
    const bool arrived = started.result != nullptr && status == BP_OK;
    const uint64_t bytes = arrived ? started.result->bytes : started.bytes;
    statistics_[started.kind].end(status, bytes, end_ns - started.begin_ns);
    if (events_) {
      events_->add(
          {started.begin_ns, end_ns, started.seq, bytes, 0, started.kind, started.dtype, started.other, status});
    }
  }

  void write_periodically() {
    std::unique_lock lock(mutex_);
    bool is_abort_handled = false;  // the abort has been handled
    while (!ending_) {
      changed_.wait_for(lock, std::chrono::nanoseconds(interval_ns_),
                        [this, is_abort_handled] { return ending_ || (aborted_ && !is_abort_handled); });
      if (ending_) return;
      const bool with_events_too = std::exchange(is_abort_handled, aborted_) != aborted_;
      lock.unlock();
      try_to_write(with_events_too);
      lock.lock();
    }
  }

  // The trace may be long, so it is written only at the end and after an abort.
  void write(bool with_events = true) {
    const WorkerMetrics worker = read(worker_.load());
    if (metrics_path_) metrics_path_->write(prometheus_text(statistics_, functions_, worker, group_, rank_));
    if (chrome_path_ && with_events) {
      chrome_path_->write(chrome_trace(*events_, functions_, worker, group_, rank_, realtime_offset_ns_));
    }
  }

  // Logs the first failed write. A failed write must not end the program.
  void try_to_write(bool with_events = true) noexcept {
    bp_error err;
    bp_error_init(&err);
    const int32_t status = sdk::guarded(&err, [this, with_events] {
      write(with_events);
      return BP_OK;
    });
    if (status != BP_OK && !std::exchange(has_warned_, true)) host_.get()->log(host_.get()->ctx, BP_LOG_WARN, err.text);
  }

  static void report_ended(void* ctx, const bp_call* call) {
    bp_error err;
    bp_error_init(&err);
    sdk::guarded(&err, [=] {
      static_cast<TraceLayer*>(ctx)->end(*call);
      return BP_OK;
    });
  }
  static void report_joined(void* ctx, const bp_metrics_api* metrics) {
    static_cast<TraceLayer*>(ctx)->worker_.store(metrics);
  }

  const bp_calls_api calls_ = {sizeof(bp_calls_api), 0, this, report_ended, report_joined};
  const sdk::Host host_;
  const std::string group_;
  const int32_t rank_;  // in the job
  const int64_t interval_ns_;
  const int64_t realtime_offset_ns_;
  Statistics statistics_;
  Functions functions_;
  std::atomic<const bp_metrics_api*> worker_ = nullptr;
  std::optional<Events> events_;
  std::optional<OutputPath> metrics_path_;
  std::optional<OutputPath> chrome_path_;
  bool has_warned_ = false;  // used by the writer, then by the destructor
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  bool aborted_ = false;
  std::thread writer_;
};

}  // namespace

std::unique_ptr<sdk::ProcessGroup> make_layer(const sdk::Context& context) {
  return std::make_unique<TraceLayer>(context);
}

}  // namespace backplane::trace
