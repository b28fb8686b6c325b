// SPDX-License-Identifier: Apache-2.0
#include "store/request_handler.hpp"

#include <new>

#include "error.hpp"
#include "store/checks.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr size_t kMaxWaiters = size_t{1} << 20;  // of all clients together

bool waits(Operation operation) { return operation == Operation::kGet || operation == Operation::kWait; }

// Clients check their arguments; this refuses malformed requests.
void check_request(const StoreRequest& request) {
  const auto& texts = request.texts;
  const auto expect = [&texts](size_t count) {
    if (texts.size() != count) fail(BP_INVALID, "a request has {} arguments instead of {}", texts.size(), count);
  };
  switch (request.operation) {
    case Operation::kSet:
      expect(2);
      return check_value(texts[0], texts[1]);
    case Operation::kCompareSet:
      expect(3);
      return check_values(texts[0], texts[1], texts[2]);
    case Operation::kGet:
    case Operation::kAdd:
    case Operation::kRemove:
      expect(1);
      return check_key(texts[0]);
    case Operation::kWait:
    case Operation::kCheck:
      return check_keys(texts);
    case Operation::kNumKeys:
    case Operation::kCancel:
      return expect(0);
    case Operation::kEnroll:  // for the membership table
    case Operation::kWithdraw:
    case Operation::kLeave:
    case Operation::kAbsences:
    case Operation::kHeartbeat:
      break;
  }
  fail(BP_INVALID, "operation {} is unknown to this store", static_cast<int>(request.operation));
}

}  // namespace

RequestHandler::RequestHandler(std::function<void(OutgoingReply)> deliver) : deliver_(std::move(deliver)) {}

void RequestHandler::handle(ClientId client, StoreRequest request) {
  const uint64_t id = request.id;
  try {
    check_request(request);
    if (request.operation == Operation::kCancel) {
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

Bytes RequestHandler::perform(const StoreRequest& request) {
  const auto& texts = request.texts;
  switch (request.operation) {
    case Operation::kSet:
      put(texts[0], make_bytes(texts[1]));
      return nullptr;
    case Operation::kAdd: {
      Bytes sum = make_bytes(std::to_string(table_.sum(texts[0], request.number)));
      put(texts[0], sum);
      return sum;
    }
    case Operation::kCheck:
      return make_bytes(table_.contains_all(texts) ? "1" : "0");
    case Operation::kCompareSet:
      if (table_.matches(texts[0], texts[1])) put(texts[0], make_bytes(texts[2]));
      return table_.find(texts[0]);
    case Operation::kRemove:
      return make_bytes(table_.remove(texts[0]) ? "1" : "0");
    case Operation::kNumKeys:
      return make_bytes(std::to_string(table_.size()));
    default:  // check_request refuses others
      break;
  }
  fail(BP_INTERNAL, "operation {} is not immediate", static_cast<int>(request.operation));
}

void RequestHandler::start_waiting(ClientId client, StoreRequest request) {
  if (waiters_.size() >= kMaxWaiters)
    fail(BP_RESOURCE, "the store cannot hold more than {} waiting calls", waiters_.size());
  const WaiterId id(client, request.id);
  const auto [waiter, fresh] =
      waiters_.emplace(id, Waiter{request.operation == Operation::kGet, std::move(request.texts), 0});
  if (!fresh) fail(BP_INVALID, "request {} of this client is already waiting", request.id);
  if (advance(waiter->second)) {
    by_key_[waiter->second.keys[waiter->second.at]].insert(id);
  } else {
    finish(waiter);
  }
}

bool RequestHandler::advance(Waiter& waiter) const {
  // One full cycle: all keys must exist at the same time, and one may have been removed meanwhile.
  for (size_t step = 0; step < waiter.keys.size(); ++step) {
    if (!table_.contains(waiter.keys[waiter.at])) return true;
    waiter.at = (waiter.at + 1) % waiter.keys.size();
  }
  return false;
}

void RequestHandler::finish(std::map<WaiterId, Waiter>::iterator waiter) {
  const auto [client, request] = waiter->first;
  Bytes payload = waiter->second.wants_value ? table_.find(waiter->second.keys.front()) : nullptr;
  waiters_.erase(waiter);
  deliver_({client, request, BP_OK, std::move(payload)});
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
      finish(waiter);
    }
  }
}

void RequestHandler::cancel(ClientId client, uint64_t request) {
  const auto waiter = waiters_.find({client, request});
  if (waiter == waiters_.end()) return;  // its answer is on the way
  const auto missing = table_.missing(waiter->second.keys);
  unlink(waiter->first, waiter->second.keys[waiter->second.at]);
  waiters_.erase(waiter);
  deliver_({client, request, BP_TIMEOUT, make_bytes(listed(missing))});
}

void RequestHandler::forget(ClientId client) {
  auto waiter = waiters_.lower_bound({client, 0});
  while (waiter != waiters_.end() && waiter->first.first == client) {
    unlink(waiter->first, waiter->second.keys[waiter->second.at]);
    waiter = waiters_.erase(waiter);
  }
}

void RequestHandler::unlink(const WaiterId& id, const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  found->second.erase(id);
  if (found->second.empty()) by_key_.erase(found);
}

}  // namespace backplane::core
