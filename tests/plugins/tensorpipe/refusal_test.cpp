// SPDX-License-Identifier: Apache-2.0
//
// Messages that the agent rejects: too large, malformed, or for devices without a map.
#include <tensorpipe/tensorpipe.h>

#include <cstring>
#include <functional>
#include <future>

#include "cuda_double.hpp"
#include "endpoint.hpp"
#include "plugins/tensorpipe/support.hpp"
#include "support/scoped_log.hpp"
#include "wire.hpp"

namespace backplane::test {
namespace {

using namespace tensorpipe;  // NOLINT: tests its internals

const core::KeyValues kOverUv = {{"transports", "uv"}};

TEST(TensorPipeRefusalTest, TooLargeMessageEndsThePipeAndIsReported) {
  TestAgents sides(agent(), {}, 50000);
  ASSERT_EQ(sides.zero->send(1, 1, 1000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
  ASSERT_EQ(sides.zero->send(1, 2, 100000), BP_OK);
  EXPECT_TRUE(sides.zero->reports_loss_of(1));     // calls to it fail
  EXPECT_TRUE(sides.one->reports_loss_of(0));      // replies that were on the pipe are lost
  ASSERT_EQ(sides.zero->send(1, 3, 1000), BP_OK);  // on a new pipe
  EXPECT_TRUE(sides.one->has_received(2));
}

// Sends a message to the worker with this endpoint and waits until the pipe ends.
bool ends_the_pipe(const Endpoint& endpoint, ::tensorpipe::Message message) {
  const auto context = std::make_shared<::tensorpipe::Context>();
  context->registerTransport(0, "uv", ::tensorpipe::transport::uv::create());
  context->registerChannel(0, "basic", ::tensorpipe::channel::basic::create());
  const auto pipe = context->connect(endpoint.uv);
  std::promise<bool> ended;
  pipe->readDescriptor(
      [&ended](const ::tensorpipe::Error& error, const ::tensorpipe::Descriptor&) { ended.set_value(bool(error)); });
  pipe->write(std::move(message), [](const ::tensorpipe::Error&) {});
  std::future<bool> end = ended.get_future();
  const bool in_time = end.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  context->close();
  context->join();
  return in_time && end.get();
}

size_t refusals_in(const std::string& log) {
  size_t count = 0;
  for (size_t at = 0; (at = log.find("a message was refused: ", at)) != std::string::npos; ++at) ++count;
  return count;
}

// A valid message of worker 0 with a payload of five bytes, a small and a large buffer.
class Forgery {
 public:
  // `device`: destination of the large buffer.
  explicit Forgery(const Endpoint& endpoint, int32_t device = kOnHost) : memory_(100 + kTensorSize) {
    const std::array<bp_buffer, 2> buffers = {
        {{memory_.data(), 100, BP_HOST, 0}, {memory_.data() + 100, kTensorSize, BP_HOST, 0}}};
    const bp_rpc_message message = {sizeof(message), 2, 1, "hello", 5, buffers.data(), nullptr, nullptr};
    kept_.emplace(message);
    const Staged staged = {{buffers.begin(), buffers.end()}, {kOnHost, device}, {}};
    bytes = to_tensorpipe(*kept_, endpoint.token, 0, device == kOnHost ? nullptr : &staged);
  }
  template <typename Number>
  void put(size_t offset, Number number) {
    std::memcpy(bytes.metadata.data() + offset, &number, sizeof(number));
  }
  ::tensorpipe::Message bytes;

 private:
  std::vector<std::byte> memory_;
  std::optional<sdk::RpcMessage> kept_;
};

TEST(TensorPipeRefusalTest, MalformedMessageEndsOnlyItsPipe) {
  constexpr size_t kFrom = sizeof(Token);
  constexpr size_t kBuffers = kFrom + 4;
  constexpr size_t kHas = kBuffers + 8;  // 1: inline payload, 2: devices
  constexpr size_t kSizes = kHas + 4 + sizeof(ExpressPosition);
  TestAgents sides(agent(), kOverUv);
  const auto endpoint = [&sides] {  // the URL may have changed
    return parse_endpoint(sides.store->get("worker/1", core::Deadline::after(INT64_C(20'000'000'000))), 1);
  };
  ScopedLog log;
  const std::vector<std::function<void(Forgery*)>> unauthenticated = {
      [](Forgery* it) { it->bytes.metadata.clear(); }, [](Forgery* it) { it->bytes.metadata.resize(kSizes - 1); },
      [](Forgery* it) { it->put(0, uint64_t{1}); },  // another token
      [](Forgery* it) { it->put(kFrom, int32_t{2}); }, [](Forgery* it) { it->put(kFrom, int32_t{-1}); },
  };
  for (size_t i = 0; i < unauthenticated.size(); ++i) {
    Forgery forgery(endpoint());
    unauthenticated[i](&forgery);
    EXPECT_TRUE(ends_the_pipe(endpoint(), std::move(forgery.bytes))) << i;
    EXPECT_EQ(sides.one->losses_of(0), 0U);  // the sender is not authenticated
  }
  EXPECT_GE(refusals_in(log.text()), 1U);  // at most one a second is logged
  ASSERT_EQ(sides.zero->send(1, 1, 1000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
  const std::vector<std::function<void(Forgery*)>> authenticated = {
      [](Forgery* it) { it->put(kBuffers, UINT32_MAX); },
      [](Forgery* it) { it->put(kBuffers, uint32_t{1}); },
      [](Forgery* it) { it->put(kBuffers, uint32_t{3}); },
      [](Forgery* it) { it->put(kHas, uint32_t{0}); },
      [](Forgery* it) { it->put(kHas, uint32_t{3}); },  // no device numbers follow
      [](Forgery* it) { it->put(kSizes, UINT64_MAX); },
      [](Forgery* it) { it->put(kSizes, uint64_t{99}); },
      [](Forgery* it) { it->put(kSizes + 8, uint64_t{kTensorSize + 1}); },
      [](Forgery* it) { it->bytes.metadata.append(2 * kInlineSize, 'x'); },
      [](Forgery* it) { it->bytes.payloads.clear(); },
      [](Forgery* it) { it->bytes.tensors.clear(); },
  };
  for (size_t i = 0; i < authenticated.size(); ++i) {
    Forgery forgery(endpoint());
    authenticated[i](&forgery);
    EXPECT_TRUE(ends_the_pipe(endpoint(), std::move(forgery.bytes))) << i;
    // The message was rejected, not the connection.
    EXPECT_TRUE(sides.one->reports_loss_of(0, i + 1)) << i;
    EXPECT_EQ(sides.one->losses_of(0), i + 1);
  }
  ASSERT_EQ(sides.zero->send(1, 2, 1000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(2));
}

// A sender chooses the destination of its buffers. Only devices named in the maps may be touched.
TEST(TensorPipeRefusalTest, UnmappedDeviceEndsThePipe) {
  const core::KeyValues mapped = {{"transports", "uv"}, {"device_maps", "test:0=1"}};  // all workers are called test
  for (const bool is_mapped : {false, true}) {
    TestAgents sides(agent(), is_mapped ? mapped : kOverUv);
    const auto endpoint = [&sides] {
      return parse_endpoint(sides.store->get("worker/1", core::Deadline::after(INT64_C(20'000'000'000))), 1);
    };
    size_t losses = 0;
    for (const int32_t device : {2, 7, -2, INT32_MAX, INT32_MIN, 1}) {
      if (is_mapped && device == 1) continue;
      Forgery forgery(endpoint(), device);
      EXPECT_TRUE(ends_the_pipe(endpoint(), std::move(forgery.bytes))) << device;
      EXPECT_TRUE(sides.one->reports_loss_of(0, ++losses)) << device;
      const std::string words =
          "no device map allows CUDA device " + std::to_string(device) + " of this worker for its sender";
      EXPECT_NE(sides.one->loss_of(0).find(words), std::string::npos) << sides.one->loss_of(0);
    }
    EXPECT_EQ(sides.one->received_sizes(), std::vector<uint64_t>());
    EXPECT_EQ(cuda_double_blocks(0) + cuda_double_blocks(1), 0U);
  }
}

}  // namespace
}  // namespace backplane::test
