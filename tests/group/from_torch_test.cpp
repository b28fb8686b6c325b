// SPDX-License-Identifier: Apache-2.0
//
// The calls shown in share/doc/from-torch.md, in a group of one rank. tests/abi/readme_test.sh compares the two
// files.
#include <string>
#include <vector>

#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

TEST(FromTorchTest, TheCallsOfTheTableWork) {
  const ScopedDirectory directory;
  const std::string backend = "self";
  const std::string method = "file://" + (directory.path() / "store").string();
  const int r = 0;
  const int w = 1;
  const int src = 0;
  const int dst = 0;
  const std::vector<int> ranks = {0};
  const Blocks ins = {{1}};
  const Blocks outs = {{1}};
  const std::string bytes = "object";
  const StoreServer server;
  const std::string host = "127.0.0.1";
  const uint16_t port = server.port();
  std::vector<float> t = {3};
  const std::vector<float> in = {3};
  std::vector<float> out = {0};
  // [from-torch.md]
  init_process_group(backend, {.init_method = method, .rank = r, .world_size = w});
  ProcessGroup group = new_group(ranks);
  all_reduce(t);
  all_reduce(t, ReduceOp::kMax, group);
  Work work = all_reduce(t, ReduceOp::kSum, {}, {.async_op = true});
  work.wait();
  broadcast(t, src);
  reduce(t, dst);
  all_gather(in, out);
  gather(in, out, dst);
  scatter(in, out, src);
  reduce_scatter(in, out);
  all_to_all(in, out);
  group.all_to_allv(in, ins, out, outs);
  Work receiving = irecv(out, src, {}, 7);
  send(t, dst, {}, 7);
  Work sending = isend(t, dst);
  int sender = recv(out);
  barrier();
  std::string first = group.broadcast_object(bytes, src);
  std::vector<std::string> objects = group.all_gather_object(bytes);
  Store store = Store::connect(host, port);
  destroy_process_group();
  // [end]
  EXPECT_EQ(t, in);
  EXPECT_EQ(out, in);
  EXPECT_EQ(sender, 0);
  EXPECT_EQ(first, bytes);
  EXPECT_EQ(objects, std::vector<std::string>{bytes});
  EXPECT_FALSE(is_initialized());
}

}  // namespace
}  // namespace backplane::test
