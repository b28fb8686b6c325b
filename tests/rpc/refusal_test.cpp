// SPDX-License-Identifier: Apache-2.0
//
// Messages that exceed the size limit, and workers that cannot start.
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

[[maybe_unused]] const bool refusal_registered = [] {
  rpc::register_function("size of", [](const rpc::Array<uint8_t>& bytes) { return bytes.size(); });
  rpc::register_function("bytes", [](size_t size) { return rpc::Array<uint8_t>(std::vector<uint8_t>(size)); });
  return true;
}();

class RpcRefusalTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcRefusalTest, testing::ValuesIn(rpc_transports()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcRefusalTest, RejectsMessagesAboveTheLimitOfTheReceiver) {
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const char* const limit = rank == 1 ? "?max_message_bytes=65536" : "";
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2, limit));
    const rpc::To other(1 - rank, kNoTimeout);  // a call that is not failed hangs
    std::string text;
    if (rank == 0) {
      const rpc::Array<uint8_t> large(std::vector<uint8_t>(100000));
      EXPECT_EQ(failure_of([&] { worker.rpc_sync<size_t>(other, "size of", large); }, &text), Status::kInvalid);
      EXPECT_NE(text.find("max_message_bytes of worker 'worker1' (rank 1) allows 65536"), std::string::npos) << text;
    } else {
      const auto ask = [&] { worker.rpc_sync<rpc::Array<uint8_t>>(other, "bytes", size_t{100000}); };
      EXPECT_EQ(failure_of(ask, &text), Status::kInvalid);
      EXPECT_NE(text.find("the reply could not be sent: the message has "), std::string::npos) << text;
    }
    EXPECT_EQ(worker.rpc_sync<size_t>(other, "size of", rpc::Array<uint8_t>(std::vector<uint8_t>(1000))), 1000U);
    worker.shutdown();
  });
}

TEST_P(RpcRefusalTest, RejectsDeviceMemory) {
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    for (int to = 0; to < 2; ++to) {
      char byte = 0;
      const bp_buffer buffer = {&byte, 1, BP_CUDA, 0};
      bp_rpc_content content = {};
      content.struct_size = sizeof(content);
      content.buffers = &buffer;
      content.buffer_count = 1;
      const auto call = [&](bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
        return bp_rpc_call(worker.get(), to, "size of", &content, BP_NO_TIMEOUT, done, ctx, id, err);
      };
      const auto handle = std::shared_ptr<bp_rpc>(worker.get(), [](bp_rpc*) {});
      std::string text;
      const bool carried = GetParam() == "tensorpipe" && to != worker.rank();  // with a device map
      EXPECT_EQ(failure_of([&] { rpc::Future<size_t>::start(handle, call).wait(); }, &text),
                carried ? Status::kInvalid : Status::kUnsupported);
      EXPECT_NE(text.find(carried ? "is not mapped for worker" : "host memory only"), std::string::npos) << text;
    }
  });
}

struct Unable {
  const char* transport;
  const char* options;
  const char* problem;
};

TEST(RpcStartTest, FailedStartFailsAllWorkers) {
  std::vector<Unable> all;
  for (const std::string& agent : agents_with_connections()) {
    if (agent == "tensorpipe")
      all.push_back({"tensorpipe", "?transports=missing", "transports does not know 'missing'"});
    if (agent == "ZMQ") all.push_back({"ZMQ", "?address=203.0.113.1", "cannot listen on 203.0.113.1"});
  }
  if (all.empty()) GTEST_SKIP() << "no agent with connections of its own was built";
  for (const Unable& unable : all) {
    const Store store = Store::inproc();
    on_ranks(3, [&](int rank) {
      const rpc::RpcOptions options = rpc_options(unable.transport, store, rank, 3, rank == 1 ? unable.options : "");
      std::string text;
      failure_of([&] { rpc::Worker::join(worker_name(rank), options); }, &text);
      EXPECT_EQ(text.find("rank 1 cannot join: "), 0U) << text;
      EXPECT_NE(text.find(unable.problem), std::string::npos) << text;
    });
  }
}

// Up to the maximum number of buffers, and more. A message that cannot be sent does not affect others.
TEST(RpcBuffersTest, MessagesHaveManyBuffers) {
  backplane::detail::call(
      bp_rpc_register, "count buffers",
      +[](void*, const bp_rpc_payload* arguments, bp_rpc_value*, bp_error* err) -> int32_t {
        return bp_error_set(err, BP_INVALID, bp_rpc_payload_buffers(arguments), -1, "counted");
      },
      static_cast<void*>(nullptr));
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    const int other = 1 - worker.rank();
    char byte = 0;
    for (const size_t count : {3999, 4094, 100000, 1}) {
      const std::vector<bp_buffer> buffers(count, bp_buffer{&byte, 1, BP_HOST, 0});
      bp_rpc_content content = {};
      content.struct_size = sizeof(content);
      content.buffers = buffers.data();
      content.buffer_count = static_cast<uint32_t>(count);
      std::string text;
      const auto call = [&](bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
        return bp_rpc_call(worker.get(), other, "count buffers", &content,
                           std::chrono::seconds(20).count() * 1000000000, done, ctx, id, err);
      };
      const auto handle = std::shared_ptr<bp_rpc>(worker.get(), [](bp_rpc*) {});
      EXPECT_EQ(failure_of([&] { rpc::Future<int>::start(handle, call).wait(); }, &text), Status::kInvalid) << text;
      EXPECT_NE(text.find(count < 4000 ? "counted" : "buffers; pack them into fewer"), std::string::npos) << text;
    }
    EXPECT_EQ(worker.rpc_sync<size_t>({other, std::chrono::seconds(20)}, "size of",
                                      rpc::Array<uint8_t>(std::vector<uint8_t>(3))),
              3U);
  });
}

}  // namespace
}  // namespace backplane::test
