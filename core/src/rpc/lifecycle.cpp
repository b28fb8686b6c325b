// SPDX-License-Identifier: Apache-2.0
#include "rpc/lifecycle.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "backplane/base/grace.hpp"
#include "group/objects.hpp"
#include "interrupt.hpp"
#include "log.hpp"
#include "rpc/current_error.hpp"
#include "waiting.hpp"

namespace backplane::core::rpc {
namespace {

constexpr std::chrono::milliseconds kQuietPoll{1};
constexpr std::chrono::seconds kProgressPeriod{1};
constexpr int64_t kFunctionsAtExitNs = 1'000'000'000;  // for functions that run when the process ends

std::vector<uint64_t> sum_over_all(Group& group, std::vector<uint64_t> numbers, int64_t timeout_ns) {
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_U64;
  op.reduce_op = BP_SUM;
  op.timeout_ns = timeout_ns;
  op.input = {numbers.data(), numbers.size(), BP_HOST, 0};
  op.output = op.input;
  group.operations().run(op);
  return numbers;
}

std::string summary_of_leaks(const std::vector<std::string>& leaks) {
  return leaks.size() == 1 ? leaks.front() : fmt::format("{} (and {} more values)", leaks.front(), leaks.size() - 1);
}

}  // namespace

Lifecycle::Lifecycle(Context* context, Connection* connection, Caller* caller, References* references, Server* server,
                     Report* report, std::shared_ptr<Group> group)
    : context_(*context),
      connection_(*connection),
      caller_(*caller),
      references_(*references),
      server_(*server),
      report_(*report),
      global_ranks_(group->config().global_ranks),
      detector_(group->job().detector),
      group_(std::move(group)) {}

void Lifecycle::start() {
  if (detector_) detector_->add(this);
}

// A use of the group, which shutdown aborts.
class Lifecycle::Gathering {
 public:
  explicit Gathering(Lifecycle* lifecycle) : lifecycle_(*lifecycle) {
    const std::lock_guard lock(lifecycle_.mutex_);
    if (!lifecycle_.group_ || lifecycle_.leaving_) {
      fail(BP_INVALID, "worker '{}' is shutting down", lifecycle_.context_.peers.own_name());
    }
    group_ = lifecycle_.group_;
    ++lifecycle_.gathering_;
  }
  ~Gathering() {
    const std::lock_guard lock(lifecycle_.mutex_);
    --lifecycle_.gathering_;
  }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;
  Group& group() const { return *group_; }

 private:
  Lifecycle& lifecycle_;
  std::shared_ptr<Group> group_;
};

std::vector<std::string> Lifecycle::all_gather(std::string_view object, int64_t timeout_ns) {
  InboundCall::require_may_wait();
  const Gathering gathering(this);
  return exchange_objects(gathering.group(), BP_ALL_GATHER, 0, {object}, timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS));
}

void Lifecycle::on_loss(const Loss& loss) {
  for (size_t rank = 0; rank < global_ranks_.size(); ++rank) {
    if (global_ranks_[rank] != loss.rank) continue;
    const auto peer = static_cast<int32_t>(rank);
    on_peer_gone(peer, Error(BP_PEER_LOST, loss.text, peer));
  }
}

// Calls fail on their table's thread, and values are destroyed on the executor.
void Lifecycle::on_peer_gone(int32_t peer, const Error& why) {
  context_.peers.set_absent(peer, why);
  server_.on_peer_gone(peer);
  caller_.on_peer_gone(peer, why);
  references_.on_peer_gone(peer);
}

bool Lifecycle::is_quiet(uint64_t* begun) const {
  const CallTable::Counts calls = caller_.calls().counts();
  *begun = calls.begun + server_.arrived();
  const base::Executor::Counts threads = context_.executor.counts();  // with callbacks
  // After the table: a request is marked as completing before it leaves the table.
  const bool is_completing = caller_.is_completing();
  return calls.active == 0 && !is_completing && server_.is_idle() && threads.queued == 0 &&
         threads.idle == threads.threads;
}

void Lifecycle::wait_until_quiet(Deadline deadline, uint64_t* begun) {
  Deadline next_check = Interruptible::next_check(Deadline::never());
  while (!is_quiet(begun)) {
    if (deadline.passed()) {
      fail(BP_TIMEOUT, "worker '{}' still had calls under way when the time to shut down was over{}",
           context_.peers.own_name(), report_.pending_calls());
    }
    Interruptible::check(&next_check);
    server_.wait_for_end(kQuietPoll);
  }
}

// Logs once a second what a shutdown waits for, on a thread of its own: waits for the other workers take place in the
// group.
class Lifecycle::Progress {
 public:
  Progress(const Context& context, const Report& report) {
    try {
      thread_ = start_quiet_thread("bp-rpc-end", [this, &context, &report] { run(context, report); });
    } catch (const std::exception&) {  // no thread: no lines
    }
  }
  ~Progress() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void run(const Context& context, const Report& report) {
    const auto begun = Deadline::Clock::now();
    std::unique_lock lock(mutex_);
    for (int line = 1; !changed_.wait_until(lock, begun + line * kProgressPeriod, [this] { return is_over_; });
         ++line) {
      const std::string calls = report.pending_calls();
      // A worker that serves the others until they shut down is nothing unusual.
      log(report.has_pending_calls() ? BP_LOG_WARN : BP_LOG_INFO, "rpc: worker '{}' has waited {} s to shut down{}{}",
          context.peers.own_name(), line, calls, calls.empty() ? "; it waits for the other workers to shut down" : "");
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

// Returns when all workers are quiet and none has begun a request since the round before: a message that was on its way
// in one round is counted in the next.
void Lifecycle::settle(Deadline deadline) {
  uint64_t before = 0;
  bool was_quiet = false;
  for (;;) {
    uint64_t begun = 0;
    wait_until_quiet(deadline, &begun);
    try {
      const auto sums = sum_over_all(*group_, {is_quiet(&begun) ? 0U : 1U, begun}, deadline.left_ns());
      if (sums[0] == 0 && was_quiet && sums[1] == before) return;
      was_quiet = sums[0] == 0;
      before = sums[1];
    } catch (const Error& error) {
      if (error.status() != BP_PEER_LOST) throw;
      shrink_group(deadline);
      was_quiet = false;
    }
  }
}

void Lifecycle::shrink_group(Deadline deadline) {
  const auto rest = group_->subgroups().shrink(deadline.left_ns());
  report_.attach_to(*rest);
  group_->destroy();
  const std::lock_guard lock(mutex_);
  group_ = rest;
}

std::vector<std::string> Lifecycle::shutdown(bool graceful, int64_t timeout_ns) {
  InboundCall::require_may_wait();
  if (context_.executor.inside()) {
    fail(BP_INVALID, "shutdown waits for the functions that run here, and must not be called inside one of them");
  }
  if (!begin_shutdown()) return {};
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS));
  const uint64_t interruptions = Interruptible::interruptions();
  std::optional<Error> problem;
  try {
    if (graceful) {
      const Progress progress(context_, report_);
      settle(deadline);
    }
  } catch (...) {
    problem.emplace(current_error());
  }
  const bool is_interrupted = Interruptible::interruptions() != interruptions;
  std::vector<std::string> leaks = report_.leaks();
  if (graceful) {
    if (!leaks.empty()) log(BP_LOG_WARN, "rpc: {}; drop all references before shutdown", summary_of_leaks(leaks));
  }
  if (!graceful || problem) send_goodbyes();
  const std::string& name = context_.peers.own_name();
  const Deadline grace = Deadline::after(base::grace::kLeave);
  const Deadline last = is_interrupted ? grace : std::max(deadline, grace);
  if (!close(Error(BP_CANCELLED, fmt::format("worker '{}' has shut down", name)), last)) {
    fail(BP_TIMEOUT,
         "worker '{}' has left, but a function there does not end: {}; long functions must return when cancelled() is "
         "true",
         name, report_.running_functions());
  }
  if (problem) throw Error(*problem);
  return leaks;
}

// False if the worker has left, or this thread shuts it down. Waits while another thread does.
bool Lifecycle::begin_shutdown() {
  std::unique_lock lock(mutex_);
  const auto self = std::this_thread::get_id();
  if (leaving_ == self) return false;
  wait_on(left_, lock, Deadline::never(), [this] { return !group_ || !leaving_ || exiting_; });
  if (!group_ || exiting_) return false;
  leaving_ = self;
  caller_.refuse_new_calls();
  return true;
}

bool Lifecycle::has_left() {
  const std::lock_guard lock(mutex_);
  return !group_;
}

void Lifecycle::leave(const std::string& why) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (!group_ || leaving_) return;
      leaving_ = std::this_thread::get_id();
    }
    close(Error(BP_CANCELLED, why), Deadline::after(BP_DEFAULT_TIMEOUT_NS));
  } catch (const std::exception& e) {
    log(BP_LOG_ERROR, "rpc: worker '{}' could not end: {}", context_.peers.own_name(), e.what());
  }
}

void Lifecycle::leave_at_exit(const Deadline& deadline) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (!group_ || leaving_) return;
      leaving_ = std::this_thread::get_id();
      exiting_ = true;
    }
    const Deadline functions = std::min(deadline, Deadline::after(kFunctionsAtExitNs));
    while (!server_.is_idle() && !functions.passed()) server_.wait_for_end(kQuietPoll);
    send_goodbyes();
    if (detector_) detector_->remove(this);
    if (caller_.calls().counts().active > 0) return;
    connection_.close();
    connection_.abort(Error(BP_CANCELLED, fmt::format("worker '{}' has exited", context_.peers.own_name())));
    connection_.destroy();
  } catch (const std::exception& e) {
    log(BP_LOG_WARN, "rpc: worker '{}' could not leave at exit: {}", context_.peers.own_name(), e.what());
  }
}

// Peers whose agents have not confirmed the goodbye. Shared with the messages, which may outlive the wait.
struct Lifecycle::PendingGoodbyes {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<int32_t> left;

  void add(int32_t peer) {
    const std::lock_guard lock(mutex);
    left.insert(peer);
  }
  void remove(int32_t peer) {
    const std::lock_guard lock(mutex);
    left.erase(peer);
    changed.notify_all();
  }
};

void Lifecycle::send_goodbyes() {
  constexpr int64_t kMaxNs = 2'000'000'000;    // for a busy host; usually the message is sent at once
  constexpr int64_t kLeavingNs = 100'000'000;  // for peers that leave as well: their agents may never confirm
  constexpr auto kPoll = std::chrono::milliseconds(20);
  const auto goodbyes = std::make_shared<PendingGoodbyes>();
  Header header;
  header.kind = Kind::kLeave;
  for (int32_t peer = 0; peer < context_.peers.size(); ++peer) {
    if (peer == context_.peers.own_rank() || context_.peers.absence(peer)) continue;
    try {
      Content content;
      goodbyes->add(peer);
      content.owner = std::shared_ptr<void>(nullptr, [goodbyes, peer](void*) { goodbyes->remove(peer); });
      connection_.send(peer, header, std::move(content), 0, kMaxNs);
    } catch (const std::exception& e) {
      log(BP_LOG_DEBUG, "rpc: cannot say goodbye to {}: {}", context_.peers.describe(peer), e.what());
    }
  }
  Deadline deadline = Deadline::after(kMaxNs);
  bool only_leaving = false;
  std::unique_lock lock(goodbyes->mutex);
  while (!goodbyes->left.empty() && !deadline.passed()) {
    const auto is_absent = [this](int32_t peer) { return context_.peers.absence(peer).has_value(); };
    if (!only_leaving && std::all_of(goodbyes->left.begin(), goodbyes->left.end(), is_absent)) {
      deadline = std::min(deadline, Deadline::after(kLeavingNs));
      only_leaving = true;
    }
    goodbyes->changed.wait_for(lock, kPoll);
  }
}

// By the thread that shuts down. The order: no more losses, requests or sends; the agent, calls, functions and values
// end; once no thread sends, the transport and the group are destroyed. False if a function still ran at the deadline.
bool Lifecycle::close(const Error& why, Deadline deadline) {
  std::shared_ptr<Group> group;
  std::shared_ptr<FailureDetector> detector;
  bool is_gathering = false;
  {
    const std::lock_guard lock(mutex_);
    group = group_;
    detector = detector_;
    is_gathering = gathering_ > 0;
  }
  if (detector) detector->remove(this);
  connection_.close();
  server_.close();
  connection_.abort(why);
  if (is_gathering) group->state().abort(why);
  caller_.close(why);
  auto values = references_.values().close(why);  // destroyed below: functions that run may still use them
  const bool all_ended = context_.executor.stop(deadline);
  values.clear();
  connection_.destroy();
  group->destroy();
  const std::lock_guard lock(mutex_);
  group_.reset();
  detector_.reset();
  left_.notify_all();
  return all_ended;
}

}  // namespace backplane::core::rpc
