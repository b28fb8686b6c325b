// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/pmi_server.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

namespace backplane::base {
namespace {

// Both ends in one thread: the server replies while a client waits for its line.
class Client {
 public:
  Client(PmiServer& server, int32_t rank) : server_(server), fd_(server.connect(rank)) {}

  void say(const std::string& text) {
    EXPECT_EQ(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    server_.serve();
  }
  std::string hear() {
    std::string line;
    char c = 0;
    while (::recv(fd_.get(), &c, 1, MSG_DONTWAIT) == 1 && c != '\n') line += c;
    return line;
  }
  std::string ask(const std::string& line) {
    say(line + "\n");
    return hear();
  }
  bool is_disconnected() {
    pollfd polled = {fd_.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1 && (polled.revents & POLLHUP) != 0;
  }
  bool is_at_end() {
    char c = 0;
    return ::recv(fd_.get(), &c, 1, MSG_DONTWAIT) == 0;
  }
  void close() {
    fd_.reset();
    server_.serve();
  }

 private:
  PmiServer& server_;
  Descriptor fd_;
};

TEST(PmiServer, GivesAllRanksWhatOnePut) {
  PmiServer server("kvs", 1, 2);
  Client first(server, 0);
  Client second(server, 1);
  EXPECT_EQ(first.ask("cmd=init pmi_version=1 pmi_subversion=1"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
  EXPECT_EQ(second.ask("cmd=get_my_kvsname"), "cmd=my_kvsname rc=0 kvsname=kvs");
  EXPECT_EQ(second.ask("cmd=get kvsname=kvs key=PMI_process_mapping"),
            "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))");
  EXPECT_EQ(second.ask("cmd=get kvsname=kvs key=card"), "cmd=get_result rc=-1 msg=key_not_found");
  EXPECT_EQ(first.ask("cmd=put kvsname=kvs key=card value=x=1"), "cmd=put_result rc=0 msg=success");
  EXPECT_EQ(first.ask("cmd=barrier_in"), "");
  EXPECT_EQ(second.ask("cmd=barrier_in"), "cmd=barrier_out");
  EXPECT_EQ(first.hear(), "cmd=barrier_out");
  EXPECT_EQ(second.ask("cmd=get kvsname=kvs key=card"), "cmd=get_result rc=0 msg=success value=x=1");
  EXPECT_EQ(second.ask("cmd=finalize"), "cmd=finalize_ack rc=0");
}

TEST(PmiServer, ExchangesWithOtherHosts) {
  PmiServer::Values sent;
  PmiServer server("kvs", 2, 1, [&sent](const PmiServer::Values& own) { sent = own; });
  Client client(server, 0);
  EXPECT_EQ(client.ask("cmd=get_universe_size"), "cmd=universe_size rc=0 size=2");
  client.ask("cmd=put kvsname=kvs key=a value=1");
  EXPECT_EQ(client.ask("cmd=barrier_in"), "");
  EXPECT_EQ(sent, (PmiServer::Values{{"a", "1"}}));
  server.received({{"a", "1"}, {"b", "2"}});
  EXPECT_EQ(client.hear(), "cmd=barrier_out");
  EXPECT_EQ(client.ask("cmd=get kvsname=kvs key=b"), "cmd=get_result rc=0 msg=success value=2");
  client.ask("cmd=barrier_in");
  EXPECT_TRUE(sent.empty()) << "values are sent once";
}

TEST(PmiServer, ReadsLinesInPiecesAndSeveralAtOnce) {
  PmiServer server("kvs", 1, 1);
  Client client(server, 0);
  client.say("cmd=get_app");
  EXPECT_EQ(client.hear(), "");
  client.say("num\ncmd=get_maxes\n");
  EXPECT_EQ(client.hear(), "cmd=appnum rc=0 appnum=0");
  EXPECT_EQ(client.hear(), "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024");
  EXPECT_EQ(client.ask("cmd=spawn nprocs=1"), "cmd=spawn_result rc=-1 msg=unsupported");
  EXPECT_EQ(client.ask("cmd=put kvsname=kvs key= value=1"), "cmd=put_result rc=-1 msg=invalid_length");
}

TEST(PmiServer, DisconnectsThoseThatWaitForALostRank) {
  PmiServer server("kvs", 1, 3);
  Client waiting(server, 0);
  Client lost(server, 1);
  Client other(server, 2);
  for (Client* each : {&waiting, &lost, &other}) each->ask("cmd=init pmi_version=1 pmi_subversion=1");
  waiting.ask("cmd=barrier_in");
  EXPECT_FALSE(waiting.is_disconnected());
  lost.close();
  EXPECT_TRUE(waiting.is_disconnected());
  EXPECT_FALSE(other.is_disconnected());
  EXPECT_EQ(other.ask("cmd=get_appnum"), "cmd=appnum rc=0 appnum=0");
  other.ask("cmd=barrier_in");
  EXPECT_TRUE(other.is_disconnected()) << "it waits in a barrier that cannot end";
}

TEST(PmiServer, ARankThatEndsWithoutMpiEndsTheBarriersOfTheOthers) {
  PmiServer server("kvs", 1, 2);
  Client without(server, 0);
  Client waiting(server, 1);
  waiting.ask("cmd=barrier_in");
  without.close();
  EXPECT_TRUE(waiting.is_disconnected());
}

// The others are disconnected when its process has ended: until then they could be the first to fail.
TEST(PmiServer, EndsTheConnectionOfARankThatAborts) {
  PmiServer server("kvs", 1, 2);
  Client aborting(server, 0);
  Client waiting(server, 1);
  waiting.ask("cmd=barrier_in");
  EXPECT_FALSE(aborting.is_at_end());
  aborting.say("cmd=abort exitcode=3\n");
  EXPECT_TRUE(aborting.is_at_end());
  EXPECT_FALSE(waiting.is_disconnected());
  aborting.close();
  EXPECT_TRUE(waiting.is_disconnected());
}

TEST(PmiServer, AFailedExchangeEndsTheBarrier) {
  PmiServer server("kvs", 2, 1, [](const PmiServer::Values&) {});
  Client client(server, 0);
  client.ask("cmd=barrier_in");
  EXPECT_FALSE(client.is_disconnected());
  server.end_barriers();
  EXPECT_TRUE(client.is_disconnected());
}

TEST(PmiServer, DisconnectsARankThatSendsNoLines) {
  PmiServer server("kvs", 1, 1);
  Client client(server, 0);
  client.say(std::string(5000, 'x'));
  server.serve();
  EXPECT_TRUE(client.is_disconnected());
}

}  // namespace
}  // namespace backplane::base
