// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "address.hpp"
#include "wire.hpp"

namespace backplane::zmq {
namespace {

std::chrono::milliseconds duration(const sdk::Options& options, const char* key) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(options.integer(key)));
}

// The address that the options name; empty if they name none.
std::string named_address(const sdk::Options& options) {
  const std::string& interface = options.text("iface");
  if (!interface.empty()) return interface_address(interface);
  const std::string& address = options.text("address");
  return address.empty() ? "" : checked_address(address);
}

}  // namespace

Settings read_settings(const sdk::Context& context) {
  const sdk::Options& options = context.options;
  Settings settings;
  settings.address = sdk::listening_address(context, named_address(options));
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
  // libzmq reads no heartbeats while the queue is full, and would end live connections.
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
