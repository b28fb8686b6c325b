// SPDX-License-Identifier: Apache-2.0
#include "store/request_handler.hpp"

#include <new>

#include "error.hpp"
#include "store/checks.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

// Estimates of the memory of a waiting request, and of each of its keys in addition to its bytes.
constexpr size_t kWaiterBytes = 320;
constexpr size_t kKeyBytes = sizeof(std::string);

bool waits(RequestKind operation) { return operation == RequestKind::kGet || operation == RequestKind::kWait; }

// Clients check their arguments; this refuses malformed requests.
void check_request(const StoreRequest& request) {
  const auto& texts = request.texts;
  switch (request.operation) {
    case RequestKind::kSet:
      expect_texts(request, 2);
      return check_value(texts[0], texts[1]);
    case RequestKind::kCompareSet:
      expect_texts(request, 3);
      return check_values(texts[0], texts[1], texts[2]);
    case RequestKind::kGet:
    case RequestKind::kAdd:
    case RequestKind::kRemove:
    case RequestKind::kRemovePrefix:
      expect_texts(request, 1);
      return check_key(texts[0]);
    case RequestKind::kWait:
    case RequestKind::kCheck:
      return check_keys(texts);
    case RequestKind::kNumKeys:
    case RequestKind::kCancel:
      return expect_texts(request, 0);
    case RequestKind::kEnroll:  // for the membership table
    case RequestKind::kWithdraw:
    case RequestKind::kLeave:
    case RequestKind::kAbsences:
    case RequestKind::kHeartbeat:
    case RequestKind::kReportEnd:
      break;
  }
  fail(BP_INVALID, "operation {} is unknown to this store", static_cast<int>(request.operation));
}

}  // namespace

void expect_texts(const StoreRequest& request, size_t count) {
  const size_t given = request.texts.size();
  if (given != count) fail(BP_INVALID, "a request has {} arguments instead of {}", given, count);
}

void RequestHandler::handle(ClientId client, StoreRequest request) {
  const uint64_t id = request.id;
  try {
    check_request(request);
    if (request.operation == RequestKind::kCancel) {
      cancel(client, static_cast<uint64_t>(request.number));
    } else if (waits(request.operation)) {
      start_waiting(client, std::move(request));
    } else {
      deliver_({client, id, BP_OK, perform(request)});
    }
  } catch (const Error& e) {
    deliver_({client, id, e.status(), make_bytes(e.what())});
  } catch (const std::bad_alloc&) {
    deliver_({client, id, BP_RESOURCE, make_bytes("the store is out of memory")});
  }
}

Bytes RequestHandler::perform(StoreRequest& request) {
  auto& texts = request.texts;
  switch (request.operation) {
    case RequestKind::kSet:
      put(texts[0], make_bytes(std::move(texts[1])));
      return nullptr;
    case RequestKind::kAdd: {
      Bytes sum = make_bytes(std::to_string(table_.sum(texts[0], request.number)));
      put(texts[0], sum);
      return sum;
    }
    case RequestKind::kCheck:
      return make_bytes(table_.contains_all(texts) ? "1" : "0");
    case RequestKind::kCompareSet:
      if (table_.matches(texts[0], texts[1])) put(texts[0], make_bytes(std::move(texts[2])));
      return table_.find(texts[0]);
    case RequestKind::kRemove:
      return make_bytes(table_.remove(texts[0]) ? "1" : "0");
    case RequestKind::kRemovePrefix:
      table_.remove_prefix(texts[0]);
      return nullptr;
    case RequestKind::kNumKeys:
      return make_bytes(std::to_string(table_.size()));
    default:  // check_request refuses others
      break;
  }
  fail(BP_INTERNAL, "operation {} is not immediate", static_cast<int>(request.operation));
}

void RequestHandler::start_waiting(ClientId client, StoreRequest request) {
  const WaiterId id(client, request.id);
  if (waiters_.contains(id)) fail(BP_INVALID, "request {} of this client is already waiting", request.id);
  Waiter waiter{request.operation == RequestKind::kGet, std::move(request.texts)};
  if (!advance(waiter)) return reply(id, waiter);
  waiter.bytes = kWaiterBytes;
  for (const auto& key : waiter.keys) waiter.bytes += kKeyBytes + key.size();
  if (!budget_.take(client, waiter.bytes)) {
    fail(BP_RESOURCE, "the store refuses to let more calls wait: those that wait use its limit of {} MiB of memory",
         budget_.reserve() >> 20);
  }
  by_key_[waiter.keys[waiter.at]].insert(id);
  waiters_.emplace(id, std::move(waiter));
}

bool RequestHandler::advance(Waiter& waiter) const {
  // One full cycle: all keys must exist at the same time, and one may have been removed meanwhile.
  for (size_t step = 0; step < waiter.keys.size(); ++step) {
    if (!table_.contains(waiter.keys[waiter.at])) return true;
    waiter.at = (waiter.at + 1) % waiter.keys.size();
  }
  return false;
}

void RequestHandler::reply(const WaiterId& id, const Waiter& waiter) {
  deliver_({id.first, id.second, BP_OK, waiter.wants_value ? table_.find(waiter.keys.front()) : nullptr});
}

void RequestHandler::put(std::string_view key, Bytes value) {
  table_.set(key, std::move(value));
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  const std::set<WaiterId> woken = std::move(found->second);
  by_key_.erase(found);
  for (const auto& id : woken) {
    const auto waiter = waiters_.find(id);
    if (advance(waiter->second)) {
      by_key_[waiter->second.keys[waiter->second.at]].insert(id);
    } else {
      const Waiter finished = std::move(waiter->second);
      erase(waiter);
      reply(id, finished);
    }
  }
}

void RequestHandler::cancel(ClientId client, uint64_t request) {
  const auto waiter = waiters_.find({client, request});
  if (waiter == waiters_.end()) return;  // its reply has been sent
  const auto missing = table_.missing(waiter->second.keys);
  unlink(waiter);
  deliver_({client, request, BP_TIMEOUT, make_bytes(listed(missing))});
}

void RequestHandler::forget(ClientId client) {
  auto waiter = waiters_.lower_bound({client, 0});
  while (waiter != waiters_.end() && waiter->first.first == client) {
    waiter = unlink(waiter);
  }
}

RequestHandler::Waiters::iterator RequestHandler::unlink(Waiters::iterator waiter) {
  const auto found = by_key_.find(waiter->second.keys[waiter->second.at]);
  if (found != by_key_.end()) {
    found->second.erase(waiter->first);
    if (found->second.empty()) by_key_.erase(found);
  }
  return erase(waiter);
}

RequestHandler::Waiters::iterator RequestHandler::erase(Waiters::iterator waiter) {
  budget_.give_back(waiter->first.first, waiter->second.bytes);
  return waiters_.erase(waiter);
}

}  // namespace backplane::core
