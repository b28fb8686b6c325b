// SPDX-License-Identifier: Apache-2.0
#include "drive.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "context.hpp"
#include "pair.hpp"

namespace backplane::gloo {
namespace {

// After this much time without a drive connections go back to gloo's thread: long enough for operations one after the
// other, short enough for those who notice that a peer has left.
constexpr long kIdleNs = 2'000'000;

// So many connections are read without asking first which of them have something.
constexpr size_t kFew = 2;

thread_local Drive* of_this_thread = nullptr;

timespec time_until(Clock::time_point until) {
  const Clock::time_point now = Clock::now();
  const int64_t left = until > now ? std::chrono::nanoseconds(until - now).count() : 0;
  return {left / 1'000'000'000, left % 1'000'000'000};
}

}  // namespace

Helm::Helm(::gloo::transport::tcp::Device& device)
    : device_(device), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  if (timer_ < 0) {
    throw sdk::Failure(BP_RESOURCE, "gloo: no descriptor left for a timer; raise this process's limit (ulimit -n)", -1,
                       errno);
  }
  device_.registerDescriptor(timer_, EPOLLIN, this);
}

Helm::~Helm() {
  device_.unregisterDescriptor(timer_, this);
  visits_.load(std::memory_order_acquire);  // gloo's own order is made in a library that ThreadSanitizer does not see
  close(timer_);
}

void Helm::add_bystander() {
  bystanders_.fetch_add(1);
  if (!take()) return;  // whoever has it will see
  release();
  leave();
}

void Helm::leave() {
  for (;;) {
    const bool awaited = bystanders_.load() > 0;
    if (awaited) release();
    taken_.store(false);
    if (awaited || bystanders_.load() == 0 || !take()) return;  // else one has come just now
  }
}

void Helm::release() {
  for (Pair* const pair : pairs_) pair->give_back();
  pairs_.clear();
  polled_.clear();
}

void Helm::handleEvents(int) {
  look_for_idleness();
  visits_.fetch_add(1, std::memory_order_release);
}

void Helm::look_for_idleness() {
  uint64_t expired = 0;
  if (read(timer_, &expired, sizeof(expired)) < 0) return;
  if (drives_.load() != drives_seen_) {
    drives_seen_ = drives_.load();
    return;
  }
  if (!take()) return;
  release();
  set_timer(false);
  leave();
}

void Helm::set_timer(bool on) {
  if (timer_on_ == on) return;
  const timespec time = {0, on ? kIdleNs : 0};
  const itimerspec spec = {time, time};
  timerfd_settime(timer_, 0, &spec, nullptr);
  timer_on_ = on;
}

Bystander::Bystander(Context* context) : helm_(context == nullptr ? nullptr : &context->helm()) {
  if (helm_ != nullptr) helm_->add_bystander();
}

Bystander::~Bystander() {
  if (helm_ != nullptr) helm_->remove_bystander();
}

Drive::Drive(Context* context) : context_(context), outer_(of_this_thread) {
  if (outer_ != nullptr || context_ == nullptr) return;
  leads_ = context_->helm().take();
  if (leads_) {
    of_this_thread = this;
  } else {
    bystander_.emplace(context_);
  }
}

Drive::~Drive() {
  if (!leads_) return;
  Helm& helm = context_->helm();
  of_this_thread = nullptr;
  helm.drives_.fetch_add(1);
  const bool written = std::all_of(helm.pairs_.begin(), helm.pairs_.end(), [](Pair* pair) { return pair->flush(); });
  if (!written) helm.release();
  if (!helm.pairs_.empty()) helm.set_timer(true);
  helm.leave();
}

Drive* Drive::here() {
  Drive* const drive = of_this_thread;
  return drive == nullptr || drive->context_->helm().pairs_.empty() ? nullptr : drive;
}

bool Drive::is_of(const Context& context) { return of_this_thread != nullptr && of_this_thread->context_ == &context; }

void Drive::join(Pair& pair) {
  if (!is_of(pair.owner()) || of_this_thread->ended_ || pair.is_driven()) return;
  Helm& helm = pair.owner().helm();
  helm.pairs_.reserve(helm.pairs_.size() + 1);
  helm.polled_.reserve(helm.polled_.size() + 1);
  const int fd = pair.take();
  if (fd < 0) return;
  helm.pairs_.push_back(&pair);
  helm.polled_.push_back({fd, POLLIN, POLLIN});
}

void Drive::advance(Clock::time_point until) {
  std::vector<pollfd>& polled = context_->helm().polled_;
  if (pass(false)) return;
  const auto something = [this, &polled] {
    const bool many = polled.size() > kFew;
    if (many && poll(polled.data(), polled.size(), 0) <= 0) return false;
    return pass(many);
  };
  if (context_->helm().spin_policy_.poll(until, something)) return;
  context_->helm().set_timer(false);  // it would wake gloo's thread all the while
  const timespec left = time_until(until);
  if (left.tv_sec > 0 || left.tv_nsec > 0) ppoll(polled.data(), polled.size(), &left, nullptr);
}

// True: something has moved.
bool Drive::pass(bool only_ready) {
  Helm& helm = context_->helm();
  bool moved = false;
  for (size_t i = 0; i < helm.pairs_.size(); ++i) {
    if (only_ready && helm.polled_[i].revents == 0) continue;
    const Pair::Progress progress = helm.pairs_[i]->advance();
    if (progress == Pair::Progress::kEnded) {
      ended_ = true;
      helm.release();
      return true;
    }
    moved = moved || progress == Pair::Progress::kMoved;
    helm.polled_[i].events = POLLIN | (progress == Pair::Progress::kBlocked ? POLLOUT : 0);
  }
  return moved;
}

}  // namespace backplane::gloo
