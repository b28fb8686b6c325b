// SPDX-License-Identifier: Apache-2.0
#include "child_process.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

namespace backplane::conformance {

ChildProcess::ChildProcess(base::Subprocess process, std::vector<int32_t> members, base::Descriptor channel,
                           base::Descriptor output)
    : process_(std::move(process)),
      members_(std::move(members)),
      channel_(std::move(channel)),
      output_(std::move(output)) {
  base::set_nonblocking(channel_.get());
  base::set_nonblocking(output_.get());
}

void ChildProcess::read_records(const std::function<void(const Record& record)>& take) {
  const auto feed = [this](std::string_view bytes) { reader_.feed(bytes); };
  if (!base::read_available(channel_.get(), feed)) channel_.reset();
  Record record;
  while (reader_.next(record)) take(record);
}

void ChildProcess::read_output(const std::function<void(std::string_view bytes)>& keep) {
  if (!base::read_available(output_.get(), keep)) output_.reset();
}

void ChildProcess::stop_until(Nanoseconds continue_at, std::string word) {
  ::kill(process_.pid(), SIGSTOP);
  continue_at_ = continue_at;
  word_ = std::move(word);
}

void ChildProcess::stop_indefinitely(Nanoseconds lost_at) {
  ::kill(process_.pid(), SIGSTOP);
  lost_at_ = lost_at;
}

Nanoseconds ChildProcess::next_time() const { return std::min(continue_at_, lost_at_); }

bool ChildProcess::keep_times(World& world) {
  if (now() >= continue_at_) {
    continue_at_ = INT64_MAX;
    ::kill(process_.pid(), SIGCONT);
    world.set(word_, "");
  }
  if (now() < lost_at_) return false;
  lost_at_ = INT64_MAX;
  done_ = members_.size();  // it cannot report it
  frozen_ = true;
  return true;
}

void ChildProcess::kill() {
  if (reaped_) return;
  killed_ = true;
  process_.signal(SIGKILL);
}

std::optional<int> ChildProcess::reap(base::Deadline deadline) {
  const std::optional<int> status = reaped_ ? std::nullopt : process_.wait(deadline);
  reaped_ = reaped_ || status.has_value();
  return status;
}

bool ChildProcess::died_as_announced(int status) const {
  if (dying_ == 0) return false;
  return dying_ == SIGSEGV || (WIFSIGNALED(status) && WTERMSIG(status) == dying_);  // a sanitizer may exit instead
}

}  // namespace backplane::conformance
