// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <string>

namespace backplane::test {

// Closes the express connections of this process to the worker with this endpoint. Returns their number.
inline int cut_express(const std::string& endpoint) {
  const size_t line = endpoint.rfind('\n', endpoint.size() - 2) + 1;  // the last one
  const std::string name = endpoint.substr(line, endpoint.size() - line - 1);
  EXPECT_TRUE(name.starts_with("backplane-")) << name;
  int count = 0;
  for (int fd = 3; fd < 4096; ++fd) {
    sockaddr_un peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sun_family != AF_UNIX) continue;
    if (std::string(peer.sun_path + 1).substr(0, name.size()) != name) continue;  // in the abstract namespace
    count += ::shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
  }
  return count;
}

}  // namespace backplane::test
