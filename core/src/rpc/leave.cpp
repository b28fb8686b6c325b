// SPDX-License-Identifier: Apache-2.0
//
// How workers leave, in peace or by dying.
#include <algorithm>
#include <set>
#include <utility>

#include "group/objects.hpp"
#include "interrupt.hpp"
#include "log.hpp"
#include "rpc/caught.hpp"
#include "rpc/worker.hpp"
#include "waiting.hpp"

namespace backplane::core::rpc {
namespace {

constexpr int64_t kLookNs = 1'000'000;            // between looks at whether this worker is quiet
constexpr int64_t kLeaveGraceNs = 1'000'000'000;  // for functions that are told that their worker leaves, at least

std::vector<uint64_t> sum_over_all(Group& group, std::vector<uint64_t> numbers, int64_t timeout_ns) {
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_U64;
  op.reduce_op = BP_SUM;
  op.timeout_ns = timeout_ns;
  op.input = {numbers.data(), numbers.size(), BP_HOST, 0};
  op.output = op.input;
  group.run(op);
  return numbers;
}

}  // namespace

Worker::~Worker() {
  if (begin_to_leave()) close(Error(BP_CANCELLED, "this worker has left"), Deadline::after(BP_DEFAULT_TIMEOUT_NS));
}

std::vector<std::string> Worker::all_gather(std::string_view object, int64_t timeout_ns) {
  // Counted, so that whoever leaves meanwhile ends it.
  class Gathering {
   public:
    explicit Gathering(Worker* worker) : worker_(*worker) {
      const std::lock_guard lock(worker_.leave_mutex_);
      if (!worker_.group_ || worker_.leaving_) fail(BP_INVALID, "this worker shuts down");
      group_ = worker_.group_;
      ++worker_.gathering_;
    }
    ~Gathering() {
      const std::lock_guard lock(worker_.leave_mutex_);
      --worker_.gathering_;
    }
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;
    Group& group() const { return *group_; }

   private:
    Worker& worker_;
    std::shared_ptr<Group> group_;
  };
  require_may_wait();
  const Gathering gathering(this);
  return exchange_objects(gathering.group(), BP_ALL_GATHER, 0, {object}, timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS));
}

void Worker::on_loss(const Loss& loss) {
  for (size_t rank = 0; rank < global_ranks_.size(); ++rank) {
    if (global_ranks_[rank] != loss.rank) continue;
    const auto peer = static_cast<int32_t>(rank);
    forget(peer, Error(BP_PEER_LOST, loss.text, peer));
  }
}

// Runs nobody's code: it may be called under the locks of others. Calls are ended where they time out, and values
// destroyed on the executor.
void Worker::forget(int32_t peer, const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    lost_.emplace(peer, why);
    for (const auto& [key, inbound] : inbound_) {
      if (key.first == peer) inbound->cancelled = true;
    }
  }
  cancels_.forget(peer);
  calls_.doom_all_to(peer, why, Deadline::after(0));
  for (auto& gone : values_.drop_all_of(peer)) discard(std::move(gone));
}

bool Worker::anybody_gone() const {
  const std::lock_guard lock(mutex_);
  return !lost_.empty();
}

std::optional<Error> Worker::loss_of(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = lost_.find(rank);
  return found == lost_.end() ? std::nullopt : std::optional<Error>(found->second);
}

bool Worker::quiet(uint64_t* begun) const {
  const Calls::Counts calls = calls_.counts();
  *begun = calls.begun + arrived_.load();
  const base::Executor::Counts threads = executor_->counts();  // what callbacks do there counts, too
  const std::lock_guard lock(mutex_);
  // Those that are being ended are looked for after those that have not been.
  return calls.active == 0 && ending_ == 0 && inbound_.empty() && threads.queued == 0 &&
         threads.idle == threads.threads;
}

// Ends when nobody has anything under way, and nobody has begun anything between two looks of all at all: a call that
// was on its way during one of them shows in the next.
void Worker::settle(Deadline deadline) {
  uint64_t before = 0;
  bool was_quiet = false;
  Deadline look = Interruptible::next_look(Deadline::never());
  for (;;) {
    uint64_t begun = 0;
    while (!quiet(&begun)) {
      if (deadline.passed()) {
        fail(BP_TIMEOUT, "worker '{}' still had calls under way when the time to shut down was over{}",
             names_[static_cast<size_t>(rank_)], calls_under_way());
      }
      Interruptible::check(&look);
      std::unique_lock lock(mutex_);
      quiet_.wait_for(lock, std::chrono::nanoseconds(kLookNs));
    }
    try {
      const auto sums = sum_over_all(*group_, {quiet(&begun) ? 0U : 1U, begun}, deadline.left_ns());
      if (sums[0] == 0 && was_quiet && sums[1] == before) return;
      was_quiet = sums[0] == 0;
      before = sums[1];
    } catch (const Error& error) {
      if (error.status() != BP_PEER_LOST) throw;
      // Those who are left go on without the dead.
      const auto rest = group_->shrink(deadline.left_ns());
      show_calls(*rest);
      group_->destroy();
      const std::lock_guard lock(leave_mutex_);
      group_ = rest;
      was_quiet = false;
    }
  }
}

std::string Worker::functions_that_run() const {
  std::vector<std::string> lines;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, inbound] : inbound_) {
    const std::chrono::duration<double> age = Deadline::Clock::now() - inbound->arrived;
    lines.push_back(fmt::format("'{}' for '{}' {} for {:.1f} s", inbound->header.function,
                                names_[static_cast<size_t>(key.first)], inbound->runs ? "runs" : "waits for a thread",
                                age.count()));
  }
  if (lines.empty()) lines.emplace_back("a callback, or the end of a value");
  return fmt::format("{}", fmt::join(lines, ", "));
}

// What there is to say of them, for the end of a sentence.
std::string Worker::calls_under_way() const {
  std::string text;
  for (const Calls::Pending& call : calls_.pending()) {
    const std::chrono::duration<double> age = Deadline::Clock::now() - call.begun;
    text += fmt::format("; it waits for '{}' on '{}' for {:.1f} s", call.function, names_[static_cast<size_t>(call.to)],
                        age.count());
  }
  {
    const std::lock_guard lock(mutex_);
    if (inbound_.empty()) return text;
  }
  return fmt::format("{}; here {}", text, functions_that_run());
}

std::vector<std::string> Worker::shutdown(bool graceful, int64_t timeout_ns) {
  require_may_wait();
  if (executor_ && executor_->inside()) {
    fail(BP_INVALID, "shutdown waits for the functions that run here, and cannot be called from one of them");
  }
  if (!begin_to_leave()) return {};
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS));
  std::optional<Error> problem;
  try {
    if (graceful) settle(deadline);
  } catch (...) {
    problem.emplace(caught());
  }
  std::vector<std::string> leaks;
  for (const Values::Claim& claim : values_.claims()) {
    std::string holders;
    for (const int32_t holder : claim.holders) {
      holders += fmt::format("{}'{}'", holders.empty() ? "" : ", ", names_[static_cast<size_t>(holder)]);
    }
    leaks.push_back(fmt::format("value {}.{}{} of worker '{}' is still referred to by {}", claim.value.maker,
                                claim.value.number,
                                claim.function.empty() ? "" : fmt::format(" (made by '{}')", claim.function),
                                names_[static_cast<size_t>(rank_)], holders));
    if (graceful) log(BP_LOG_WARN, "rpc: {}; drop all references before shutdown", leaks.back());
  }
  if (!graceful || problem) say_goodbye();
  const std::string& name = names_[static_cast<size_t>(rank_)];
  const bool is_hurried = problem && problem->status() == BP_CANCELLED;  // interrupted
  const Deadline grace = Deadline::after(kLeaveGraceNs);
  const Deadline last = is_hurried ? grace : std::max(deadline, grace);
  if (!close(Error(BP_CANCELLED, fmt::format("worker '{}' has shut down", name)), last)) {
    fail(BP_TIMEOUT,
         "worker '{}' has left, but what runs there does not end: {}; functions that take long are to look at "
         "cancelled() now and then",
         name, functions_that_run());
  }
  if (problem) throw Error(*problem);
  return leaks;
}

// One thread leaves; others that want to wait for it. False if it has been done, or this thread is about it.
bool Worker::begin_to_leave() {
  std::unique_lock lock(leave_mutex_);
  const auto self = std::this_thread::get_id();
  if (leaving_ == self) return false;
  wait_on(left_, lock, Deadline::never(), [this] { return !group_ || !leaving_; });
  if (!group_) return false;
  leaving_ = self;
  return true;
}

bool Worker::has_left() {
  const std::lock_guard lock(leave_mutex_);
  return !group_;
}

// Those who do not leave together with this worker hear of it, if that can be done soon.
void Worker::say_goodbye() {
  constexpr auto kMost = std::chrono::seconds(2);  // a busy host; the word is small, and mostly gone at once
  constexpr auto kLast = std::chrono::milliseconds(100);
  constexpr auto kLook = std::chrono::milliseconds(20);
  struct Underway {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<int32_t> left;
  };
  const auto underway = std::make_shared<Underway>();
  Header word;
  word.kind = Kind::kLeave;
  for (int32_t peer = 0; peer < static_cast<int32_t>(names_.size()); ++peer) {
    if (peer == rank_ || loss_of(peer)) continue;
    try {
      Content content;
      {
        const std::lock_guard lock(underway->mutex);
        underway->left.insert(peer);
      }
      content.owner = std::shared_ptr<void>(nullptr, [underway, peer](void*) {
        const std::lock_guard lock(underway->mutex);
        underway->left.erase(peer);
        underway->changed.notify_all();
      });
      transmit(peer, word, std::move(content), 0, std::chrono::nanoseconds(kMost).count());
    } catch (const std::exception& e) {
      log(BP_LOG_DEBUG, "rpc: {}", e.what());
    }
  }
  // Not as long for those that leave, too: their agents may be gone before they have confirmed.
  Deadline deadline = Deadline::after(std::chrono::nanoseconds(kMost).count());
  bool is_last = false;
  std::unique_lock lock(underway->mutex);
  while (!underway->left.empty() && !deadline.passed()) {
    const auto leaves = [this](int32_t peer) { return loss_of(peer).has_value(); };
    if (!is_last && std::all_of(underway->left.begin(), underway->left.end(), leaves)) {
      deadline = std::min(deadline, Deadline::after(std::chrono::nanoseconds(kLast).count()));
      is_last = true;
    }
    underway->changed.wait_for(lock, kLook);
  }
}

// By the thread that leaves. No lock is held while it waits or anybody's code runs.
bool Worker::close(const Error& why, Deadline deadline) {
  std::shared_ptr<Group> group;
  std::shared_ptr<Liveness> liveness;
  bool gathering = false;
  {
    const std::lock_guard lock(leave_mutex_);
    group = group_;
    liveness = liveness_;
    gathering = gathering_ > 0;
  }
  if (liveness) liveness->remove(this);
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& [key, inbound] : inbound_) inbound->cancelled = true;
  }
  if (transport_) transport_->abort(why);
  if (gathering) group->abort(why);
  for (const uint64_t number : calls_.close(why)) end(number, why);
  calls_.stop();
  auto values = values_.close(why);  // functions that run may still use them
  const bool ended = !executor_ || executor_->stop(deadline);
  values.clear();  // what a function still uses is held by its reference
  std::unique_ptr<Transport> transport;
  {
    std::unique_lock lock(mutex_);
    quiet_.wait(lock, [this] { return sending_ == 0; });
    transport = std::move(transport_);
  }
  transport.reset();
  group->destroy();
  const std::lock_guard lock(leave_mutex_);
  group_.reset();
  liveness_.reset();
  left_.notify_all();
  return ended;
}

}  // namespace backplane::core::rpc
