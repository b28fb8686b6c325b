// SPDX-License-Identifier: Apache-2.0
//
// Requests: their start, progress and end.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "commands.hpp"

namespace stub {
namespace {

size_t bytes_of(const Request& request) {
  size_t bytes = 0;
  for (const Outgoing& each : request.sends) bytes += each.bytes;
  return bytes;
}

void send_all(World& world, Request& request) {
  if (request.is_sent) return;
  request.is_sent = true;
  for (const Outgoing& each : request.sends) {
    const int to = request.comm->world_ranks[static_cast<size_t>(each.to)];
    world.mailbox.send(to, {request.context, request.comm->rank, request.tag, {}}, each.data, each.bytes);
  }
}

// Receives match in the order in which they began, whichever is tested first.
void match(World& world, Request& request) {
  if (!request.wanted) return;
  auto& arrived = world.mailbox.arrived;
  const auto found = std::find_if(arrived.begin(), arrived.end(), [&request](const Packet& packet) {
    return matches(packet, request.context, *request.wanted);
  });
  if (found == arrived.end()) return;
  describe(*found, &request.status);
  request.wanted.reset();
  request.receives.front().has_come = true;
  request.packets.front() = std::move(found->data);
  arrived.erase(found);
}

// Takes what has arrived. Whether all has.
bool receive_all(World& world, Request& request) {
  if (request.wanted) return false;
  bool all = true;
  for (size_t i = 0; i < request.receives.size(); ++i) {
    Incoming& wanted = request.receives[i];
    if (wanted.has_come) continue;
    auto& arrived = world.mailbox.arrived;
    const auto found = std::find_if(arrived.begin(), arrived.end(), [&request, &wanted](const Packet& packet) {
      return packet.context == request.context && packet.tag == request.tag && packet.source == wanted.from;
    });
    wanted.has_come = found != arrived.end();
    all = all && wanted.has_come;
    if (!wanted.has_come) continue;
    request.packets[i] = std::move(found->data);
    arrived.erase(found);
  }
  return all;
}

// Uses all memory of the request, as a network might at any time.
void touch(const Request& request) {
  Bytes scratch;
  for (const Outgoing& each : request.sends) {
    const auto* const data = static_cast<const std::byte*>(each.data);
    scratch.assign(data, data + each.bytes);
  }
  for (const auto& [array, bytes] : request.numbers) {
    const auto* const data = static_cast<const std::byte*>(array);
    scratch.assign(data, data + bytes);
  }
  for (const Incoming& each : request.receives) {
    if (each.data != nullptr && each.bytes > 0) std::memset(each.data, 0x5a, each.bytes);
  }
}

void write_out(Request& request) {
  if (request.is_cancelled) return;
  for (size_t i = 0; i < request.receives.size(); ++i) {
    const Incoming& wanted = request.receives[i];
    const Bytes& packet = request.packets[i];
    if (packet.size() > wanted.bytes) request.result = kTruncated;
    const size_t bytes = std::min(packet.size(), wanted.bytes);
    if (wanted.data != nullptr && bytes > 0) std::memcpy(wanted.data, packet.data(), bytes);
  }
  if (request.finish && request.result == kSuccess) request.finish(request.packets);
}

}  // namespace

bool matches(const Packet& packet, uint64_t context, const Wanted& wanted) {
  return packet.context == context && (wanted.source == kAnySource || packet.source == wanted.source) &&
         (wanted.tag == kAnyTag || packet.tag == wanted.tag);
}

void describe(const Packet& packet, Status* status) {
  const auto bytes = static_cast<uint64_t>(packet.data.size());
  status->source = packet.source;
  status->tag = packet.tag;
  std::memcpy(status->internal, &bytes, sizeof bytes);
}

World& world() {
  static auto* const state = new World;  // never destroyed: threads may hang in MPI when the process ends
  return *state;
}

std::shared_ptr<Comm> World::comm_of(Handle handle) {
  const auto found = comms.find(value_of(handle));
  return found == comms.end() ? nullptr : found->second;
}

// A held request keeps none of the later ones from being sent.
void World::advance() {
  for (Request* request : order) {
    is_held(request->function) ? touch(*request) : send_all(*this, *request);
  }
  mailbox.receive();
  for (Request* request : order) match(*this, *request);
}

Handle World::add(std::unique_ptr<Request> request) {
  Request* const added = request.get();
  added->packets.resize(added->receives.size());
  advance();  // messages keep their order
  if (bytes_of(*added) <= kEager && !is_held(added->function)) send_all(*this, *added);
  order.push_back(added);
  requests.emplace(value_of(added), std::move(request));
  return added;
}

bool World::test(Request* request, int* result, Status* status) {
  advance();
  if (is_held(request->function) || !receive_all(*this, *request)) return false;
  if (is_late(request->function) && !request->is_cancel_asked) return false;
  write_out(*request);
  *result = request->result;
  *status = request->status;
  order.erase(std::find(order.begin(), order.end(), request));
  requests.erase(value_of(request));
  return true;
}

int begin(const char* function, Handle comm, int tag, Handle* request, const std::function<int(Request&)>& build) {
  if (const int code = enter(function); code != kSuccess) return code;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const std::shared_ptr<Comm> members = w.comm_of(comm);
  if (members == nullptr) return kBadComm;
  auto made = std::make_unique<Request>();
  made->function = function;
  made->comm = members;
  made->context = tag < 0 ? members->context + 1 : members->context;
  made->tag = tag < 0 ? members->collectives++ : tag;
  if (const int code = build(*made); code != kSuccess) return code;
  for (const Outgoing& each : made->sends) {
    if (each.to < 0 || each.to >= members->size()) return kBadRank;
  }
  *request = w.add(std::move(made));
  return kSuccess;
}

void meet(const std::shared_ptr<Comm>& comm, uint64_t context) {
  World& w = world();
  Request barrier;
  barrier.comm = comm;
  barrier.context = context;
  for (int rank = 0; rank < comm->size(); ++rank) {
    barrier.send(rank, nullptr, 0);
    barrier.receive(rank, nullptr, 0);
  }
  barrier.packets.resize(barrier.receives.size());
  for (;;) {
    {
      const std::lock_guard lock(w.mutex);
      w.advance();
      send_all(w, barrier);
      if (receive_all(w, barrier)) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // between two polls
  }
}

}  // namespace stub
