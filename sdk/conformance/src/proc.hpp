// SPDX-License-Identifier: Apache-2.0
//
// Reads the state of the calling process from /proc: descriptors, threads, memory, children, sockets.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "world.hpp"

namespace backplane::conformance {

struct Descriptor {
  std::string target;  // "socket:[1234]", "anon_inode:[eventfd]", a path
  bool close_on_exec = false;
};

// The open descriptors by number, except the one used to read them.
std::map<int, Descriptor> descriptors();
std::set<pid_t> threads();
// Processes whose parent is this one.
std::set<pid_t> child_processes();
// Names in /dev/shm.
std::set<std::string> shared_memory();
uint64_t resident_bytes();
// Whether a sanitizer is active. It keeps freed memory, so resident memory is meaningless.
bool has_sanitizer();
// The signals that a thread of this process blocks: bit n-1 for signal n. All signals if it has ended.
uint64_t blocked_signals(pid_t thread);
// A field of /proc/self/status; "unknown" if there is none. Reads the umask without changing it.
std::string status_text(const std::string& field);
// A field of /proc/self/status as a hexadecimal number: "SigCgt", "SigIgn".
uint64_t status_mask(const std::string& field);
// The connected TCP sockets among the descriptors.
std::vector<int> connected_tcp();

// Process resources that an agent must release.
struct Footprint {
  std::map<int, Descriptor> open;
  std::set<pid_t> running;
  std::set<pid_t> children;
  std::set<std::string> shared;

  static Footprint take();
};

// Resources added since `before`: "descriptor 9 (socket:[1234])"; empty: none. Waits up to `timeout` for them to
// disappear, because the kernel releases some resources shortly after a thread was joined.
std::string grown_since(const Footprint& before, Nanoseconds timeout);
// The same, and the descriptors that have been closed.
std::string left_behind(const Footprint& before, Nanoseconds timeout);

// A listening address in this network namespace.
struct Listener {
  int family = 0;       // AF_INET, AF_INET6, AF_UNIX
  std::string address;  // the sockaddr's bytes, ready for connect

  uint16_t port() const;  // 0 for AF_UNIX
  std::string text() const;
  bool operator<(const Listener& other) const { return address < other.address; }
};

std::set<Listener> listeners();
// The listeners of the calling process.
std::set<Listener> own_listeners();
// Names of UNIX sockets in this network namespace, in the file system or abstract ("@name").
std::set<std::string> unix_names();

}  // namespace backplane::conformance
