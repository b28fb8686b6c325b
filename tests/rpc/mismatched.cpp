// SPDX-License-Identifier: Apache-2.0
//
// One of two processes with a default group. Rank 1 joins with a wrong rank; both must fail with the same error.
#include <cstdio>
#include <string>

#include "backplane/distributed.hpp"
#include "backplane/rpc.hpp"

using namespace backplane;  // NOLINT: a program

int main(int, char** arguments) {
  GroupOptions group;
  group.backend = arguments[1];
  const int rank = init_process_group(group).rank();
  rpc::RpcOptions options;
  options.backend = "process_group";
  for (int attempt = 0; attempt < 2; ++attempt) {  // a failed attempt leaves no state
    std::string text;
    options.rank = rank == 1 ? 0 : -1;
    try {
      rpc::init_rpc("worker" + std::to_string(rank), options);
    } catch (const Error& e) {
      text = e.what();
    }
    if (text != "rank 1 cannot join: rank argument 0 doesn't match pg rank 1") {
      std::printf("FAILED: rank %d: %s\n", rank, text.c_str());
      return 1;
    }
  }
  options.rank = rank;
  rpc::init_rpc("worker" + std::to_string(rank), options);
  rpc::shutdown();
  destroy_process_group();
  return 0;
}
