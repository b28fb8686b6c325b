// SPDX-License-Identifier: Apache-2.0
//
// Messages in flight while a worker shuts down.
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

using Bytes = rpc::Array<uint8_t>;

constexpr size_t kLarge = size_t{4} << 20;

[[maybe_unused]] const bool leave_registered = [] {
  rpc::register_function("many bytes", [] { return Bytes(std::vector<uint8_t>(kLarge)); });
  return true;
}();

class RpcLeaveTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcLeaveTest, testing::ValuesIn(rpc_ways()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcLeaveTest, GracefulShutdownDeliversAllReplies) {
  std::vector<rpc::Future<Bytes>> answers;
  in_world(GetParam(), 2, [&answers](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    for (int i = 0; i < 4; ++i) answers.push_back(worker.rpc_async<Bytes>(1, "many bytes"));
  });
  for (const auto& answer : answers) EXPECT_EQ(answer.wait().size(), kLarge);
}

}  // namespace
}  // namespace backplane::test
