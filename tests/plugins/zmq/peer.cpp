// SPDX-License-Identifier: Apache-2.0
//
// Rank 1 of 2 in a process of its own, for tests that kill it: zmq_peer <plugin> <token> <entry of rank 0>. Prints
// its own entry (endpoints and, if secure, its public key), reads a line, sends rank 0 a message with tag 1, and leaves
// at the end of its input, unless it is killed before.
#include <cstdio>
#include <iostream>

#include "support/agents.hpp"

int main(int argc, char** argv) {
  using namespace backplane::test;
  if (argc != 4) return 2;
  MemoryHost host;
  const bp_host& table = *host.table();
  const std::string token = argv[2];
  const std::string endpoint = argv[3];
  table.store_set(table.ctx, "zmq/token", token.data(), token.size(), nullptr);
  table.store_set(table.ctx, "zmq/0", endpoint.data(), endpoint.size(), nullptr);
  table.store_set(table.ctx, ("zmq/key/" + endpoint.substr(endpoint.rfind(' ') + 1)).c_str(), "0", 1, nullptr);
  Agent agent(open_backend(argv[1], "zmq"), &table, 1, 2,
              {{"linger", "3000000000"}, {"connect_timeout", "3000000000"}, {"heartbeat", "0"}});
  char own[256];
  uint64_t size = 0;
  table.store_get(table.ctx, "zmq/1", own, sizeof own, &size, 0, nullptr);
  std::cout << std::string(own, size) << std::endl;
  while (std::getchar() != '\n') continue;  // rank 0 has the key now
  char payload[] = "alive";
  bp_op op = make_op(BP_SEND);
  op.peer = 0;
  op.tag = 1;
  op.flags = BP_OP_SYNC;
  op.input = {payload, sizeof payload, BP_HOST, 0};
  if (agent.run(op) != BP_OK) return 1;
  while (std::getchar() != EOF) continue;
  return 0;
}
