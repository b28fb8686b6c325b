// SPDX-License-Identifier: Apache-2.0
#include "completions.hpp"

#include <cstring>
#include <string>

namespace backplane::shm {

void Completions::leave_in_flight(Operation& operation) {
  progress_thread_.operation_started();
  operation.is_async = true;
}

void Completions::add_notice(Operation& operation, const sdk::Notice& notice) {
  notices_.emplace(&operation, notice);
  operation.has_notice = true;
}

// The status is written last. With membarrier, sleepers execute the fence. The work's destructor waits until its notice
// has been given (~MessageWork).
void Completions::end(Operation& operation, Operation::Status status) {
  operation.stage = Operation::Stage::kNone;
  if (operation.is_async) progress_thread_.operation_ended();
  is_wake_due_ = true;
  if (!operation.has_notice)
    return operation.status.store(status, membarrier_ ? std::memory_order_release : std::memory_order_seq_cst);
  const auto found = notices_.find(&operation);
  sdk::Notice notice = found->second;
  notices_.erase(found);
  operation.status.store(status);
  notice.give();
}

void Completions::fail(Operation& operation, const sdk::Failure& why) {
  operation.failure.emplace(why);
  end(operation, Operation::Status::kFailed);
}

bool Completions::fits(Operation& receive, int32_t source, uint64_t tag, uint64_t size) {
  if (receive.result != nullptr) {
    receive.result->source = source;
    receive.result->bytes = size;
    receive.result->tag = tag;
  }
  if (size <= receive.size) return true;
  fail(receive, sdk::Failure(BP_INVALID,
                             "a message of " + std::to_string(size) + " bytes from rank " + std::to_string(source) +
                                 " does not fit the receive buffer of " + std::to_string(receive.size) + " bytes",
                             source));
  return false;
}

void Completions::deliver(Operation& receive, int32_t source, uint64_t tag, const std::byte* data, uint64_t size) {
  if (!fits(receive, source, tag, size)) return;
  if (size > 0) std::memcpy(receive.data, data, size);
  finish(receive);
}

}  // namespace backplane::shm
