// SPDX-License-Identifier: Apache-2.0
#include "rendezvous_fixture.hpp"

#include <future>
#include <thread>
#include <vector>

#include "liveness/process_identity.hpp"
#include "rendezvous/round.hpp"
#include "store/raw_socket.hpp"

namespace backplane::core {
namespace {

TEST_F(RendezvousTest, ReadsTheUsualVariables) {
  const uint16_t port = free_port();
  set_master(port);
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  const Rendezvous meeting = rendezvous(request());
  EXPECT_EQ(meeting.rank, 0);
  EXPECT_EQ(meeting.world_size, 1);
  ASSERT_NE(meeting.server, nullptr);
  EXPECT_EQ(meeting.server->port(), port);
  join(*meeting.store, 0, 1, process_identity(), soon());
}

TEST_F(RendezvousTest, MissingVariablesAreNamed) {
  EXPECT_ERROR(BP_INVALID, "RANK is not set", rendezvous(request()));
  set("RANK", "0");
  EXPECT_ERROR(BP_INVALID, "WORLD_SIZE is not set", rendezvous(request()));
  set("WORLD_SIZE", "2");
  EXPECT_ERROR(BP_INVALID, "MASTER_ADDR is not set", rendezvous(request()));
  set("MASTER_ADDR", "127.0.0.1");
  EXPECT_ERROR(BP_INVALID, "MASTER_PORT is not set", rendezvous(request()));
}

TEST_F(RendezvousTest, BadNumbersAreNamed) {
  set_master(1);
  set("RANK", "zero");
  set("WORLD_SIZE", "2");
  EXPECT_ERROR(BP_INVALID, "RANK is 'zero'; give a whole number from 0", rendezvous(request()));
  for (const char* bad : {"-1", "1x", " 1", "99999999999", "1.5"}) {
    set("RANK", bad);
    EXPECT_ERROR(BP_INVALID, fmt::format("RANK is '{}'", bad), rendezvous(request()));
  }
  set("RANK", "2");
  EXPECT_ERROR(BP_INVALID, "rank is 2, but the world size is 2; ranks go from 0 to 1", rendezvous(request()));
  set("WORLD_SIZE", "0");
  EXPECT_ERROR(BP_INVALID, "WORLD_SIZE is '0'; give a whole number from 1", rendezvous(request()));
  EXPECT_ERROR(BP_INVALID, "world_size is 0", rendezvous(request("env://", 0, 0)));
  EXPECT_ERROR(BP_INVALID, "rank is -2", rendezvous(request("env://", -2, 2)));
  for (const char* bad : {"0", "65536", "http", "-5"}) {
    set("MASTER_PORT", bad);
    EXPECT_ERROR(BP_INVALID, fmt::format("MASTER_PORT is '{}'; give a whole number from 1 to 65535", bad),
                 rendezvous(request("env://", 0, 1)));
  }
}

TEST_F(RendezvousTest, BadInitMethodsAreExplained) {
  const auto expect = [](const std::string& method, const std::string& part) {
    EXPECT_ERROR(BP_INVALID, part, rendezvous(request(method, 0, 1)));
  };
  expect("udp://x:1", "'udp://x:1' is not valid; use env://, tcp://host:port[?rank=R&world_size=W] or file:///path");
  expect("", "is not valid; use env://");
  expect("tcp://localhost", "needs a host and a port");
  expect("tcp://:80", "needs a host and a port");
  expect("tcp://localhost:99999", "the port of init method");
  expect("tcp://::1:80", "needs brackets");
  expect("tcp://localhost:80?rank=x", "rank of init method");
  expect("tcp://localhost:80?color=red", "unknown argument 'color'");
  expect("file://relative", "absolute path");
  expect("file://", "absolute path");
  expect("env://host", "MASTER_ADDR");
}

TEST_F(RendezvousTest, RanksMeetByTcp) {
  const std::string method = fmt::format("tcp://localhost:{}", free_port());
  std::vector<std::future<void>> ranks;
  for (int32_t rank = 3; rank >= 0; --rank) {
    ranks.push_back(std::async(std::launch::async, [&method, rank] {
      // Several rounds on one port by ranks of different speed: no rank may join a store that is about to close.
      for (int round = 0; round < 5; ++round) {
        SCOPED_TRACE(fmt::format("rank {} in round {}", rank, round));
        const auto work = [&method, rank] {
          Rendezvous meeting = rendezvous(request(fmt::format("{}?rank={}&world_size=4", method, rank)));
          EXPECT_EQ(meeting.server != nullptr, rank == 0);
          join(*meeting.store, rank, 4, process_identity(), soon());
          const int64_t nth = meeting.store->add("ranks of this round", 1, soon());
          EXPECT_TRUE(nth >= 1 && nth <= 4) << nth;
          leave(meeting, soon());
        };
        EXPECT_NO_THROW(work());
      }
    }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST_F(RendezvousTest, WarnsOfAStoreThatOtherHostsCannotReach) {
  const auto warnings_at = [](const std::string& host) {
    test::ScopedLog log;
    rendezvous(request(fmt::format("tcp://{}:{}", host, free_port()), 0, 2));
    return log.text();
  };
  EXPECT_EQ(warnings_at("localhost"), "");
  EXPECT_EQ(warnings_at("127.0.0.1"), "");
  const std::string text = warnings_at("127.1");  // to the resolver, a name of 127.0.0.1
  EXPECT_NE(text.find("the store of the job at 127.1 (127.0.0.1:"), std::string::npos) << text;
  set("LOCAL_WORLD_SIZE", "1");
  EXPECT_NE(warnings_at("localhost").find("which only this host can reach"), std::string::npos);
  set("LOCAL_WORLD_SIZE", "2");
  EXPECT_EQ(warnings_at("localhost"), "");
}

TEST_F(RendezvousTest, RanksMeetInAFileAgainAndAgain) {
  const std::string method = "file://" + directory_.file("store");
  std::vector<std::future<void>> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&method, rank] {
      for (int round = 0; round < 3; ++round) {
        Rendezvous meeting = rendezvous(request(method, rank, 3));
        EXPECT_EQ(meeting.server, nullptr);
        join(*meeting.store, rank, 3, process_identity(), soon());
        EXPECT_LE(meeting.store->add("ranks of this round", 1, soon()), 3);
        leave(meeting, soon());
      }
    }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST_F(RendezvousTest, TheHostOutlivesTheOthers) {
  const std::string method = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto host = std::async(std::launch::async, [&method] {
    Rendezvous meeting = rendezvous(request(method, 0, 2));
    join(*meeting.store, 0, 2, process_identity(), soon());
    meeting.store->set("host leaves", "", soon());
    leave(meeting, soon());
  });
  Rendezvous meeting = rendezvous(request(method, 1, 2));
  join(*meeting.store, 1, 2, process_identity(), soon());
  meeting.store->wait({"host leaves"}, soon());
  meeting.store->set("still", "needed", soon());
  EXPECT_EQ(meeting.store->get("still", soon()), "needed");
  leave(meeting, soon());
  host.get();
  leave(meeting, soon());  // of a closed store: no error
}

TEST_F(RendezvousTest, TheHostDoesNotWaitForLostRanks) {
  const uint16_t port = free_port();
  const std::string method = fmt::format("tcp://127.0.0.1:{}", port);
  Rendezvous host = rendezvous(request(method, 0, 3));
  Rendezvous other = rendezvous(request(method, 2, 3));
  const StoreRequest enrolment{1, RequestKind::kEnroll, 1, {round_prefix(0), "host, pid 9"}};
  RawClient lost(port, encode(Hello{}) + encode(enrolment));
  lost.skip_frame();  // the welcome
  lost.skip_frame();  // the reply
  std::thread later([&lost, &other] {
    other.store->wait({kDepartedKey}, soon());  // the host leaves first
    lost.finish();
    leave(other, soon());
  });
  const Deadline deadline = soon();
  leave(host, deadline);
  EXPECT_FALSE(deadline.passed());
  later.join();
}

TEST_F(RendezvousTest, RanksThatComeAfterAFailedStartAreTold) {
  const std::string method = fmt::format("tcp://127.0.0.1:{}", free_port());
  const Rendezvous host = rendezvous(request(method, 0, 3));
  Rendezvous failed = rendezvous(request(method, 1, 3));
  leave(failed, soon(), "no network");
  EXPECT_ERROR(BP_PEER_LOST, "did not start: no network", rendezvous(request(method, 2, 3)));
}

TEST_F(RendezvousTest, AValueThatIsNoTruthValueIsNamedOnce) {
  test::ScopedLog log;
  set_master(free_port());
  set("BACKPLANE_STORE_HOSTED", "perhaps");
  const Rendezvous meeting = rendezvous(request("env://", 0, 1));
  EXPECT_NE(meeting.server, nullptr);
  const std::string line =
      "BACKPLANE_STORE_HOSTED is 'perhaps'; it must be 1, true, yes, on, 0, false, no or off. Using 0\n";
  EXPECT_EQ(log.text(), line);
}

TEST_F(RendezvousTest, TwoJobsOnOnePortAreToldApart) {
  set_master(free_port());
  set("SLURM_JOB_ID", "1");
  const Rendezvous host = rendezvous(request("env://", 0, 2));
  set("SLURM_JOB_ID", "2");
  EXPECT_ERROR(BP_INVALID, "belongs to another job, this rank is of job 'auto:slurm:2'",
               rendezvous(request("env://", 1, 2)));
  set("BACKPLANE_JOB_ID", "mine");
  EXPECT_ERROR(BP_INVALID, "this rank is of job 'mine'", rendezvous(request("env://", 1, 2)));
  environment_.set("BACKPLANE_JOB_ID", std::nullopt);
  environment_.set("SLURM_JOB_ID", std::nullopt);  // a rank that was started over ssh
  EXPECT_EQ(rendezvous(request("env://", 1, 2)).rank, 1);
}

TEST_F(RendezvousTest, RankZeroNeedsAFreePort) {
  const auto server = make_tcp_store_server({});
  set_master(server->port());
  EXPECT_ERROR(BP_RESOURCE, "choose another port (MASTER_PORT", rendezvous(request("env://", 0, 1)));
}

TEST_F(RendezvousTest, AMissingHostIsATimeout) {
  set_master(free_port());
  RendezvousRequest late = request("env://", 1, 2);
  late.timeout_ns = 20'000'000;
  EXPECT_ERROR(BP_TIMEOUT, "look at the output of rank 0 or the launcher", rendezvous(late));
}

TEST_F(RendezvousTest, WorldSizesAreComparedOnBothSides) {
  const std::string method = fmt::format("tcp://127.0.0.1:{}", free_port());
  const auto run = [&method](int32_t rank, int32_t world_size) {
    return std::async(std::launch::async, [&method, rank, world_size] {
      return error_of([&method, rank, world_size] {
        const Rendezvous meeting = rendezvous(request(method, rank, world_size));
        join(*meeting.store, rank, world_size, process_identity(), soon());
      });
    });
  };
  // Rank 0 of 3 hosts and waits; the other two disagree, one of them with it.
  Rendezvous host = rendezvous(request(method, 0, 3));
  auto one = run(1, 3);
  host.store->wait({"bp/join/world"}, soon());
  auto two = run(2, 4);
  EXPECT_ERROR(BP_INVALID, "with 4; start all", join(*host.store, 0, 3, process_identity(), soon()));
  for (auto* rank : {&one, &two}) {
    const Error told = rank->get();
    EXPECT_EQ(told.status(), BP_INVALID);
    EXPECT_NE(std::string(told.what()).find("the ranks disagree on the world size"), std::string::npos) << told.what();
  }
}

}  // namespace
}  // namespace backplane::core
