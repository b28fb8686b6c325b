// SPDX-License-Identifier: Apache-2.0
//
// A connection between two ranks breaks while both processes live.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <latch>
#include <map>
#include <regex>
#include <set>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

#ifdef BACKPLANE_TEST_zmq

uint16_t port_of(const sockaddr_in& address, int status) {
  return status == 0 && address.sin_family == AF_INET ? ntohs(address.sin_port) : uint16_t{0};
}

// Shuts down one TCP connection of this process to a port that this process listens on.
bool cut_one_connection() {
  constexpr int kDescriptors = 4096;
  std::set<uint16_t> listening;
  std::map<int, uint16_t> connected;
  for (int fd = 3; fd < kDescriptors; ++fd) {
    sockaddr_in own = {};
    sockaddr_in peer = {};
    socklen_t size = sizeof own;
    const uint16_t port = port_of(own, getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size));
    int listens = 0;
    size = sizeof listens;
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    if (listens != 0 && port != 0) listening.insert(port);
    size = sizeof peer;
    const int status = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size);
    if (const uint16_t to = port_of(peer, status); to != 0) connected[fd] = to;
  }
  for (const auto& [fd, port] : connected) {
    if (listening.count(port) != 0) return ::shutdown(fd, SHUT_RDWR) == 0;
  }
  return false;
}

struct Failed {
  std::string text;
  int peer_rank = -1;
};

// Reduces until that fails.
Failed failure_of_traffic(ProcessGroup& group) {
  std::vector<float> values(1000);
  try {
    for (;;) group.all_reduce(values);
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kPeerLost) << e.what();
    return {e.what(), e.peer_rank()};
  }
}

TEST(BrokenConnection, AllRanksReportTheFirstCauseOnce) {
  constexpr int kWorld = 4;
  const Store store = Store::inproc();
  std::latch connected(kWorld);
  std::vector<Failed> failed(kWorld);
  on_ranks(kWorld, [&store, &connected, &failed](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("zmq", store, rank, kWorld));
    std::vector<float> values(1000);
    group.all_reduce(values);
    connected.arrive_and_wait();
    EXPECT_TRUE(rank != 0 || cut_one_connection());
    failed[static_cast<size_t>(rank)] = failure_of_traffic(group);
    // Later calls report the same cause.
    std::string later;
    EXPECT_EQ(failure_of([&group] { group.barrier(); }, &later), Status::kPeerLost);
    EXPECT_NE(later.find("group 'test' is broken: rank "), std::string::npos) << later;
    EXPECT_EQ(later.find("has left the group"), std::string::npos) << later;
  });
  std::set<int> lost;
  std::set<std::string> reporters;
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto& [text, peer_rank] = failed[static_cast<size_t>(rank)];
    std::smatch found;
    const std::regex cause(
        "^(?:rank (\\d) of group 'test': all_reduce \\(f32 x 1000\\) #\\d+|group 'test' is broken): "
        "(rank \\d is lost: its connection broke without a goodbye)(?: \\(reported by rank (\\d)\\))?$");
    ASSERT_TRUE(std::regex_match(text, found, cause)) << text;
    const bool broke_in_call = found[1].matched;
    EXPECT_EQ(found[1].str(), broke_in_call ? std::to_string(rank) : "");
    EXPECT_EQ(found[2].str().substr(0, 6), "rank " + std::to_string(peer_rank)) << text;
    lost.insert(peer_rank);
    reporters.insert(found[3].matched ? found[3].str() : std::to_string(rank));
  }
  EXPECT_EQ(lost.size(), 1U);
  EXPECT_EQ(reporters.size(), 1U);
}

#endif

}  // namespace
}  // namespace backplane::test
