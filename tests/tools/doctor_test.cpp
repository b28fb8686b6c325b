// SPDX-License-Identifier: Apache-2.0
//
// backplane doctor on one host. Each test makes one fault.
#include "tools/doctor.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace backplane::test {
namespace {

std::string in_shell(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

// Of a shell command that makes the fault and starts the doctor by exec.
Outcome run_in_shell(const std::string& command) { return run_words({"/bin/bash", "-c", command}); }

DoctorReport after(const std::string& fault) {
  return DoctorReport(run_in_shell(fault + " && exec " + in_shell(doctor_command())));
}

DoctorReport with_variable(const std::string& name, const std::string& value) {
  return DoctorReport(run_words(doctor_command(), {{name, value}}));
}

// In mount, UTS and network namespaces of its own.
class DoctorInNamespaces : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "namespaces need root";
    if (std::system("unshare --mount --uts --net true > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "the kernel does not permit namespaces";
    }
  }

  DoctorReport after_mounts(const std::string& fault) const {
    std::ofstream(place_.file("script")) << "set -e\nip link set lo up\ncd " << place_.path().string() << "\n"
                                         << fault << "\nexec " << in_shell(doctor_command()) << "\n";
    return DoctorReport(run_words({"/usr/bin/unshare", "--mount", "--uts", "--net", "bash", place_.file("script")}));
  }

 private:
  const ScopedDirectory place_;
};

TEST(Doctor, ExaminesThisHost) {
  const DoctorReport report(run_words(doctor_command()));
  const nlohmann::json& host = report.json()["ranks"][0];
  EXPECT_EQ(report.json()["ranks"].size(), 1U);
  EXPECT_GT(host["processors"], 0);
  const auto& backends = host["backends"];
  EXPECT_TRUE(std::any_of(backends.begin(), backends.end(), [](const auto& each) { return each["id"] == "self"; }));
  EXPECT_TRUE(report.texts("store").empty()) << report.json();
  EXPECT_TRUE(report.texts("version").empty()) << report.json();
  EXPECT_TRUE(report.json()["paths"].empty());
}

TEST(Doctor, ExitCodesTellFaultsFromNotes) {
  const Outcome outcome = run_words(doctor_command({}));
  const bool is_healthy = contains(outcome.out, ": 0 errors, 0 warnings, ");
  EXPECT_EQ(outcome.code, is_healthy ? 0 : 1) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "1 host, 1 rank: ")) << outcome.out;
  const Outcome faulty = run_in_shell("export BACKPLANE_BACKEMD=zmq; exec " + in_shell(doctor_command({})));
  EXPECT_EQ(faulty.code, 1);
  EXPECT_TRUE(contains(faulty.out, ": environment: BACKPLANE_BACKEMD is not a variable of Backplane")) << faulty.out;
  EXPECT_EQ(run({"doctor", "--timeout", "-1"}).code, 2);
}

TEST(Doctor, RefusesRanksOfOtherLaunchers) {
  const Outcome outcome = run({"doctor"}, {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "a job that 'backplane run' did not start")) << outcome.err;
}

TEST(Doctor, ReportsLimits) {
  EXPECT_TRUE(after("ulimit -n 256").has("warning", "limits", "256 open files (ulimit -n)"));
  EXPECT_TRUE(after("ulimit -v 8388608").has("warning", "limits", "limited to 8192 MiB (ulimit -v)"));
  EXPECT_TRUE(after("ulimit -f 1048576").has("warning", "limits", "limited to 1024 MiB (ulimit -f)"));
  EXPECT_TRUE(after("ulimit -c 0").has("note", "limits", "no core file (ulimit -c is 0)"));
}

TEST(Doctor, ReportsTheLimitOfProcesses) {
  if (::geteuid() != 0) GTEST_SKIP() << "the limit would count the processes of this user";
  EXPECT_TRUE(after("ulimit -u 500").has("warning", "limits", "500 processes and threads (ulimit -u)"));
}

TEST(Doctor, ReportsASecretThatOthersCanRead) {
  const ScopedDirectory place;
  const std::string path = place.file("secret");
  std::ofstream(path) << "s3cretWordOfThisTestThatNobodyPrints\n";
  ::chmod(path.c_str(), 0644);
  EXPECT_TRUE(with_variable("BACKPLANE_SECRET_FILE", path).has("error", "store", path));
  ::chmod(path.c_str(), 0600);
  EXPECT_TRUE(with_variable("BACKPLANE_SECRET_FILE", path).texts("store").empty());
}

TEST(Doctor, ReportsPluginsThatAreRejectedOrNotUsable) {
  const ScopedDirectory place;
  fs::permissions(place.path(), fs::perms(0755));
  std::ofstream(place.file("backplane_broken.so")) << "no ELF file";
  const std::string path = place.path().string();
  EXPECT_TRUE(with_variable("BACKPLANE_PLUGIN_PATH", path).has("warning", "plugins", "backplane_broken.so is not "));
  const std::string crash = "export BACKPLANE_PLUGIN_PATH=" + plugin_directory("crash");
  const DoctorReport report(
      run_in_shell(crash + " BACKPLANE_PLUGINS_ALLOW=crash; exec " BACKPLANE_TEST_COMMAND " doctor --json"));
  EXPECT_TRUE(report.has("note", "plugins", "the backend crash is not usable: crashed with SIGSEGV"));
}

TEST(Doctor, ReportsBackendsThatAreNotAvailable) {
  EXPECT_TRUE(with_variable("BACKPLANE_BACKEND", "glooo?threads=2").has("error", "environment", "names 'glooo'"));
  EXPECT_TRUE(with_variable("BACKPLANE_RPC_BACKEND", "self+zmqq").has("error", "environment", "names 'self+zmqq'"));
  const std::string devices = "cpu:self?a=b,cuda:ncclx";
  EXPECT_TRUE(with_variable("BACKPLANE_BACKEND", devices).has("error", "environment", "names 'ncclx'"));
  const std::string composite = "self+gloox?a=b";
  EXPECT_TRUE(with_variable("BACKPLANE_BACKEND", composite).has("error", "environment", "names 'gloox'"));
  for (const char* good : {"auto", "SELF?x=1", "CPU:self?x=1,cuda:inproc", "cpu:inproc?x=1+self?y=1%2B1"}) {
    EXPECT_TRUE(with_variable("BACKPLANE_BACKEND", good).texts("environment").empty()) << good;
  }
}

TEST(Doctor, ReportsAClockThatIsNotSynchronised) {
  const std::string preload = "export TEST_CLOCK_ALONE=1 LD_PRELOAD=" BACKPLANE_TEST_FAULTS;
  EXPECT_TRUE(after(preload).has("note", "clock", "not synchronised by NTP"));
}

TEST(Doctor, ReportsRefusedReadsOfMemory) {
  std::vector<std::string> words = doctor_command();
  words.insert(words.begin(), BACKPLANE_TEST_SANDBOX);
  const DoctorReport report(run_words(words));
  EXPECT_TRUE(report.has("note", "seccomp", "process_vm_readv fails (Operation not permitted)"));
}

TEST_F(DoctorInNamespaces, ReportASmallOrUnusableShm) {
  EXPECT_TRUE(after_mounts("mount -t tmpfs -o size=16m none /dev/shm").has("warning", "shm", "only 16 MiB free"));
  EXPECT_TRUE(after_mounts("mount -t tmpfs -o ro none /dev/shm").has("warning", "shm", "(Read-only file system)"));
}

TEST_F(DoctorInNamespaces, ReportNamesThatDoNotLeadToTheHost) {
  const std::string name = "echo strange.invalid > /proc/sys/kernel/hostname\n";
  EXPECT_TRUE(after_mounts(name).has("note", "host-name", "does not resolve"));
  const std::string file = "echo '127.0.1.1 strange.invalid' > hosts\nmount --bind hosts /etc/hosts";
  EXPECT_TRUE(after_mounts(name + file).has("note", "host-name", "resolves to loopback only (127.0.1.1)"));
}

TEST_F(DoctorInNamespaces, ReportHostsWithoutANetwork) {
  EXPECT_TRUE(after_mounts("").has("note", "interfaces", "no interface except loopback has an address"));
}

TEST_F(DoctorInNamespaces, ReportThePtraceScope) {
  const std::string fault =
      "mount -t tmpfs none /proc/sys/kernel\nmkdir /proc/sys/kernel/yama\n"
      "echo 2 > /proc/sys/kernel/yama/ptrace_scope";
  EXPECT_TRUE(after_mounts(fault).has("note", "ptrace", "kernel.yama.ptrace_scope is 2"));
}

TEST_F(DoctorInNamespaces, ReportAQuotaOfTheCgroup) {
  const std::string fault = "mount -t tmpfs none /sys/fs/cgroup\necho 50000 100000 > /sys/fs/cgroup/cpu.max";
  EXPECT_TRUE(after_mounts(fault).has("warning", "processors", "the cgroup allows 0.5 of "));
}

// A device file without a driver behind it.
TEST_F(DoctorInNamespaces, ReportGpusThatNcclCannotUse) {
  const std::string fault =
      "mkdir dev\nmount -t tmpfs none dev\ntouch dev/nvidia0 dev/null dev/urandom\nmkdir dev/shm\n"
      "for file in null urandom shm; do mount --rbind /dev/$file dev/$file; done\nmount --rbind dev /dev";
  const std::vector<std::string> gpus = after_mounts(fault).texts("gpus", "warning");
  ASSERT_EQ(gpus.size(), 1U);  // nccl is denied
  EXPECT_TRUE(contains(gpus.front(), "the host has GPUs (1), but the backend nccl is not available")) << gpus.front();
}

// A job of two ranks on this host; `fault` is run on rank 1.
DoctorReport with_fault_of_rank_1(const std::string& fault, const std::vector<std::string>& options = {"--json"}) {
  const std::string command = "[ $RANK = 0 ] || " + fault + "; exec " + in_shell(doctor_command(options));
  return DoctorReport(run({"run", "-n", "2", "--no-prefix", "--timeout", "150", "bash", "-c", command}));
}

TEST(DoctorOfRanks, FindNothingWhereAllAreEqual) {
  const DoctorReport report = with_fault_of_rank_1("true");
  EXPECT_EQ(report.json()["ranks"].size(), 2U);
  EXPECT_TRUE(report.texts("environment").empty()) << report.json();
  EXPECT_TRUE(report.json()["paths"].empty());
}

TEST(DoctorOfRanks, ReportDifferentVariables) {
  const DoctorReport report = with_fault_of_rank_1("export NCCL_SOCKET_IFNAME=eth1");
  EXPECT_TRUE(report.has("warning", "environment", "NCCL_SOCKET_IFNAME is 'eth1' on rank 1, unset on rank 0; set it"));
}

TEST(DoctorOfRanks, ReportDifferentVersions) {
  const DoctorReport report = with_fault_of_rank_1("export TEST_VERSION=9.9.9 LD_PRELOAD=" BACKPLANE_TEST_FAULTS);
  EXPECT_TRUE(report.has("error", "version", ", 9.9.9 on rank 1; install the same version on all hosts"));
}

TEST(DoctorOfRanks, ReportSilentRanks) {
  const DoctorReport report = with_fault_of_rank_1("exec sleep 1000", {"--json", "--timeout", "10"});
  EXPECT_TRUE(report.has("error", "ranks", "rank 1 did not report in time"));
  EXPECT_EQ(report.json()["silent"], nlohmann::json::array({1}));
}

}  // namespace
}  // namespace backplane::test
