// SPDX-License-Identifier: Apache-2.0
//
// backplane doctor as a job of three hosts with two ranks each. Each test makes one fault.
#include "tools/doctor.hpp"

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "hosts/network.hpp"

namespace backplane::test {
namespace {

constexpr int kDoctorHosts = 3;

class DoctorOnHosts : public testing::Test {
 protected:
  void SetUp() override {
    const std::string obstacle = Network::obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
    network_ = std::make_unique<Network>(kDoctorHosts);
  }

  // Starts the launchers. `fault`, a shell command, is run in a mount and a UTS namespace of host 1 before its
  // launcher. Returns the outcome of host 0, where rank 0 reports.
  Outcome examine(const std::string& fault = "true", const std::string& options = "--json") {
    std::vector<std::unique_ptr<Command>> launchers;
    for (int host = 0; host < kDoctorHosts; ++host) {
      std::string script = "mount --bind " + names_of_hosts() + " /etc/hosts && ";
      if (host == 1) script += fault + " && ";
      script += "exec " BACKPLANE_TEST_COMMAND " run -n 2 --no-prefix --timeout 150 --nnodes " +
                std::to_string(kDoctorHosts) + " --node-rank " + std::to_string(host) + " --master-addr " +
                Network::address(0) +
                " --master-port 29500 -- env BACKPLANE_PLUGINS_ALLOW=${BACKENDS:-self,zmq} " BACKPLANE_TEST_COMMAND
                " doctor " +
                options;
      std::vector<std::string> words = network_->on(host);
      words.insert(words.begin(), "/usr/bin/env");
      words.insert(words.end(), {"unshare", "--mount", "--uts", "bash", "-c", script});
      launchers.push_back(start_words(words));
    }
    const Outcome first = launchers.front()->wait();
    for (size_t host = 1; host < launchers.size(); ++host) {
      const Outcome other = launchers[host]->wait();
      EXPECT_EQ(other.code, 0) << other.err;
      EXPECT_EQ(other.out + other.err, "");
    }
    return first;
  }

  std::string names_of_hosts() const {
    const std::string path = place_.file("hosts");
    std::ofstream names(path);
    for (int host = 0; host < kDoctorHosts; ++host)
      names << Network::address(host) << ' ' << Network::name(host) << '\n';
    return path;
  }

  // Findings other than notes of the checks that compare hosts.
  static std::vector<std::string> faults(const DoctorReport& report) {
    std::vector<std::string> found;
    for (const char* check : {"ranks", "version", "environment", "host-name", "interfaces", "reachability", "clock"}) {
      for (const char* severity : {"warning", "error"}) {
        for (const std::string& text : report.texts(check, severity)) found.push_back(text);
      }
    }
    return found;
  }

  const ScopedDirectory place_;
  std::unique_ptr<Network> network_;
};

TEST_F(DoctorOnHosts, MeasuresAllPairs) {
  const DoctorReport report(examine());
  EXPECT_EQ(faults(report), std::vector<std::string>());
  EXPECT_EQ(report.json()["ranks"].size(), 6U);
  std::map<std::pair<int, int>, int> addresses_by_pair;
  for (const auto& path : report.json()["paths"]) {
    EXPECT_EQ(path["failure"], "") << path;
    EXPECT_GT(path["latency"], 0.0);
    EXPECT_GT(path["bandwidth"], 1e5);
    EXPECT_GT(path["at"]["port"], 0);
    ++addresses_by_pair[{path["from"], path["to"]}];
  }
  EXPECT_EQ(addresses_by_pair.size(), 6U);
  for (const auto& [pair, count] : addresses_by_pair) EXPECT_EQ(count, 2);  // IPv4 and IPv6, without docker0
}

TEST_F(DoctorOnHosts, MergesFindingsOfAllHosts) {
  const Outcome outcome = examine("true", "");
  EXPECT_TRUE(contains(outcome.out,
                       "host0, host1, host2: interfaces: each of these hosts has the address 172.17.0.1 "
                       "(docker0), by which none reaches another"))
      << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "\nhost2  host0  10.77.0.1:")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "\n3 hosts, 6 ranks: 0 errors, ")) << outcome.out;
  std::set<std::string> texts;  // of the findings, behind their hosts
  std::istringstream lines(outcome.out.substr(0, outcome.out.find("\n\n")));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(texts.insert(line.substr(line.find(": "))).second) << outcome.out;
  }
}

TEST_F(DoctorOnHosts, ReportsAPairWithoutARoute) {
  for (const std::string& to : {Network::address(2), Network::ipv6_address(2)}) {
    network_->run_on(1, "ip route add unreachable " + to);
  }
  const DoctorReport report(examine());
  EXPECT_TRUE(report.has("error", "reachability", "cannot reach host2 at 10.77.0.3:", {"host1"}));
  EXPECT_TRUE(report.has("error", "reachability", " on eth0 (No route to host)", {"host1"}));
  EXPECT_TRUE(report.has("error", "reachability", "cannot reach host1 at 10.77.0.2:", {"host2"}));
  EXPECT_TRUE(report.has("error", "reachability", " on eth0 (Connection timed out)", {"host2"}));
}

TEST_F(DoctorOnHosts, ReportsThatTheRanksOfAHostListenWhereAnotherDoesNotReachThem) {
  network_->run_on(1, "ip route add unreachable " + Network::address(2));
  const DoctorReport report(examine());
  EXPECT_TRUE(report.has("error", "reachability", "where its ranks listen because they reach the store", {"host1"}));
}

TEST_F(DoctorOnHosts, NotesAnAddressThatTheOthersDoNotReach) {
  network_->run_on(1, "ip addr add 192.168.77.1/24 dev docker0");
  const DoctorReport report(examine());
  EXPECT_TRUE(report.has("note", "reachability", "reaches host1, but not at 192.168.77.1:", {"host0", "host2"}));
  EXPECT_EQ(faults(report), std::vector<std::string>());
}

TEST_F(DoctorOnHosts, ReportsANameThatResolvesToLoopback) {
  const std::string path = place_.file("loopback");
  std::ofstream(path) << "127.0.1.1 host1\n";
  const DoctorReport report(examine("mount --bind " + path + " /etc/hosts"));
  EXPECT_TRUE(report.has("warning", "host-name", "resolves to loopback only (127.0.1.1)", {"host1"}));
}

TEST_F(DoctorOnHosts, ReportsHostsOfOneName) {
  const DoctorReport report(examine("echo host0 > /proc/sys/kernel/hostname"));
  EXPECT_TRUE(report.has("warning", "host-name", "2 hosts have this name", {"host0"}));
}

TEST_F(DoctorOnHosts, ReportsASlowLink) {
  const auto shape_of = [](const std::string& device) {
    return "tc qdisc add dev " + device + " root tbf rate 10mbit burst 64k latency 100ms";
  };
  if (std::system(("unshare --net " + shape_of("lo") + " > /dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "the kernel does not permit a token bucket filter";
  }
  network_->run_on(2, shape_of("eth0"));
  const DoctorReport report(examine());
  EXPECT_TRUE(report.has("warning", "bandwidth", "host2 to host0 ("));
  EXPECT_TRUE(report.has("warning", "bandwidth", "host2 to host1 ("));
}

#ifdef BACKPLANE_TEST_zmq
TEST_F(DoctorOnHosts, ReportsABackendThatOneHostLacks) {
  const DoctorReport report(examine("export BACKENDS=self"));
  EXPECT_TRUE(report.has("warning", "plugins", "the backend zmq is "));
  EXPECT_TRUE(report.has("warning", "plugins", " on ranks 0, 4, missing on rank 2; install the same version"));
}
#endif

#ifdef BACKPLANE_TEST_FAULTS
TEST_F(DoctorOnHosts, ReportsAClockThatDiffers) {
  const DoctorReport report(examine("export TEST_CLOCK_SHIFT=100 LD_PRELOAD=" BACKPLANE_TEST_FAULTS));
  EXPECT_TRUE(report.has("warning", "clock", "s ahead of that of host0", {"host1"}));
}
#endif

}  // namespace
}  // namespace backplane::test
