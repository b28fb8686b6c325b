// SPDX-License-Identifier: Apache-2.0
//
// Measures the network between hosts over TCP connections of its own. Needs no backend.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "backplane/base/event_fd.hpp"
#include "doctor/interfaces.hpp"

namespace backplane::tool {

struct Endpoint {
  Interface interface;
  uint16_t port = 0;
};

// "10.0.0.7:40123 on eth0"
std::string endpoint_text(const Endpoint& endpoint);

// Replies to the measurements of other hosts, one connection at a time, on a thread that ends with the object. A
// connection that does not begin with the token gets no reply. One that is silent for two seconds is closed.
class Responder {
 public:
  // Listens on each interface at a free port. Leaves out interfaces on which it cannot listen.
  Responder(const std::vector<Interface>& interfaces, std::string token);
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;
  ~Responder();

  const std::vector<Endpoint>& endpoints() const { return endpoints_; }

 private:
  void work();

  const std::string token_;
  std::vector<base::Descriptor> listeners_;
  std::vector<Endpoint> endpoints_;
  base::EventFd stop_;
  std::thread thread_;
};

// The result of a measurement from one host to an address of another.
struct Path {
  int from = 0;  // rank that measured
  int to = 0;    // rank whose Responder replied
  Endpoint at;
  std::string failure;      // empty: it was reached
  double latency = 0;       // seconds, half of the fastest round trip
  double bandwidth = 0;     // bytes per second
  double clock_offset = 0;  // seconds by which the other host's clock is ahead
};

// Connects and measures for about half a second. Blocks for at most two seconds in which the other host is silent.
Path measure(const Endpoint& endpoint, const std::string& token);

}  // namespace backplane::tool
