// SPDX-License-Identifier: Apache-2.0
//
// Rules of backplane doctor about faults that the tests cannot make on a host.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "doctor/checks.hpp"

namespace backplane::test {
namespace {

using tool::Findings;
using tool::Severity;

// A host on which nothing is to be reported.
tool::Facts healthy_host(int rank) {
  tool::Facts facts;
  facts.rank = rank;
  facts.host = "node" + std::to_string(rank);
  facts.version = "1.0.0";
  facts.is_whole = true;
  facts.name_addresses = {"10.0.0." + std::to_string(1 + rank)};
  facts.interfaces = {{"eth0", facts.name_addresses.front()}};
  facts.store_address = facts.name_addresses.front();
  facts.shm_free = int64_t{1} << 30;
  facts.processors = 2;
  facts.backends = {{"nccl", "1.0.0", true, ""}};
  return facts;
}

tool::Path path_between(int from, int to, double bandwidth) {
  tool::Path path;
  path.from = from;
  path.to = to;
  path.at = {{"eth0", "10.0.0." + std::to_string(1 + to)}, 4711};
  path.latency = 1e-4;
  path.bandwidth = bandwidth;
  return path;
}

tool::Observations healthy_job(int hosts) {
  tool::Observations seen;
  for (int from = 0; from < hosts; ++from) {
    seen.ranks.push_back(healthy_host(from));
    for (int to = 0; to < hosts; ++to) {
      if (to != from) seen.paths.push_back(path_between(from, to, 1e9));
    }
  }
  return seen;
}

// "error node0,node1 reachability: TEXT" of each finding.
std::vector<std::string> lines(const Findings& findings) {
  std::vector<std::string> result;
  for (const tool::Finding& each : findings) {
    std::string line = each.severity == Severity::kError     ? "error"
                       : each.severity == Severity::kWarning ? "warning"
                                                             : "note";
    for (size_t i = 0; i < each.hosts.size(); ++i) line += (i == 0 ? " " : ",") + each.hosts[i];
    result.push_back(line + " " + each.check + ": " + each.text);
  }
  return result;
}

// The beginning of the only finding.
void expect_only(const tool::Observations& seen, const std::string& beginning) {
  const std::vector<std::string> found = lines(tool::diagnose(seen));
  ASSERT_EQ(found.size(), 1U) << testing::PrintToString(found);
  EXPECT_EQ(found.front().substr(0, beginning.size()), beginning);
}

TEST(Diagnosis, FindsNothingInAHealthyJob) {
  EXPECT_EQ(lines(tool::diagnose(healthy_job(4))), std::vector<std::string>());
}

TEST(Diagnosis, NamesHostsThatStoppedDuringTheMeasurement) {
  tool::Observations seen = healthy_job(3);
  seen.unfinished = {"node2"};
  std::erase_if(seen.paths, [](const tool::Path& each) { return each.from == 2; });
  expect_only(seen, "error node2 ranks: the measurement of the network did not end in time; ");
}

TEST(Diagnosis, MergesHostsAndRanges) {
  tool::Observations seen = healthy_job(6);
  for (const int rank : {1, 2, 3, 5}) seen.ranks[static_cast<size_t>(rank)].environment["NCCL_DEBUG"] = "INFO";
  expect_only(seen,
              "warning node0,node1,node2,node3,node4,node5 environment: NCCL_DEBUG is 'INFO' on ranks 1-3, 5, unset on "
              "ranks 0, 4; ");
  seen = healthy_job(3);
  for (tool::Facts& each : seen.ranks) each.ptrace_scope = 1;
  expect_only(seen, "note node0,node1,node2 ptrace: kernel.yama.ptrace_scope is 1, ");
}

TEST(Diagnosis, IgnoresVariablesThatTheLauncherSetsPerRank) {
  tool::Observations seen = healthy_job(2);
  for (tool::Facts& each : seen.ranks) {
    each.environment["BACKPLANE_RANK_ENV"] = "NCCL_HOSTID=host-{rank}";
    each.environment["NCCL_HOSTID"] = "host-" + std::to_string(each.rank);
  }
  EXPECT_EQ(lines(tool::diagnose(seen)), std::vector<std::string>());
}

TEST(Diagnosis, ReportsDifferentVersionsOfAPlugin) {
  tool::Observations seen = healthy_job(2);
  seen.ranks[1].backends.front().version = "1.1.0";
  expect_only(seen, "warning node0,node1 plugins: the backend nccl is 1.0.0 on rank 0, 1.1.0 on rank 1; ");
}

TEST(Diagnosis, ReportsGpusThatNcclCannotUse) {
  tool::Observations seen = healthy_job(1);
  seen.ranks.front().gpus = 8;
  EXPECT_EQ(lines(tool::diagnose(seen)), std::vector<std::string>());
  seen.ranks.front().backends.front() = {"nccl", "1.0.0", false, "no driver; install it"};
  expect_only(
      seen, "warning node0 gpus: the backend nccl is not usable, though the host has GPUs (8): no driver; install it");
}

TEST(Diagnosis, NamesFewOfManySlowPaths) {
  tool::Observations seen = healthy_job(10);
  for (tool::Path& each : seen.paths) each.bandwidth = each.from == 9 ? 1e7 : 1e9;
  const std::vector<std::string> found = lines(tool::diagnose(seen));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found.front().find("median bandwidth of 1000 MB/s: node9 to node0 (10 MB/s), "), std::string::npos);
  EXPECT_NE(found.front().find(" (10 MB/s), 5 more; "), std::string::npos) << found.front();
}

}  // namespace
}  // namespace backplane::test
