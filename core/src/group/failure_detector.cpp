// SPDX-License-Identifier: Apache-2.0
#include "group/failure_detector.hpp"

#include <algorithm>
#include <exception>

#include "liveness/process_identity.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kReplyNs = 100'000'000;

}  // namespace

std::shared_ptr<FailureDetector> FailureDetector::enroll(Store& store, int32_t rank, Deadline deadline) {
  std::shared_ptr<FailureDetector> made(new FailureDetector);
  // `raw` outlives the membership, which the destructor ends first.
  const auto report = [raw = made.get()](const Loss& loss) { raw->report(loss); };
  made->membership_ = store.enroll({"", rank, process_identity()}, report, deadline);
  return made;
}

FailureDetector::~FailureDetector() { membership_.reset(); }

void FailureDetector::add(Listener* listener) {
  const std::lock_guard listening(listeners_mutex_);
  listeners_.insert(listener);
  std::vector<Loss> before;
  {
    const std::lock_guard lock(mutex_);
    before = losses_;
  }
  for (const Loss& loss : before) listener->on_loss(loss);
}

void FailureDetector::remove(Listener* listener) {
  const std::lock_guard listening(listeners_mutex_);
  listeners_.erase(listener);
}

void FailureDetector::report(const Loss& loss) {
  {
    const std::lock_guard lock(mutex_);
    losses_.push_back(loss);
  }
  try {
    notifier_.add([this, loss] { notify(loss); });
  } catch (const std::exception&) {  // no thread can be started
    notify(loss);
  }
}

void FailureDetector::notify(const Loss& loss) {
  const std::lock_guard listening(listeners_mutex_);
  for (Listener* listener : listeners_) listener->on_loss(loss);
}

std::optional<Loss> FailureDetector::loss_among(const std::vector<int32_t>& ranks) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(losses_.begin(), losses_.end(), [&ranks](const Loss& loss) { return concerns(loss, ranks); });
  return found == losses_.end() ? std::nullopt : std::optional<Loss>(*found);
}

bool FailureDetector::has_left(int32_t rank, Deadline deadline) {
  if (rank < 0) return false;
  try {
    const Absences absences = this->absences(std::min(deadline, Deadline::after(kReplyNs)));
    const auto absence = absences.find(rank);
    return absence != absences.end() && absence->second == Absence::kLeft;
  } catch (const Error&) {
    return false;  // the store is busy, or lost, which it reports as a loss
  }
}

std::vector<int32_t> FailureDetector::lost_among(const std::vector<int32_t>& ranks) const {
  std::vector<int32_t> lost;
  const std::lock_guard lock(mutex_);
  for (const Loss& loss : losses_) {
    const auto found = std::find(ranks.begin(), ranks.end(), loss.rank);
    if (!loss.store && found != ranks.end()) lost.push_back(static_cast<int32_t>(found - ranks.begin()));
  }
  return lost;
}

bool FailureDetector::is_known_loss(const Error& error, const std::vector<int32_t>& ranks) const {
  if (error.status() != BP_PEER_LOST) return false;
  const auto loss = loss_among(ranks);
  return loss && loss->text == error.what();
}

bool concerns(const Loss& loss, const std::vector<int32_t>& ranks) {
  return loss.store || std::find(ranks.begin(), ranks.end(), loss.rank) != ranks.end();
}

Error loss_error(const Loss& loss, const std::vector<int32_t>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), loss.rank);
  const auto peer = static_cast<int32_t>(found - ranks.begin());
  return Error(BP_PEER_LOST, loss.text, loss.rank < 0 || found == ranks.end() ? -1 : peer);
}

}  // namespace backplane::core
