// SPDX-License-Identifier: Apache-2.0
#include "writer.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "chrome.hpp"
#include "clock.hpp"
#include "prometheus.hpp"
#include "worker.hpp"

namespace backplane::trace {

Writer::Writer(const sdk::Context& context, const Records& records)
    : records_(records),
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
  if (!chrome.empty()) chrome_path_.emplace(chrome, rank_, world_size, group_);
  write();  // reports a path that cannot be written at once
  if (metrics_path_ && interval_ns_ > 0) thread_ = sdk::start_thread([this] { run(); });
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  try_to_write();
}

void Writer::note_abort() {
  {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
  }
  changed_.notify_all();
}

void Writer::run() {
  std::unique_lock lock(mutex_);
  bool is_abort_handled = false;
  while (!is_ending_) {
    changed_.wait_for(lock, std::chrono::nanoseconds(interval_ns_),
                      [this, is_abort_handled] { return is_ending_ || (is_aborted_ && !is_abort_handled); });
    if (is_ending_) return;
    const bool with_events = std::exchange(is_abort_handled, is_aborted_) != is_aborted_;
    lock.unlock();
    try_to_write(with_events);
    lock.lock();
  }
}

// The trace may be long, so it is written only at the end and after an abort.
void Writer::write(bool with_events) {
  const WorkerMetrics worker = read(records_.worker.load());
  if (metrics_path_) {
    metrics_path_->write(prometheus_text(records_.statistics, records_.functions, worker, group_, rank_));
  }
  if (chrome_path_ && with_events) {
    chrome_path_->write(chrome_trace(*records_.events, records_.functions, worker, group_, rank_, realtime_offset_ns_));
  }
}

// Logs the first failed write. A failed write must not end the program.
void Writer::try_to_write(bool with_events) noexcept {
  bp_error err;
  bp_error_init(&err);
  const int32_t status = sdk::guarded(&err, [this, with_events] {
    write(with_events);
    return BP_OK;
  });
  if (status != BP_OK && !std::exchange(has_warned_, true)) host_.get()->log(host_.get()->ctx, BP_LOG_WARN, err.text);
}

}  // namespace backplane::trace
