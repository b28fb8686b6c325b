// SPDX-License-Identifier: Apache-2.0
//
// The supervisor's side of a child: its process, what it has reported, and when it is to be continued.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "backplane/base/subprocess.hpp"
#include "channel.hpp"
#include "world.hpp"

namespace backplane::conformance {

class ChildProcess {
 public:
  // `channel` and `output`: the reading ends of its pipes.
  ChildProcess(base::Subprocess process, std::vector<int32_t> members, base::Descriptor channel,
               base::Descriptor output);

  const std::vector<int32_t>& members() const { return members_; }
  int32_t first() const { return members_.front(); }
  // What to poll: records, output, the end of the process. -1: nothing more.
  int channel() const { return channel_.get(); }
  int output() const { return output_.get(); }
  int ending() { return reaped_ ? -1 : process_.fd(); }

  // Reads what is there, without blocking.
  void read_records(const std::function<void(const Record& record)>& take);
  void read_output(const std::function<void(std::string_view bytes)>& keep);

  void count_done() { ++done_; }
  // Whether the bodies of all its members have returned.
  bool done() const { return done_ == members_.size(); }
  void announce_death(int signal) { dying_ = signal; }

  // Stops the process: until `continue_at`, when `word` is set in the world's store, or indefinitely.
  void stop_until(Nanoseconds continue_at, std::string word);
  void stop_indefinitely(Nanoseconds lost_at);
  // When keep_times has to be called; INT64_MAX: never.
  Nanoseconds next_time() const;
  // Continues the process if it is time. True: it is stopped indefinitely and counts as lost from now on.
  bool keep_times(World& world);
  bool is_frozen() const { return frozen_; }

  void kill();
  bool is_reaped() const { return reaped_; }
  // The status of waitpid, once, if the process has ended before the deadline.
  std::optional<int> reap(base::Deadline deadline);
  bool was_killed() const { return killed_; }
  // Whether a process with this status has ended as it had announced.
  bool died_as_announced(int status) const;

 private:
  base::Subprocess process_;
  std::vector<int32_t> members_;
  base::Descriptor channel_;
  base::Descriptor output_;
  RecordReader reader_;
  size_t done_ = 0;      // members whose body has returned
  int dying_ = 0;        // the signal that it has announced for its end; 0: none
  bool killed_ = false;  // by the supervisor
  bool reaped_ = false;
  bool frozen_ = false;
  Nanoseconds continue_at_ = INT64_MAX;
  Nanoseconds lost_at_ = INT64_MAX;
  std::string word_;
};

}  // namespace backplane::conformance
