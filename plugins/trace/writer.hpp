// SPDX-License-Identifier: Apache-2.0
//
// Writes the records of a group to the files of the options: at the beginning, periodically, after an abort, and at the
// end.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "backplane/sdk/sdk.hpp"
#include "file.hpp"
#include "records.hpp"

namespace backplane::trace {

class Writer {
 public:
  // `records` outlives the writer. Throws BP_RESOURCE if a file cannot be written.
  Writer(const sdk::Context& context, const Records& records);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Makes the thread write the files soon, because the program may never destroy an aborted group.
  void note_abort();

 private:
  void run();
  void write(bool with_events = true);
  void try_to_write(bool with_events = true) noexcept;

  const Records& records_;
  const sdk::Host host_;
  const std::string group_;
  const int32_t rank_;  // in the job
  const int64_t interval_ns_;
  const int64_t realtime_offset_ns_;  // from CLOCK_MONOTONIC
  std::optional<OutputPath> metrics_path_;
  std::optional<OutputPath> chrome_path_;
  bool has_warned_ = false;  // used by the thread, then by the destructor
  std::mutex mutex_;         // guards is_ending_ and is_aborted_
  std::condition_variable changed_;
  bool is_ending_ = false;
  bool is_aborted_ = false;
  std::thread thread_;
};

}  // namespace backplane::trace
