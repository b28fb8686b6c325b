// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "address.hpp"
#include "wire.hpp"

namespace backplane::zmq {
namespace {

std::chrono::milliseconds duration(const sdk::Options& options, const char* key) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(options.integer(key)));
}

}  // namespace

Settings read_settings(const sdk::Options& options) {
  Settings settings;
  const std::string& interface = options.text("iface");
  settings.address = interface.empty() ? checked_address(options.text("address")) : interface_address(interface);
  settings.ipc = options.text("transport") == "ipc";
  settings.io_threads = static_cast<int>(options.integer("io_threads"));
  settings.linger = duration(options, "linger");
  settings.send_high_water_mark = static_cast<int>(options.integer("sndhwm"));
  settings.eager_limit = static_cast<uint64_t>(options.integer("eager_limit"));
  settings.eager_window = static_cast<uint64_t>(options.integer("eager_window"));
  settings.chunk_size = static_cast<uint64_t>(options.integer("chunk_size"));
  settings.max_message_size = options.integer("max_message_size");
  settings.connect_timeout = duration(options, "connect_timeout");
  settings.poll = std::chrono::nanoseconds(options.integer("poll"));
  settings.heartbeat = duration(options, "heartbeat");
  settings.receive_high_water_mark = static_cast<int>(options.integer("rcvhwm"));
  // What is in the way of heartbeats ends living connections: libzmq reads none while the queue is full.
  if (settings.receive_high_water_mark == 0)
    settings.receive_high_water_mark = settings.heartbeat.count() > 0 ? 256 : 16;
  const auto largest = static_cast<uint64_t>(settings.max_message_size) - kHeadSize;
  if (settings.chunk_size > largest || settings.eager_limit > largest) {
    throw sdk::Failure(BP_INVALID, "zmq: chunk_size and eager_limit must be at least " + std::to_string(kHeadSize) +
                                       " bytes below max_message_size (" + std::to_string(settings.max_message_size) +
                                       ")");
  }
  return settings;
}

}  // namespace backplane::zmq
