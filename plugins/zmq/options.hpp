// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <string>

#include "backplane/sdk/sdk.hpp"

namespace backplane::zmq {

using TimePoint = std::chrono::steady_clock::time_point;

constexpr bp_option text_option(const char* key, const char* value, const char* help) {
  return sdk::option({.key = key, .default_value = value, .help = help});
}

constexpr bp_option number_option(uint32_t type, const char* key, const char* value, double min, double max,
                                  const char* help, uint32_t flags = 0) {
  return sdk::option(
      {.type = type, .key = key, .default_value = value, .help = help, .min = min, .max = max, .flags = flags});
}

// The schema. Byte sizes are written as plain numbers, so that the text is the same before and after normalisation.
inline constexpr std::array kOptions = {
    text_option("address", "",
                "IPv4 or IPv6 address to listen on, never a wildcard; empty: the one from which this rank reaches the "
                "store, else 127.0.0.1; not used when iface is given"),
    text_option("iface", nullptr, "network interface whose address to listen on"),
    sdk::option({.type = BP_OPTION_ENUM,
                 .key = "transport",
                 .default_value = "tcp",
                 .help = "tcp, or ipc: local sockets between ranks of one host that both say so, TCP between others",
                 .choices = "tcp|ipc"}),
    number_option(BP_OPTION_INT, "io_threads", "1", 1, 16, "threads of libzmq that move bytes"),
    number_option(BP_OPTION_DURATION, "linger", "3s", 0, 60e9, "how long destroy waits for outgoing messages"),
    number_option(BP_OPTION_INT, "sndhwm", "256", 1, 1e6,
                  "messages per peer queued in libzmq for sending; further ones wait outside it"),
    number_option(BP_OPTION_INT, "rcvhwm", "0", 0, 1e6,
                  "messages per peer queued in libzmq after arrival; 0: 16, so that pieces of large messages stay in "
                  "the cache, or "
                  "256 with heartbeats, which libzmq does not read behind a full queue"),
    number_option(BP_OPTION_BYTES, "eager_limit", "1048576", 0, 16777216,
                  "largest message that is sent before the receiver asks for it", BP_OPTION_SAME_ON_ALL),
    number_option(BP_OPTION_BYTES, "eager_window", "8388608", 65536, 1073741824,
                  "bytes of such messages from one peer that may be unreceived", BP_OPTION_SAME_ON_ALL),
    number_option(BP_OPTION_BYTES, "chunk_size", "262144", 4096, 1073741824, "size of the pieces of larger messages"),
    number_option(BP_OPTION_BYTES, "max_message_size", "67108864", 65536, 2147483648.0,
                  "a connection that announces a larger piece is closed before memory is taken", BP_OPTION_SAME_ON_ALL),
    number_option(BP_OPTION_DURATION, "connect_timeout", "30s", 1e6, 3600e9, "how long to try to reach a peer's port"),
    number_option(BP_OPTION_DURATION, "poll", "100us", 0, 1e9,
                  "how long a waiting thread polls, yielding its processor, before it sleeps"),
    number_option(
        BP_OPTION_DURATION, "heartbeat", "0s", 0, 3600e9,
        "interval of heartbeats on idle connections; a peer is lost after three without a sign of life, also one "
        "whose heartbeats are behind rcvhwm unreceived messages; 0 sends none"),
};

struct Settings {
  std::string address;  // checked: a literal address of this machine, no wildcard
  bool ipc = false;     // between ranks of one host. Not the default: libzmq ends a process that has no free descriptor
                        // when a peer connects to its local socket (ipc_listener.cpp, 4.3.4 and later)
  int io_threads = 1;
  std::chrono::milliseconds linger{0};
  int send_high_water_mark = 0;
  int receive_high_water_mark = 0;
  uint64_t eager_limit = 0;   // bytes
  uint64_t eager_window = 0;  // bytes
  uint64_t chunk_size = 0;    // bytes
  int64_t max_message_size = 0;
  std::chrono::milliseconds connect_timeout{0};
  std::chrono::nanoseconds poll{0};
  std::chrono::milliseconds heartbeat{0};
};

// Chooses and logs the address. Throws Failure(BP_INVALID) for combinations that the schema does not exclude.
Settings read_settings(const sdk::Context& context);

}  // namespace backplane::zmq
