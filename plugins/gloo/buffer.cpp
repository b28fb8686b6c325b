// SPDX-License-Identifier: Apache-2.0
#include "buffer.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "progress.hpp"

namespace backplane::gloo {
namespace {

constexpr uint64_t kFirstCapacity = uint64_t{64} * 1024;

thread_local Clock::time_point scope_deadline = Clock::time_point::max();

}  // namespace

DeadlineScope::DeadlineScope(Clock::time_point deadline) : outer_(scope_deadline) { scope_deadline = deadline; }
DeadlineScope::~DeadlineScope() { scope_deadline = outer_; }
Clock::time_point DeadlineScope::current() { return scope_deadline; }

std::span<char> ArrivingBytes::room(uint64_t arrived, uint64_t length) {
  if (arrived == capacity_ && arrived < length) {
    const uint64_t capacity = std::min(length, std::max(2 * capacity_, kFirstCapacity));
    char* const data = static_cast<char*>(std::realloc(data_.get(), capacity));
    if (data == nullptr) throw std::bad_alloc();
    static_cast<void>(data_.release());  // realloc has freed or extended it
    data_.reset(data);
    capacity_ = capacity;
  }
  return {data_.get() + arrived, static_cast<size_t>(capacity_ - arrived)};
}

Buffer::Buffer(const std::shared_ptr<::gloo::transport::tcp::Context>& context, std::shared_ptr<const Health> health,
               void* data, size_t size, Lengths lengths, Clock::time_point deadline)
    : UnboundBuffer(context, data, size), health_(std::move(health)), lengths_(lengths), deadline_(deadline) {}

bool Buffer::wait(const int& completions, std::condition_variable& changed, Clock::time_point until) {
  std::unique_lock lock(m_);
  while (completions == 0) {
    throwIfException();
    health_->failure.check();  // first, because the group may have been aborted before the wait
    const Clock::time_point now = Clock::now();
    const bool late = now >= until;
    const Clock::time_point slice = std::min(until, now + kCheckInterval);
    if (ProgressScope* const progress_scope =
            ProgressScope::current()) {  // even at the deadline: no other thread moves the bytes
      lock.unlock();
      progress_scope->advance(slice);
      lock.lock();
    } else if (!late) {
      changed.wait_until(lock, slice);  // NOLINT(bugprone-spuriously-wake-up-functions): in the loop above
    }
    if (late) return completions > 0;
  }
  return true;
}

bool Buffer::received(Clock::time_point until) { return wait(recvCompletions_, recvCv_, until); }
bool Buffer::sent(Clock::time_point until) { return wait(sendCompletions_, sendCv_, until); }

bool Buffer::has_received() {
  const std::lock_guard lock(m_);
  return recvCompletions_ > 0;
}

bool Buffer::has_sent() {
  const std::lock_guard lock(m_);
  return sendCompletions_ > 0;
}

bool Buffer::waitRecv(int* rank, std::chrono::milliseconds) {
  if (!received(deadline_)) throw sdk::Failure(BP_TIMEOUT, "a message from another rank has not arrived");
  const std::lock_guard lock(m_);
  if (mismatched_rank_ >= 0) {
    throw sdk::Failure(BP_INVALID,
                       "rank " + std::to_string(mismatched_rank_) + " sent " + std::to_string(length_) +
                           " bytes where this rank expects " + std::to_string(expected_) +
                           ": the ranks disagree about the operation, its count or its dtype",
                       mismatched_rank_);
  }
  --recvCompletions_;
  if (rank != nullptr) *rank = recvRank_;
  return true;
}

bool Buffer::waitSend(int* rank, std::chrono::milliseconds) {
  if (!sent(deadline_)) throw sdk::Failure(BP_TIMEOUT, "another rank has not received a message");
  const std::lock_guard lock(m_);
  --sendCompletions_;
  if (rank != nullptr) *rank = sendRank_;
  return true;
}

void Buffer::begin_message(uint64_t length, uint64_t room, int rank) {
  const std::lock_guard lock(m_);
  if (lengths_ == Lengths::kExact) {
    if (length == room || mismatched_rank_ >= 0) return;
    mismatched_rank_ = rank;
    expected_ = room;
  }
  length_ = length;
}

uint64_t Buffer::length() {
  const std::lock_guard lock(m_);
  return length_;
}

int Buffer::source() {
  const std::lock_guard lock(m_);
  return recvRank_;
}

void Buffer::deliver(const void* data, uint64_t bytes, int rank) {
  if (bytes > 0 && bytes <= size) std::memcpy(ptr, data, bytes);
  begin_message(bytes, size, rank);
  handleRecvCompletion(rank);
}

void Buffer::keep(ArrivingBytes bytes) {
  const std::lock_guard lock(m_);
  kept_ = std::move(bytes);
}

}  // namespace backplane::gloo
