// SPDX-License-Identifier: Apache-2.0
//
// What goes along express connections, and what is early because of them.
#include <exception>
#include <iterator>
#include <utility>

#include "address.hpp"
#include "agent.hpp"
#include "fault.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr char kGreeting = '!';

// Has all of it been heard?
bool covers(const Before& heard, const Before& before) {
  if (before.messages == 0 || heard.express > before.express) return true;
  if (heard.express < before.express) return false;
  return heard.messages >= before.messages;
}

}  // namespace

void Agent::offer_express() {
  if (!endpoint_.express) return;
  card_.express = unique_name();
  express_listener_ = endpoint_.express->listen(card_.express);
}

void Agent::connect_express(int32_t to, const Card& card) {
  if (!endpoint_.express || card.express.empty() || card.host != card_.host || !has_room_for_express()) return;
  {
    const std::lock_guard lock(mutex_);
    if (peers_[static_cast<size_t>(to)].no_express) return;
  }
  const Express express = endpoint_.express->connect(card.express);
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.pipe) peer.express = express;  // else it has broken already
  }
  watch_express(to, express);
}

// Nothing comes back along one but a greeting, and its end.
void Agent::watch_express(int32_t to, const Express& express) {
  express->read([this, to, weak = std::weak_ptr(express)](const ::tensorpipe::Error& error, const void*, size_t) {
    const Express same = weak.lock();
    if (!same || over_) return;
    if (!error && open_express(to, same)) return watch_express(to, same);
    if (!forget_express(to, same)) return;
    core_.lost(to, error ? failure_of(error, to) : sdk::Failure(BP_INTERNAL, "it answers where nothing was asked", to));
  });
}

// False: it was, or was forgotten.
bool Agent::open_express(int32_t to, const Express& express) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.express != express || peer.is_open) return false;
  return peer.is_open = true;
}

void Agent::write_express(int32_t to, const Express& express, const Kept& message, const Before& before) {
  const uint64_t id = message->message.id();
  try {
    const auto bytes = std::make_shared<const std::string>(
        to_tensorpipe(message->message, peers_[static_cast<size_t>(to)].token, rank_, nullptr, before).metadata);
    // Who reads it hears of its end, too, and forgets it.
    express->write(bytes->data(), bytes->size(), [this, to, id, bytes](const ::tensorpipe::Error& error) {
      if (error && !over_) core_.failed(to, id, failure_of(error, to));
    });
  } catch (const std::exception& e) {  // no memory; its receiver would wait for it
    const sdk::Failure failure(BP_RESOURCE, std::string("it could not be sent: ") + e.what(), to);
    if (forget_express(to, express)) core_.lost(to, failure);
    core_.failed(to, id, failure);
  }
}

// With the pipe beside it if it was open. What breaks alone is not tried again. False: nothing was lost with it, or it
// was forgotten before.
bool Agent::forget_express(int32_t to, const Express& express) {
  Pipe pipe;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.express != express) return false;
    peer.no_express = true;
    if (peer.is_open) pipe = peer.pipe;
    if (!pipe) peer.express = nullptr;  // the caller has it, too
  }
  if (pipe) return forget(to, pipe);
  express->close();
  return false;
}

void Agent::accept_express(const std::shared_ptr<::tensorpipe::transport::Listener>& listener) {
  listener->accept([this, weak = std::weak_ptr(listener)](const ::tensorpipe::Error& error, const Express& express) {
    const auto same = weak.lock();
    if (!same || over_) return;
    if (error) {  // whoever comes later sends all along its pipe
      host_.log(BP_LOG_INFO, "no more express connections: " + error.what());
      return same->close();
    }
    {
      const std::lock_guard lock(mutex_);
      if (!over_) incoming_express_.insert(express);
    }
    accept_express(same);
    express->write(&kGreeting, sizeof(kGreeting), [](const ::tensorpipe::Error&) {});
    read_express(express, std::make_shared<Incoming>());
  });
}

void Agent::read_express(const Express& express, const std::shared_ptr<Incoming>& incoming) {
  express->read([this, incoming, weak = std::weak_ptr(express)](const ::tensorpipe::Error& error, const void* data,
                                                                size_t size) {
    const Express same = weak.lock();
    if (!same) return;
    const int32_t from = incoming->from;
    if (error) return drop_express(same, *incoming, failure_of(error, from));
    try {
      ::tensorpipe::Descriptor descriptor;
      descriptor.metadata.assign(static_cast<const char*>(data), size);
      auto arrival = std::make_unique<Arrival>(
          std::move(descriptor), card_.token, static_cast<int32_t>(peers_.size()), core_.max_message_bytes(),
          memory_.get(), [this](int32_t rank) -> const DeviceSet& { return staging_->open_to(rank); });
      const Before before = arrival->before();
      incoming->from = arrival->from();
      incoming->express = before.express;
      if (arrival->wants_receipt() || before.express == 0) {
        throw sdk::Failure(
            BP_INVALID, "a message of rank " + std::to_string(arrival->from()) + " was refused: it belongs to its pipe",
            arrival->from());
      }
      deliver(nullptr, std::move(arrival));
      count_express(incoming->from, before.express);
    } catch (const sdk::Failure& e) {
      host_.log(BP_LOG_WARN, e.what());
      if (e.peer_rank() >= 0) incoming->from = e.peer_rank();
      return drop_express(same, *incoming, e);
    } catch (const std::exception& e) {
      host_.log(BP_LOG_WARN, e.what());
      return drop_express(same, *incoming, sdk::Failure(BP_RESOURCE, e.what(), from));
    }
    read_express(same, incoming);
  });
}

// A goodbye that waits for what was on it has waited long enough.
void Agent::drop_express(const Express& express, const Incoming& incoming, const sdk::Failure& why) {
  {
    const std::lock_guard lock(mutex_);
    incoming_express_.erase(express);
  }
  express->close();
  if (incoming.from >= 0) count_express(incoming.from, incoming.express, true);
  lose(incoming.from, incoming.express, why);
}

// One message more along it. `all`: there will be no more.
void Agent::count_express(int32_t from, uint64_t express, bool all) {
  std::vector<Early> due;
  {
    const std::lock_guard lock(mutex_);
    Before& heard = peers_[static_cast<size_t>(from)].heard;
    if (express > heard.express) heard = {express, 0};
    if (express == heard.express && heard.messages < UINT64_MAX) ++heard.messages;
    if (express == heard.express && all) heard.messages = UINT64_MAX;
    due = take_early(from, [&heard](const Early& early) { return covers(heard, early.arrival->before()); });
  }
  hand_over(std::move(due));
}

// With the lock.
std::vector<Agent::Early> Agent::take_early(int32_t from, const std::function<bool(const Early&)>& due) {
  std::vector<Early> taken;
  if (from < 0) return taken;
  std::vector<Early>& early = peers_[static_cast<size_t>(from)].early;
  for (auto each = early.begin(); each != early.end();) {
    if (!due(*each)) {
      ++each;
      continue;
    }
    taken.push_back(std::move(*each));
    each = early.erase(each);
  }
  return taken;
}

void Agent::hand_over(std::vector<Early> early) {
  for (Early& each : early) hand_over(each.pipe, std::move(each.arrival));
}

// Not one whose pipe has ended, with which all that is early is delivered, nor one of very many.
bool Agent::is_early(const Pipe& pipe, std::unique_ptr<Arrival>* arrival) {
  constexpr size_t kMost = 64;
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>((*arrival)->from())];
  if (covers(peer.heard, (*arrival)->before()) || !incoming_.contains(pipe) || peer.early.size() == kMost) return false;
  peer.early.push_back({pipe, std::move(*arrival)});
  return true;
}

}  // namespace backplane::tensorpipe
