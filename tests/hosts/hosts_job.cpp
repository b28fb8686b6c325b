// SPDX-License-Identifier: Apache-2.0
#include "hosts/hosts_job.hpp"

#include <stdexcept>

namespace backplane::test {

HostsJob::HostsJob(int hosts, const std::string& backend, const std::string& limit) : network_(hosts) {
  Variables common = {{"BACKPLANE_BACKEND", backend},          {"MASTER_ADDR", Network::address(0)},
                      {"WORLD_SIZE", std::to_string(hosts)},   {"BACKPLANE_JOB_ID", ""},
                      {"BACKPLANE_STORE_HOSTED", "1"},         {"BACKPLANE_HEARTBEAT_LIMIT", limit},
                      {"TEST_SERVE_HOST", Network::address(0)}};
  server_ = std::make_unique<Process>(common, network_.on(0));
  const std::string reply = server_->call("serve");
  if (!reply.starts_with("port ")) throw std::runtime_error(reply);
  common["MASTER_PORT"] = reply.substr(sizeof "port");
  for (int rank = 0; rank < hosts; ++rank) {
    common["RANK"] = std::to_string(rank);
    ranks_.push_back(std::make_unique<Process>(common, network_.on(rank)));
  }
  for (const char* command : {"init", "traffic 100"}) {
    send(all(), command);
    expect_all(all(), "ok");
  }
}

void HostsJob::send(const std::vector<int>& ranks, const std::string& command) {
  for (const int number : ranks) rank(number).send(command);
}

void HostsJob::expect_all(const std::vector<int>& ranks, const std::string& reply) {
  for (const int number : ranks) EXPECT_EQ(rank(number).receive(), reply) << "rank " << number;
}

void HostsJob::quit(const std::vector<int>& ranks) {
  send(ranks, "quit");
  for (const int number : ranks) {
    EXPECT_EQ(rank(number).receive(), "ok");
    EXPECT_EQ(rank(number).wait(), 0);
  }
}

std::vector<int> HostsJob::others(int without) const {
  std::vector<int> ranks;
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number) {
    if (number != without) ranks.push_back(number);
  }
  return ranks;
}

}  // namespace backplane::test
