// SPDX-License-Identifier: Apache-2.0
//
// Clients outside the group that connect to a rank's port have no effect.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>

#include "plugins/zmq/raw_client.hpp"
#include "plugins/zmq/support.hpp"
#include "plugins/zmq/wire_copy.hpp"
#include "support/descriptor_limit.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

// Two ranks that exchange messages before and after each test.
class ZmqOutsiders : public testing::Test {
 protected:
  void SetUp() override { exchange(); }
  void TearDown() override { exchange(); }

  void exchange() { exchange_messages(zero_, one_, round_++); }
  std::string token() { return word(stored(host_, "zmq/token"), 0); }

  MemoryHost host_;
  Rank zero_{host_, 0, 2, {{"transport", "ipc"}}};
  Rank one_{host_, 1, 2};
  uint32_t round_ = 0;
};

int dial_tcp(const std::string& endpoint) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return descriptor;
}

TEST_F(ZmqOutsiders, RandomBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    const int descriptor = dial_tcp(word(stored(host_, "zmq/0"), 0));
    Bytes bytes(1 + random() % 4000);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    // Some begin like a valid greeting.
    if (i % 2 == 0 && bytes.size() > 10) bytes[0] = 0xff, bytes[9] = 0x7f;
    EXPECT_GT(::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    close(descriptor);
    exchange();
  }
}

TEST_F(ZmqOutsiders, ClientsWithoutTheTokenAreRefused) {
  for (const int endpoint : {0, 1}) {
    RawClient none(word(stored(host_, "zmq/0"), endpoint), "", nullptr);
    none.send({"message"});
    EXPECT_FALSE(none.is_accepted());
    RawClient wrong(word(stored(host_, "zmq/0"), endpoint), "", nullptr, 0, "7");
    wrong.send({"message"});
    EXPECT_FALSE(wrong.is_accepted());
    exchange();
  }
  EXPECT_EQ(host_.logged().find("dropped"), std::string::npos) << "it was received: " << host_.logged();
}

using Clock = std::chrono::steady_clock;

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(getpagesize());
}

// The opening bytes of ZMTP 3: the greeting with a mechanism, and the command with which its client begins.
std::string opening(const std::string& mechanism) {
  std::string bytes("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0", 12);
  bytes += mechanism + std::string(20 - mechanism.size() + 32, '\0');
  std::string command(
      "\x05READY\x0bSocket-Type\0\0\0\x06"
      "DEALER\x08Identity\0\0\0\0",
      41);
  if (mechanism == "PLAIN")
    command = std::string(
        "\x05HELLO\x04test\x01"
        "7",
        13);
  return bytes + '\x04' + static_cast<char>(command.size()) + command;
}

// libzmq stores the parts of a message until its last one has come.
TEST_F(ZmqOutsiders, AnEndlessMessageTakesNoMemory) {
  constexpr size_t kTotal = size_t{64} << 20;
  const std::string part = std::string("\x03\0\0\0\0\0\x01\0\0", 9) + std::string(65536, 'x');
  for (const char* const mechanism : {"NULL", "PLAIN"}) {
    const size_t before = resident_bytes();
    const int descriptor = dial_tcp(word(stored(host_, "zmq/0"), 0));
    const timeval limit = {2, 0};
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    std::string bytes = opening(mechanism);
    for (size_t sent = 0; sent < kTotal; sent += bytes.size(), bytes = part) {
      if (::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) break;
    }
    exchange();
    EXPECT_LT(resident_bytes(), before + kTotal / 4) << mechanism;
    close(descriptor);
  }
}

// A process that connects to a port `count` times, sends nothing or a greeting, and waits to be killed.
class IdleClients {
 public:
  // Returns when all but `kept` connections have been closed by the other end.
  IdleClients(const std::string& endpoint, size_t count, size_t kept) {
    int done[2];
    if (pipe2(done, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    const std::string greeting = opening("PLAIN").substr(0, 64);
    pid_ = fork();
    if (pid_ < 0) {
      close(done[0]);
      close(done[1]);
      throw std::runtime_error("fork");
    }
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      rlimit limit = {};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = std::min<rlim_t>(1024, limit.rlim_max);
      setrlimit(RLIMIT_NOFILE, &limit);
      std::vector<pollfd> open;
      std::map<int, Clock::time_point> begun;
      for (size_t i = 0; i < count; ++i) {
        open.push_back({dial_tcp(endpoint), POLLRDHUP, 0});
        begun[open.back().fd] = Clock::now();
        if (i % 2 == 0) static_cast<void>(::send(open.back().fd, greeting.data(), greeting.size(), MSG_NOSIGNAL));
      }
      Clock::duration shortest = Clock::duration::max();
      while (open.size() > kept && poll(open.data(), open.size(), -1) > 0) {
        std::erase_if(open, [&begun, &shortest](const pollfd& each) {
          if (each.revents != 0) shortest = std::min(shortest, Clock::now() - begun[each.fd]);
          return each.revents != 0;
        });
      }
      if (write(done[1], &shortest, sizeof shortest) == sizeof shortest) pause();
      _exit(1);
    }
    close(done[1]);
    pollfd is_done = {done[0], POLLIN, 0};
    EXPECT_EQ(poll(&is_done, 1, 30'000), 1) << "idle connections stay open";
    if (is_done.revents != 0) {
      EXPECT_EQ(read(done[0], &shortest_, sizeof shortest_), static_cast<ssize_t>(sizeof shortest_));
    }
    close(done[0]);
  }
  ~IdleClients() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  IdleClients(const IdleClients&) = delete;
  IdleClients& operator=(const IdleClients&) = delete;

  // The shortest time from a connection to its end.
  Clock::duration shortest() const { return shortest_; }

 private:
  pid_t pid_ = -1;
  Clock::duration shortest_ = Clock::duration::max();
};

// SIZE_MAX if there is none left to count them.
size_t open_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  return error ? SIZE_MAX : static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// While a group starts, and before another one starts.
TEST(ZmqConnectionLimits, IdleConnectionsDoNotUseUpTheDescriptors) {
  constexpr rlim_t kLimit = 160;
  for (const bool secure : {false, true}) {
    MemoryHost host(secure);
    Rank zero(host, 0, 2);
    const DescriptorLimit little(kLimit);
    const IdleClients clients(word(stored(host, "zmq/0"), 0), 200, kLimit / 4 + 10);
    EXPECT_TRUE(eventually([] { return open_descriptors() < kLimit - 70; })) << open_descriptors();
    EXPECT_LT(clients.shortest(), std::chrono::seconds(10)) << "libzmq's limit for a handshake has ended them";
    Rank one(host, 1, 2);
    exchange_messages(zero, one, 1);
    MemoryHost other_host(secure);
    Rank other_zero(other_host, 0, 2);
    Rank other_one(other_host, 1, 2);
    exchange_messages(other_zero, other_one, 2);
  }
}

// Malformed frames. The last one is always reported, so that the test knows when all have been read.
TEST_F(ZmqOutsiders, WrongFrames) {
  for (const int endpoint : {0, 1}) {
    RawClient client(word(stored(host_, "zmq/0"), endpoint), token());
    client.send({""});
    client.send({"", "", "", "", ""});
    client.send({std::string(3, 'x')});
    client.send({std::string(64, '\0')});
    client.send({std::string(100000, 'y'), "z"});
    WireHeader header;  // of another session
    client.send({header.text()});
  }
  exchange();
  EXPECT_TRUE(eventually([&] { return host_.logged().find("dropped a malformed message") != std::string::npos; }))
      << host_.logged();
}

// A valid token with other fields invalid.
TEST_F(ZmqOutsiders, InvalidHeadersWithAValidToken) {
  const uint64_t number = std::stoull(token());
  {
    RawClient client(word(stored(host_, "zmq/0"), 0), token());
    for (uint8_t kind = 0; kind < 12; ++kind) {
      if (kind == WireHeader::kHello) continue;
      for (const int32_t source : {-1, 0, 1, 2, 1 << 30}) {
        WireHeader header;
        header.token = number;
        header.kind = kind;
        header.source = source;
        header.value = 1;
        client.send({header.text()});
        client.send({header.text(), std::string(100, 'd')});
        client.send({header.text() + "1234567"});
        client.send({header.text() + std::string(32, '\1')});
        client.send({header.text() + std::string(32, '\xff'), std::string(100, 'd')});
      }
    }
  }
  exchange();
  EXPECT_TRUE(eventually([&] { return host_.logged().find("zmq: dropped a ") != std::string::npos; }))
      << "none was read: " << host_.logged();
}

// A rank of this job that means another rank: its messages are dropped.
TEST_F(ZmqOutsiders, MessagesForAnotherRank) {
  WireHeader hello;
  hello.token = std::stoull(token());
  hello.source = 1;
  hello.value = 5;
  {
    RawClient client(word(stored(host_, "zmq/0"), 0), token());
    client.send({hello.text()});
  }
  exchange();
  EXPECT_TRUE(eventually([&] {
    return host_.logged().find("dropped a message for another rank") != std::string::npos;
  })) << host_.logged();
}

// A client that replays a rank's hello does not become that rank.
TEST_F(ZmqOutsiders, AReplayedHello) {
  WireHeader hello;
  hello.token = std::stoull(token());
  hello.source = 1;
  hello.value = 0;
  {
    RawClient client(word(stored(host_, "zmq/0"), 0), token());
    client.send({hello.text()});
  }
  exchange();
  EXPECT_TRUE(eventually([&] { return host_.logged().find("in the name of another rank") != std::string::npos; }))
      << host_.logged();
}

// A connection that announces a frame beyond the limit is closed before memory is allocated.
TEST_F(ZmqOutsiders, AFrameBeyondTheLimit) {
  {
    RawClient client(word(stored(host_, "zmq/1"), 0), token());
    client.send({std::string((64 << 20) + 1, 'h')});
  }
  exchange();
  EXPECT_EQ(host_.logged().find("dropped"), std::string::npos) << "it was received: " << host_.logged();
}

}  // namespace
}  // namespace backplane::test
