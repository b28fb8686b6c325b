// SPDX-License-Identifier: Apache-2.0
//
// Unknown clients at the ports of a job during operations: no operation fails, whatever they send.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <sstream>

#include "liveness/job.hpp"

namespace backplane::test {
namespace {

constexpr int kWorld = 3;

// The inodes of a process's sockets: links that say "socket:[17]".
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    const std::string front = "socket:[";
    if (target.starts_with(front)) inodes.insert(target.substr(front.size(), target.size() - front.size() - 1));
  }
  return inodes;
}

// The TCP ports that a process listens on.
std::set<uint16_t> ports_of(pid_t pid) {
  const std::set<std::string> inodes = sockets_of(pid);
  std::set<uint16_t> ports;
  for (const char* family : {"tcp", "tcp6"}) {
    std::ifstream table("/proc/" + std::to_string(pid) + "/net/" + family);
    std::string line;
    std::getline(table, line);  // names of columns
    while (std::getline(table, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (state != "0A" || inodes.count(inode) == 0) continue;  // LISTEN
      ports.insert(static_cast<uint16_t>(std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

// A connection of an unknown client.
class UnknownClient {
 public:
  explicit UnknownClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval timeout = {10, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << port;
  }
  ~UnknownClient() { ::close(socket_); }
  UnknownClient(const UnknownClient&) = delete;
  UnknownClient& operator=(const UnknownClient&) = delete;

  // The peer may close the connection before all is sent.
  void send(const std::string& bytes) const {
    static_cast<void>(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  // Makes the destructor reset the connection.
  void reset_on_close() const {
    const linger now = {1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }

 private:
  const int socket_;
};

// The bytes sent to each port. Sizes are those of the store's frames (32 bits, little endian) and of libzmq's greeting.
std::vector<std::string> payloads() {
  std::mt19937 random(11);
  std::string noise(5000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  const std::string greeting("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);
  return {"",
          "x",
          "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
          std::string("\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 11),  // TLS
          std::string(4, '\xff'),                                       // a frame of 4 GiB
          std::string("\xff\xff\xff\x7f", 4) + noise,
          std::string(8, '\xff') + noise,
          std::string(1 << 20, '\0'),
          std::string("bp-store") + noise,
          greeting,
          greeting + noise,
          noise};
}

class HostileTest : public testing::TestWithParam<std::string> {};
#ifdef BACKPLANE_TEST_zmq
INSTANTIATE_TEST_SUITE_P(Zmq, HostileTest, testing::Values("zmq"));
#endif
#ifdef BACKPLANE_TEST_gloo
INSTANTIATE_TEST_SUITE_P(Gloo, HostileTest, testing::Values("gloo"));
#endif
#ifdef BACKPLANE_TEST_shm
INSTANTIATE_TEST_SUITE_P(Shm, HostileTest, testing::Values("shm"));
#endif

TEST_P(HostileTest, UnknownClientsAtEveryPortDisturbNoOperation) {
  Job job(GetParam(), kWorld);
  job.init();
  const std::vector<int> all = job.others({});
  for (const std::string& answer : job.call(all, "traffic 10")) ASSERT_EQ(answer, "ok");
  std::set<uint16_t> ports = ports_of(job.server().pid());
  EXPECT_EQ(ports, std::set<uint16_t>{static_cast<uint16_t>(std::stoi(job.port()))});
  for (const int rank : all) ports.merge(ports_of(job[rank].pid()));
  // zmq and gloo listen as long as a group lives, shm never (of which backplane check has cases).
  EXPECT_EQ(ports.size(), static_cast<size_t>(GetParam() == "shm" ? 1 : 1 + kWorld));
  size_t connections = 0;
  for (const std::string& payload : payloads()) {
    job.send(all, "traffic 200");
    std::vector<std::unique_ptr<UnknownClient>> staying;  // idle, until the traffic has ended
    for (const uint16_t port : ports) {
      UnknownClient(port).send(payload);
      const UnknownClient reset(port);
      reset.send(payload);
      reset.reset_on_close();
      staying.push_back(std::make_unique<UnknownClient>(port));
      staying.back()->send(payload);
      connections += 3;
    }
    for (const std::string& answer : job.receive(all)) EXPECT_EQ(answer, "ok");
  }
  std::printf("%zu connections to %zu ports over %s\n", connections, ports.size(), GetParam().c_str());
  // Later connections are accepted, and the ranks still communicate.
  EXPECT_EQ(job.call(all, "new_group"), std::vector<std::string>(kWorld, "ok"));
  job.quit(all);
}

}  // namespace
}  // namespace backplane::test
