// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/rendezvous.hpp"

#include <future>
#include <thread>
#include <vector>

#include "liveness/process_identity.hpp"
#include "rendezvous/launcher.hpp"
#include "rendezvous/meeting_place.hpp"
#include "store/store_fixture.hpp"
#include "support/scoped_log.hpp"

namespace backplane::core {
namespace {

// Unsets all variables that rendezvous reads.
class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest() {
    for (const char* name : {"MASTER_ADDR",
                             "MASTER_PORT",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "BACKPLANE_STORE_HOSTED",
                             "BACKPLANE_JOB_ID",
                             "BACKPLANE_MASTER_PORT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_MCA_ess_base_jobid",
                             "PMIX_NAMESPACE",
                             "PMIX_SERVER_TMPDIR",
                             "PMI_FD",
                             "MPI_LOCALNRANKS",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_STEP_NUM_NODES",
                             "PBS_JOBID",
                             "LSB_JOBID",
                             "LSB_JOBINDEX",
                             "JOB_COMPLETION_INDEX",
                             "HOSTNAME"}) {
      environment_.set(name, std::nullopt);
    }
  }

  void set(const std::string& name, const std::string& value) { environment_.set(name, value); }
  void set_master(uint16_t port) {
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(port));
  }
  static RendezvousRequest request(const std::string& init_method = "env://", int32_t rank = -1,
                                   int32_t world_size = -1) {
    return {init_method, rank, world_size, INT64_C(60'000'000'000)};
  }

  TemporaryDirectory directory_;
  Environment environment_;
};

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

TEST_F(RendezvousTest, ReadsLaunchers) {
  const std::string method = "file://" + directory_.file("store");
  const std::vector<std::pair<const char*, const char*>> launchers = {{"SLURM_PROCID", "SLURM_NTASKS"},
                                                                      {"PMI_RANK", "PMI_SIZE"},
                                                                      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                                      {"RANK", "WORLD_SIZE"}};
  int32_t rank = 1;
  for (const auto& [rank_name, size_name] : launchers) {  // each takes precedence over the previous ones
    set(rank_name, std::to_string(rank));
    set(size_name, std::to_string(rank + 10));
    const Rendezvous meeting = rendezvous(request(method));
    EXPECT_EQ(meeting.rank, rank) << rank_name;
    EXPECT_EQ(meeting.world_size, rank + 10) << size_name;
    ++rank;
  }
  EXPECT_EQ(rendezvous(request(method + "?rank=7&world_size=9")).rank, 7);
  const Rendezvous explicit_one = rendezvous(request(method + "?rank=7&world_size=9", 2, 3));
  EXPECT_EQ(explicit_one.rank, 2);
  EXPECT_EQ(explicit_one.world_size, 3);
}

// A WORLD_SIZE of the container, with mpirun in it.
TEST_F(RendezvousTest, RankAndWorldSizeComeFromOneLauncher) {
  const std::string method = "file://" + directory_.file("store");
  set("OMPI_COMM_WORLD_RANK", "1");
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("WORLD_SIZE", "1");
  EXPECT_ERROR(BP_INVALID, "WORLD_SIZE is 1, but OMPI_COMM_WORLD_SIZE is 4; unset RANK and WORLD_SIZE",
               rendezvous(request(method)));
  set("WORLD_SIZE", "4");
  EXPECT_EQ(rendezvous(request(method)).rank, 1);
  set("RANK", "0");
  test::ScopedLog log;
  EXPECT_EQ(rendezvous(request(method)).rank, 0);
  EXPECT_NE(log.text().find("RANK is 0, but OMPI_COMM_WORLD_RANK is 1; using RANK and WORLD_SIZE"), std::string::npos)
      << log.text();
  set("TORCHELASTIC_RUN_ID", "7");  // torchrun within mpirun is no contradiction
  test::ScopedLog quiet;
  EXPECT_EQ(rendezvous(request(method)).rank, 0);
  EXPECT_EQ(quiet.text(), "");
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

TEST_F(RendezvousTest, RanksThatComeAfterAFailedStartAreTold) {
  const std::string method = fmt::format("tcp://127.0.0.1:{}", free_port());
  const Rendezvous host = rendezvous(request(method, 0, 3));
  Rendezvous failed = rendezvous(request(method, 1, 3));
  leave(failed, soon(), "no network");
  EXPECT_ERROR(BP_PEER_LOST, "did not start: no network", rendezvous(request(method, 2, 3)));
}

TEST_F(RendezvousTest, ALauncherMayServe) {
  TcpStoreOptions options;
  options.job_id = "job 7";
  const auto server = make_tcp_store_server(options);
  set_master(server->port());
  set("BACKPLANE_STORE_HOSTED", "1");
  set("BACKPLANE_JOB_ID", "job 7");
  for (int round = 0; round < 3; ++round) {
    Rendezvous meeting = rendezvous(request("env://", 0, 1));
    EXPECT_EQ(meeting.server, nullptr);
    join(*meeting.store, 0, 1, process_identity(), soon());
    leave(meeting, soon());
  }
  set("BACKPLANE_JOB_ID", "job 8");
  EXPECT_ERROR(BP_INVALID, "belongs to another job, this rank is of job 'job 8'", rendezvous(request("env://", 0, 1)));
}

// Without MASTER_ADDR. tests/tools/launchers_test.cpp runs the launchers themselves.
TEST_F(RendezvousTest, RanksOfOpenMpiOnOneHostMeetInTheJobsDirectory) {
  set("OMPI_COMM_WORLD_RANK", "0");
  set("OMPI_COMM_WORLD_SIZE", "2");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  set("PMIX_NAMESPACE", "4711");
  set("PMIX_SERVER_TMPDIR", directory_.path());
  const std::string path = fmt::format("file://{}/backplane-4711.store", directory_.path());
  EXPECT_EQ(rendezvous(request()).root->describe(), path);
  set("MASTER_PORT", "4711");
  EXPECT_ERROR(BP_INVALID, "MASTER_ADDR is not set", rendezvous(request()));
}

// Whether no process of this host listens there.
bool is_free(uint16_t port) {
  TcpStoreOptions options;
  options.port = port;
  try {
    make_tcp_store_server(options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST_F(RendezvousTest, RanksOfSlurmMeetAtAPortOfTheirStep) {
  constexpr int kStride = 31;  // ports from one job to the next
  int job = 200;
  while (!is_free(static_cast<uint16_t>(20000 + job * kStride + 3))) ++job;
  const int port = 20000 + job * kStride + 3;
  set("SLURM_PROCID", "0");
  set("SLURM_NTASKS", "2");
  set("SLURM_JOB_ID", std::to_string(job));
  EXPECT_ERROR(BP_INVALID, "SLURM_STEP_NODELIST is not set", rendezvous(request()));
  set("SLURM_STEP_ID", "3");
  const std::string longer(63, 'x');  // with a digit, longer than a name may be: no server is asked for it
  set("SLURM_STEP_NODELIST", longer + "[7-9].invalid");
  RendezvousRequest brief = request();
  brief.timeout_ns = 100'000'000;  // the name is looked up again until then
  EXPECT_ERROR(BP_INVALID, fmt::format("cannot listen on {}7.invalid:{}", longer, port), rendezvous(brief));
  set("SLURM_STEP_NUM_NODES", "1");
  EXPECT_EQ(rendezvous(request()).root->describe(), fmt::format("tcp://127.0.0.1:{}", port));
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

TEST_F(RendezvousTest, FindsTheFirstHostOfAList) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("n[01-03,7],m1"), "n01");
  EXPECT_EQ(first_host("rack[2,4]n[5-6]-ib,x"), "rack2n5-ib");
}

TEST_F(RendezvousTest, AnMpiLauncherWithoutAConnectionIsNamed) {
  set("PMI_RANK", "1");
  set("PMI_SIZE", "2");
  EXPECT_ERROR(BP_INVALID, "offers no connection (PMI_FD); set MASTER_ADDR and MASTER_PORT", rendezvous(request()));
  set("PMI_FD", "0");
  EXPECT_ERROR(BP_UNSUPPORTED, "the connection to the launcher (PMI_FD) cannot be used", rendezvous(request()));
}

TEST_F(RendezvousTest, JobIdsAreDerived) {
  EXPECT_EQ(derived_job_id(LauncherKind::kGeneral), "");
  set("HOSTNAME", "train-3");
  set("JOB_COMPLETION_INDEX", "3");
  EXPECT_EQ(derived_job_id(LauncherKind::kGeneral), "auto:kubernetes:train");
  set("LSB_JOBID", "7");
  set("LSB_JOBINDEX", "2");
  EXPECT_EQ(derived_job_id(LauncherKind::kGeneral), "auto:lsf:7.2");
  set("PBS_JOBID", "12[4].server");
  EXPECT_EQ(derived_job_id(LauncherKind::kPmi), "auto:pbs:12[4].server");
  set("SLURM_JOB_ID", "1000");
  set("SLURM_STEP_ID", "3");
  EXPECT_EQ(derived_job_id(LauncherKind::kSlurm), "auto:slurm:1000.3");
  EXPECT_EQ(derived_job_id(LauncherKind::kGeneral), "auto:slurm:1000");  // its ranks may be steps of their own
  set("TORCHELASTIC_RUN_ID", "run");
  set("TORCHELASTIC_RESTART_COUNT", "1");
  EXPECT_EQ(derived_job_id(LauncherKind::kGeneral), "auto:torchrun:run.1");
  EXPECT_EQ(derived_job_id(LauncherKind::kSlurm), "auto:slurm:1000.3");
  set("PMIX_NAMESPACE", "99");
  EXPECT_EQ(derived_job_id(LauncherKind::kOpenMpi), "auto:openmpi:99");
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

// The address of the store under torchrun with the agent's own store at MASTER_PORT.
TEST_F(RendezvousTest, RanksOfTorchrunMeetBesideTheStoreOfItsAgent) {
  constexpr int kFirst = 20000 + 31 * 29500 % 12000;
  int attempt = 0;
  while (!is_free(static_cast<uint16_t>(kFirst + attempt))) ++attempt;
  set("MASTER_ADDR", "127.0.0.2");
  set("MASTER_PORT", "29500");
  set("RANK", "0");
  set("WORLD_SIZE", "2");
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  set("TORCHELASTIC_RESTART_COUNT", std::to_string(attempt));
  EXPECT_EQ(rendezvous(request()).root->describe(), fmt::format("tcp://127.0.0.2:{}", kFirst + attempt));
  set("LOCAL_WORLD_SIZE", "2");  // all on this host
  EXPECT_EQ(rendezvous(request()).root->describe(), fmt::format("tcp://127.0.0.1:{}", kFirst + attempt));
  const uint16_t port = free_port();
  set("BACKPLANE_MASTER_PORT", std::to_string(port));
  EXPECT_EQ(rendezvous(request()).root->describe(), fmt::format("tcp://127.0.0.1:{}", port));
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set_master(free_port());
  EXPECT_EQ(rendezvous(request()).root->describe(), "tcp://127.0.0.1:" + std::string(std::getenv("MASTER_PORT")));
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
