// SPDX-License-Identifier: Apache-2.0
#include "group/reporter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kTick = INT64_C(1000000000);
constexpr const char* kCount = "reporter/count";
constexpr uint64_t kKept = 64;  // queries in the store

std::string query_key(uint64_t number) { return fmt::format("reporter/{}", number); }
std::string answer_key(uint64_t number, int32_t rank) { return fmt::format("reporter/{}/{}", number, rank); }

std::string encode(const Query& query) {
  return nlohmann::json{{"kind", static_cast<uint32_t>(query.kind)},
                        {"group", query.group},
                        {"rank", query.rank},
                        {"seq", query.seq},
                        {"status", query.status},
                        {"culprit", query.failed_rank},
                        {"text", query.text}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<Query> decode(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    return Query{static_cast<Query::Kind>(json.at("kind").get<uint32_t>()),
                 json.at("group").get<std::string>(),
                 json.at("rank").get<int32_t>(),
                 json.at("seq").get<uint64_t>(),
                 json.at("status").get<int32_t>(),
                 json.at("culprit").get<int32_t>(),
                 json.at("text").get<std::string>()};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Reporter::Reporter(std::shared_ptr<Store> store, int32_t world_size) : store_(std::move(store)) {
  store_->set(kWorld, std::to_string(world_size), Deadline::after(kStoreTimeNs));
  seen_ = static_cast<uint64_t>(store_->add(kCount, 0, Deadline::after(kStoreTimeNs)));
  thread_ = start_quiet_thread("bp-reporter", [this] { work(); });
}

Reporter::~Reporter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  store_->interrupt(BP_CANCELLED, "the job's last group was destroyed");
  thread_.join();
}

Reporter::ListenerId Reporter::add(Listener listener) {
  const std::lock_guard lock(mutex_);
  return listeners_.insert(listeners_.end(), std::move(listener));
}

void Reporter::remove(ListenerId listener) {
  std::unique_lock lock(mutex_);
  if (std::this_thread::get_id() != thread_.get_id()) {
    returned_.wait(lock, [this, listener] { return called_ != &*listener; });
  }
  listeners_.erase(listener);
}

void Reporter::for_each(const std::function<void(const Listener&)>& call) {
  std::exception_ptr failure;
  std::unique_lock lock(mutex_);
  for (auto listener = listeners_.begin(); listener != listeners_.end();) {
    called_ = &*listener;
    lock.unlock();
    try {
      call(*listener);
    } catch (const Error&) {
      failure = std::current_exception();
    }
    lock.lock();
    called_ = nullptr;
    returned_.notify_all();
    ++listener;
  }
  lock.unlock();
  if (failure) std::rethrow_exception(failure);
}

void Reporter::work() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    try {
      if (!next(seen_ + 1)) tick();
    } catch (const Error& error) {
      if (error.status() != BP_TIMEOUT) return;  // interrupted, or the store is lost
    }
  }
}

// Waits a tick for query `number` and answers it. False: there is none.
bool Reporter::next(uint64_t number) {
  std::string text;
  try {
    text = store_->get(query_key(number), Deadline::after(kTick));
  } catch (const Error& error) {
    if (error.status() != BP_TIMEOUT) throw;
    // A query that is counted and still missing is skipped: its rank died before it sent the query.
    const auto count = static_cast<uint64_t>(store_->add(kCount, 0, Deadline::after(kStoreTimeNs)));
    missing_ = count >= number ? missing_ + 1 : 0;
    if (missing_ > 2) {
      missing_ = 0;
      seen_ = std::max(number, count - std::min(count, kKept));  // older ones were removed
    }
    return false;
  }
  missing_ = 0;
  seen_ = number;
  if (const std::optional<Query> query = decode(text)) answer(number, *query);
  return true;
}

void Reporter::answer(uint64_t number, const Query& query) {
  for_each([this, number, &query](const Listener& listener) {
    if (listener.group != query.group) return;
    const std::string text = listener.answer(query);
    if (!text.empty()) store_->set(answer_key(number, listener.rank), text, Deadline::after(kStoreTimeNs));
  });
}

void Reporter::tick() {
  for_each([](const Listener& listener) { listener.tick(); });
}

uint64_t Reporter::publish(Store& store, const Query& query, Deadline deadline) {
  const auto number = static_cast<uint64_t>(store.add(kCount, 1, deadline));
  store.set(query_key(number), encode(query), deadline);
  if (number > kKept) store.remove(query_key(number - kKept), deadline);
  return number;
}

std::map<int32_t, std::string> Reporter::collect(Store& store, uint64_t number, int32_t world_size, Deadline deadline) {
  std::map<int32_t, std::string> answers;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    try {
      answers[rank] = store.get(answer_key(number, rank), deadline);
      store.remove(answer_key(number, rank), Deadline::after(kStoreTimeNs));
    } catch (const Error& error) {
      if (error.status() != BP_TIMEOUT) throw;
      answers.erase(rank);
    }
  }
  return answers;
}

std::map<int32_t, std::string> Reporter::ask(const Query& query, int32_t world_size, Deadline deadline) {
  return collect(*store_, publish(*store_, query, Deadline::after(kStoreTimeNs)), world_size, deadline);
}

void Reporter::tell(const Query& query, Deadline deadline) { publish(*store_, query, deadline); }

std::map<int32_t, std::string> Reporter::traces(Store& store, Deadline deadline, int32_t* world_size) {
  *world_size = static_cast<int32_t>(std::atoi(store.get(kWorld, deadline).c_str()));
  const Query query = {Query::Kind::kTrace, kFirstGroup, -1, 0, 0, -1, ""};
  return collect(store, publish(store, query, deadline), *world_size, deadline);
}

}  // namespace backplane::core
