// SPDX-License-Identifier: Apache-2.0
#include "group/liveness.hpp"

#include <algorithm>

#include "liveness/process_identity.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kAskNs = 100'000'000;

}  // namespace

std::shared_ptr<Liveness> Liveness::enroll(Store& store, int32_t rank, Deadline deadline) {
  std::shared_ptr<Liveness> made(new Liveness);
  // The membership ends before what it calls.
  const auto hear = [raw = made.get()](const Loss& loss) { raw->hear(loss); };
  made->membership_ = store.enroll({"", rank, process_identity()}, hear, deadline);
  return made;
}

Liveness::~Liveness() { membership_.reset(); }

void Liveness::add(Listener* listener) {
  const std::lock_guard listening(listeners_mutex_);
  listeners_.insert(listener);
  std::vector<Loss> before;
  {
    const std::lock_guard lock(mutex_);
    before = losses_;
  }
  for (const Loss& loss : before) listener->on_loss(loss);
}

void Liveness::remove(Listener* listener) {
  const std::lock_guard listening(listeners_mutex_);
  listeners_.erase(listener);
}

void Liveness::hear(const Loss& loss) {
  {
    const std::lock_guard lock(mutex_);
    losses_.push_back(loss);
  }
  heard_.notify_all();
  const std::lock_guard listening(listeners_mutex_);
  for (Listener* listener : listeners_) listener->on_loss(loss);
}

std::optional<Loss> Liveness::loss_among(const std::vector<int32_t>& ranks) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(losses_.begin(), losses_.end(), [&ranks](const Loss& loss) { return concerns(loss, ranks); });
  return found == losses_.end() ? std::nullopt : std::optional<Loss>(*found);
}

std::optional<Loss> Liveness::await_loss(const std::vector<int32_t>& ranks, int32_t suspect, Deadline deadline) {
  while (watches()) {
    if (auto loss = loss_among(ranks); loss || deadline.passed()) return loss;
    if (suspect >= 0) {
      try {
        const Absences absences = this->absences(std::min(deadline, Deadline::after(kAskNs)));
        const auto absence = absences.find(suspect);
        if (absence != absences.end() && absence->second == Absence::kLeft) return loss_among(ranks);
      } catch (const Error&) {
        // The store is lost or busy, of which there will be news.
      }
    }
    const Deadline again = std::min(deadline, Deadline::after(kAskNs));
    std::unique_lock lock(mutex_);
    const auto told = [this, &ranks] {
      return std::any_of(losses_.begin(), losses_.end(), [&ranks](const Loss& loss) { return concerns(loss, ranks); });
    };
    heard_.wait_until(lock, again.at(), told);
  }
  return std::nullopt;
}

bool Liveness::anybody_lost() const {
  const std::lock_guard lock(mutex_);
  return !losses_.empty();
}

bool concerns(const Loss& loss, const std::vector<int32_t>& ranks) {
  return loss.store || std::find(ranks.begin(), ranks.end(), loss.rank) != ranks.end();
}

Error loss_error(const Loss& loss, const std::vector<int32_t>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), loss.rank);
  const auto peer = static_cast<int32_t>(found - ranks.begin());
  return Error(BP_PEER_LOST, loss.text, loss.rank < 0 || found == ranks.end() ? -1 : peer);
}

bool is_known_loss(const Error& error, const Liveness& liveness, const std::vector<int32_t>& ranks) {
  if (error.status() != BP_PEER_LOST) return false;
  const auto loss = liveness.loss_among(ranks);
  return loss && loss->text == error.what();
}

}  // namespace backplane::core
