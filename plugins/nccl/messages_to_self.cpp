// SPDX-License-Identifier: Apache-2.0
//
// Messages of a rank to itself: copies.
#include <cstring>
#include <utility>

#include "messages.hpp"

namespace backplane::nccl {
namespace {

constexpr size_t kMostCopies = 64;  // in a stream

}  // namespace

std::unique_ptr<sdk::Work> Messages::send_to_self(uint64_t tag, Transfer mine) {
  if (mine.bytes == 0) {
    mailbox_.deliver(rank_, tag, {});
    return nullptr;
  }
  std::shared_ptr<MessageEnd> done = mine.done;
  const uint64_t bytes = mine.bytes;
  const bool is_host = mine.is_host;
  uint64_t id = 0;
  std::unique_ptr<sdk::Work> made;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) throw *failed_;
    id = ++next_id_;
    made = work(is_host, std::move(done), [this, id] { cancel_send(rank_, id); });
    at(rank_).out.emplace(id, std::move(mine));
  }
  try {
    mailbox_.announce(rank_, tag, bytes, id, [this, id](sdk::Receive* receive) { return fetch_own(id, receive); });
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    at(rank_).out.erase(id);
    throw;
  }
  wake_();
  return made;
}

bool Messages::fetch_own(uint64_t id, sdk::Receive* receive) {
  const std::lock_guard lock(mutex_);
  const auto found = at(rank_).out.find(id);
  if (found == at(rank_).out.end()) return false;
  if (receive == nullptr) {
    found->second.done->finish();
  } else {
    const uint64_t bytes = found->second.bytes;
    if (found->second.is_host && static_cast<const Incoming&>(*receive->received).is_host) {
      std::memcpy(receive->data, found->second.data, bytes);
      found->second.done->finish();
      receive->received->finish();
    } else {
      copies_.emplace_back();  // without memory they stay where they were
      copies_.back().from = std::move(found->second);
      copies_.back().to = incoming(*receive, bytes);
    }
  }
  at(rank_).out.erase(found);
  wake_();
  return true;
}

bool Messages::progress_copies() {
  const std::lock_guard lock(mutex_);
  if (copies_.empty()) return false;
  const OnDevice here(c_.api, c_.device);
  size_t begun = 0;  // more might fill the stream, and block this thread
  for (Copy& copy : copies_) {
    if (begun++ == kMostCopies) break;
    if (!copy.copied) begin(copy);
  }
  return std::erase_if(copies_, [](const Copy& copy) {
           if (!copy.copied || !copy.copied->passed()) return false;
           if (copy.to.is_host) std::memcpy(copy.to.data, copy.pinned.data(), copy.from.bytes);
           copy.from.done->finish();
           copy.to.done->finish();
           return true;
         }) > 0;
}

// At least one end is on the device.
void Messages::begin(Copy& copy) {
  const auto& [from, to, pinned, copied] = copy;
  for (const Transfer* const end : {&from, &to}) {
    if (end->after) check(c_.api, c_.api.cuda.stream_wait_event(copying_.get(), end->after->get(), 0), "ordering");
  }
  if (from.is_host || to.is_host) copy.pinned = Piece(c_.pool, from.bytes, Where::kHost);
  if (from.is_host) std::memcpy(pinned.data(), from.data, from.bytes);
  check(c_.api,
        c_.api.cuda.memcpy_async(to.is_host ? pinned.data() : to.data, from.is_host ? pinned.data() : from.data,
                                 from.bytes, cudaMemcpyDefault, copying_.get()),
        "copying a message to this rank itself");
  copy.copied = std::make_shared<const Event>(c_.pool, copying_.get());
  for (const Transfer* const end : {&from, &to}) {
    if (!end->is_host) end->done->enter(copy.copied);
  }
}

}  // namespace backplane::nccl
