// SPDX-License-Identifier: Apache-2.0
//
// What the agent does not take: messages larger than its core allows, and those that make no sense.
#include <tensorpipe/tensorpipe.h>

#include <cstring>
#include <functional>
#include <future>

#include "card.hpp"
#include "cuda_double.hpp"
#include "message.hpp"
#include "plugins/tensorpipe/support.hpp"
#include "support/scoped_log.hpp"

namespace backplane::test {
namespace {

using namespace tensorpipe;  // NOLINT: its parts are what is tested

const core::KeyValues kOverUv = {{"transports", "uv"}};

TEST(TensorPipeRefusalTest, WhatIsTooLargeEndsThePipeAndIsReported) {
  Sides sides(agent(), {}, 50000);
  ASSERT_EQ(sides.zero->send(1, 1, 1000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
  ASSERT_EQ(sides.zero->send(1, 2, 100000), BP_OK);
  EXPECT_TRUE(sides.zero->hears_of_the_loss_of(1));  // so that calls to it end
  EXPECT_TRUE(sides.one->hears_of_the_loss_of(0));   // with the answers that were on their way
  ASSERT_EQ(sides.zero->send(1, 3, 1000), BP_OK);    // along a new one
  EXPECT_TRUE(sides.one->has_received(2));
}

// Sends one message to the worker that has left this card, and waits until the pipe ends.
bool ends_the_pipe(const Card& card, ::tensorpipe::Message message) {
  const auto context = std::make_shared<::tensorpipe::Context>();
  context->registerTransport(0, "uv", ::tensorpipe::transport::uv::create());
  context->registerChannel(0, "basic", ::tensorpipe::channel::basic::create());
  const auto pipe = context->connect(card.uv);
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

// A good message of worker 0 with a payload of five bytes, a small and a large buffer.
class Forgery {
 public:
  // `device`: where the large one is to arrive.
  explicit Forgery(const Card& card, int32_t device = kOnHost) : memory_(100 + kTensorSize) {
    const std::array<bp_buffer, 2> buffers = {
        {{memory_.data(), 100, BP_HOST, 0}, {memory_.data() + 100, kTensorSize, BP_HOST, 0}}};
    const bp_rpc_message message = {sizeof(message), 2, 1, "hello", 5, buffers.data(), nullptr, nullptr};
    kept_.emplace(message);
    const Staged staged = {{buffers.begin(), buffers.end()}, {kOnHost, device}, {}};
    bytes = to_tensorpipe(*kept_, card.token, 0, device == kOnHost ? nullptr : &staged);
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

TEST(TensorPipeRefusalTest, WhatMakesNoSenseEndsItsPipeAlone) {
  constexpr size_t kFrom = sizeof(Token);
  constexpr size_t kBuffers = kFrom + 4;
  constexpr size_t kHas = kBuffers + 8;  // 1: a payload inside, 2: devices
  constexpr size_t kSizes = kHas + 4 + sizeof(Before);
  Sides sides(agent(), kOverUv);
  const auto card = [&sides] {  // it may listen elsewhere by now
    return parse_card(sides.store->get("worker/1", core::Deadline::after(INT64_C(20'000'000'000))), 1);
  };
  ScopedLog log;
  const std::vector<std::function<void(Forgery*)>> strangers = {
      [](Forgery* it) { it->bytes.metadata.clear(); }, [](Forgery* it) { it->bytes.metadata.resize(kSizes - 1); },
      [](Forgery* it) { it->put(0, uint64_t{1}); },  // another token
      [](Forgery* it) { it->put(kFrom, int32_t{2}); }, [](Forgery* it) { it->put(kFrom, int32_t{-1}); },
  };
  for (size_t i = 0; i < strangers.size(); ++i) {
    Forgery forgery(card());
    strangers[i](&forgery);
    EXPECT_TRUE(ends_the_pipe(card(), std::move(forgery.bytes))) << i;
    EXPECT_EQ(refusals_in(log.text()), i + 1);  // this one among them
    EXPECT_EQ(sides.one->losses_of(0), 0U);     // nothing proves that it was its
  }
  ASSERT_EQ(sides.zero->send(1, 1, 1000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
  const std::vector<std::function<void(Forgery*)>> workers = {
      [](Forgery* it) { it->put(kBuffers, UINT32_MAX); },
      [](Forgery* it) { it->put(kBuffers, uint32_t{1}); },
      [](Forgery* it) { it->put(kBuffers, uint32_t{3}); },
      [](Forgery* it) { it->put(kHas, uint32_t{0}); },
      [](Forgery* it) { it->put(kHas, uint32_t{3}); },  // and no room for them
      [](Forgery* it) { it->put(kSizes, UINT64_MAX); },
      [](Forgery* it) { it->put(kSizes, uint64_t{99}); },
      [](Forgery* it) { it->put(kSizes + 8, uint64_t{kTensorSize + 1}); },
      [](Forgery* it) { it->bytes.metadata.append(2 * kInsideSize, 'x'); },
      [](Forgery* it) { it->bytes.payloads.clear(); },
      [](Forgery* it) { it->bytes.tensors.clear(); },
  };
  for (size_t i = 0; i < workers.size(); ++i) {
    Forgery forgery(card());
    workers[i](&forgery);
    EXPECT_TRUE(ends_the_pipe(card(), std::move(forgery.bytes))) << i;
    // So it was this message, and not a connection that was refused.
    EXPECT_TRUE(sides.one->hears_of_the_loss_of(0, i + 1)) << i;
    EXPECT_EQ(sides.one->losses_of(0), i + 1);
  }
  ASSERT_EQ(sides.zero->send(1, 2, 1000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(2));
}

// A worker's word for where its buffers are to arrive: only devices that the maps name are ever touched.
TEST(TensorPipeRefusalTest, DevicesThatNoMapNamesEndThePipe) {
  const core::KeyValues mapped = {{"transports", "uv"}, {"device_maps", "test:0=1"}};  // all are called test
  for (const bool is_mapped : {false, true}) {
    Sides sides(agent(), is_mapped ? mapped : kOverUv);
    const auto card = [&sides] {
      return parse_card(sides.store->get("worker/1", core::Deadline::after(INT64_C(20'000'000'000))), 1);
    };
    size_t losses = 0;
    for (const int32_t device : {2, 7, -2, INT32_MAX, INT32_MIN, 1}) {
      if (is_mapped && device == 1) continue;
      Forgery forgery(card(), device);
      EXPECT_TRUE(ends_the_pipe(card(), std::move(forgery.bytes))) << device;
      EXPECT_TRUE(sides.one->hears_of_the_loss_of(0, ++losses)) << device;
      const std::string words = "no device map names CUDA device " + std::to_string(device) + " of this worker for it";
      EXPECT_NE(sides.one->loss_of(0).find(words), std::string::npos) << sides.one->loss_of(0);
    }
    EXPECT_EQ(sides.one->received_sizes(), std::vector<uint64_t>());
    EXPECT_EQ(cuda_double_blocks(0) + cuda_double_blocks(1), 0U);
  }
}

}  // namespace
}  // namespace backplane::test
