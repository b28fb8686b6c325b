// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/launcher.hpp"

#include <utility>
#include <vector>

#include "liveness/process_identity.hpp"
#include "rendezvous/meeting_place.hpp"
#include "rendezvous_fixture.hpp"

namespace backplane::core {
namespace {

using LauncherTest = RendezvousTest;

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

TEST_F(LauncherTest, ReadsLaunchers) {
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
TEST_F(LauncherTest, RankAndWorldSizeComeFromOneLauncher) {
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

TEST_F(LauncherTest, ALauncherMayServe) {
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

// As torch.distributed, whose rank 0 listens at MASTER_PORT.
TEST_F(LauncherTest, AnotherLibraryMayOccupyTheMasterPort) {
  const auto other = make_tcp_store_server({});
  set_master(other->port());
  const auto server = make_tcp_store_server({});
  set("BACKPLANE_STORE", fmt::format("127.0.0.1:{}", server->port()));
  set("BACKPLANE_STORE_HOSTED", "1");
  const std::string place = fmt::format("tcp://127.0.0.1:{}", server->port());
  EXPECT_EQ(rendezvous(request("env://", 0, 1)).root->describe(), place);
  EXPECT_EQ(rendezvous(request(place, 0, 1)).server, nullptr);
  set("BACKPLANE_STORE_HOSTED", "0");
  set("BACKPLANE_STORE", fmt::format("127.0.0.1:{}", free_port()));
  EXPECT_NE(rendezvous(request("env://", 0, 1)).server, nullptr);
  set("BACKPLANE_STORE", "host-without-port");
  EXPECT_ERROR(BP_INVALID, "BACKPLANE_STORE 'host-without-port' needs a host and a port: host:port",
               rendezvous(request("env://", 0, 1)));
}

TEST_F(LauncherTest, RankZeroServesStoresThatAreNotTheLaunchers) {
  const auto server = make_tcp_store_server({});
  set_master(server->port());
  set("BACKPLANE_STORE_HOSTED", "1");
  const Rendezvous meeting = rendezvous(request(fmt::format("tcp://127.0.0.1:{}", free_port()), 0, 1));
  EXPECT_NE(meeting.server, nullptr);
  EXPECT_FALSE(meeting.outlives_job);
  EXPECT_TRUE(rendezvous(request("env://", 0, 1)).outlives_job);
}

// Without MASTER_ADDR. tests/tools/launchers_test.cpp runs the launchers themselves.
TEST_F(LauncherTest, RanksOfOpenMpiOnOneHostMeetInTheJobsDirectory) {
  set("OMPI_COMM_WORLD_RANK", "0");
  set("OMPI_COMM_WORLD_SIZE", "2");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  set("PMIX_NAMESPACE", "4711");
  set("PMIX_SERVER_TMPDIR", directory_.path().string());
  const std::string path = fmt::format("file://{}/backplane-4711.store", directory_.path().string());
  EXPECT_EQ(rendezvous(request()).root->describe(), path);
  set("MASTER_PORT", "4711");
  EXPECT_ERROR(BP_INVALID, "MASTER_ADDR is not set", rendezvous(request()));
}

TEST_F(LauncherTest, RanksOfSlurmMeetAtAPortOfTheirStep) {
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

TEST_F(LauncherTest, FindsTheFirstHostOfAList) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("n[01-03,7],m1"), "n01");
  EXPECT_EQ(first_host("rack[2,4]n[5-6]-ib,x"), "rack2n5-ib");
}

TEST_F(LauncherTest, AnMpiLauncherWithoutAConnectionIsNamed) {
  set("PMI_RANK", "1");
  set("PMI_SIZE", "2");
  EXPECT_ERROR(BP_INVALID, "offers no connection (PMI_FD); set MASTER_ADDR and MASTER_PORT", rendezvous(request()));
  set("PMI_FD", "0");
  EXPECT_ERROR(BP_UNSUPPORTED, "the connection to the launcher (PMI_FD) cannot be used", rendezvous(request()));
}

// The address of the store under torchrun with the agent's own store at MASTER_PORT.
TEST_F(LauncherTest, RanksOfTorchrunMeetBesideTheStoreOfItsAgent) {
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

TEST_F(LauncherTest, JobIdsAreDerived) {
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

}  // namespace
}  // namespace backplane::core
