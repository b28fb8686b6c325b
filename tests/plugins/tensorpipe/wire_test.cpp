// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include "support/failures.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr Token kToken = {'t', 'o', 'k', 'e', 'n'};

// A message of worker 2 with buffers of these sizes.
class Given {
 public:
  Given(const std::string& payload, const std::vector<size_t>& sizes, uint64_t id = 1, uint32_t memory = BP_HOST)
      : payload_(payload) {
    for (const size_t size : sizes) {
      std::vector<unsigned char>& bytes = memory_.emplace_back(size);
      std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(memory_.size()));
      buffers_.push_back({bytes.data(), size, memory, 0});
    }
    const bp_rpc_message message = {sizeof(message),
                                    static_cast<uint32_t>(buffers_.size()),
                                    id,
                                    payload_.data(),
                                    payload_.size(),
                                    buffers_.data(),
                                    nullptr,
                                    nullptr};
    message_.emplace(message);
  }

  const sdk::RpcMessage& operator*() const { return *message_; }
  const std::vector<unsigned char>& memory(size_t i) const { return memory_[i]; }

 private:
  std::string payload_;
  std::vector<std::vector<unsigned char>> memory_;
  std::vector<bp_buffer> buffers_;
  std::optional<sdk::RpcMessage> message_;
};

IncomingMessage arrive(const std::string& metadata) {
  ::tensorpipe::Descriptor descriptor;
  descriptor.metadata = metadata;
  static sdk::BlockPool pool(0);
  static const DeviceSet none;
  return IncomingMessage(std::move(descriptor), kToken, 3, 1 << 20, &pool,
                         [](int32_t) -> const DeviceSet& { return none; });
}

TEST(TensorPipeMessageTest, IsInlineIfSmall) {
  const std::vector<std::vector<size_t>> all = {{}, {0}, {1}, {16}, {3, 0, 100}, {0, 0, 17, 1}};
  for (const std::vector<size_t>& sizes : all) {
    for (const char* payload : {"", "hello"}) {
      const Given given(payload, sizes);
      EXPECT_TRUE(is_small(*given));
      const ::tensorpipe::Message out = to_tensorpipe(*given, kToken, 2, nullptr, {7, 9});
      EXPECT_TRUE(out.payloads.empty() && out.tensors.empty());
      const IncomingMessage received = arrive(out.metadata);
      EXPECT_TRUE(received.is_inline());
      EXPECT_EQ(received.from(), 2);
      EXPECT_FALSE(received.wants_receipt());
      EXPECT_EQ(received.express_position().express, 7U);
      EXPECT_EQ(received.express_position().messages, 9U);
      EXPECT_EQ(received.payload(), payload);
      ASSERT_EQ(received.buffers().size(), sizes.size());
      for (size_t i = 0; i < sizes.size(); ++i) {
        const bp_buffer& buffer = received.buffers()[i];
        ASSERT_EQ(buffer.count, sizes[i]);
        if (sizes[i] == 0) continue;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data) % 16, 0U) << i;
        EXPECT_EQ(std::memcmp(buffer.data, given.memory(i).data(), sizes[i]), 0) << i;
      }
    }
  }
}

TEST(TensorPipeMessageTest, IsSmallUpToKInlineSize) {
  const std::string largest(kInlineSize, 'x');
  EXPECT_TRUE(is_small(*Given(largest, {})));
  EXPECT_EQ(arrive(to_tensorpipe(*Given(largest, {}), kToken, 2).metadata).payload(), largest);
  EXPECT_FALSE(is_small(*Given(largest + "x", {})));
  EXPECT_FALSE(is_small(*Given(largest, {1})));
  EXPECT_FALSE(is_small(*Given("", {kInlineSize})));
  EXPECT_TRUE(is_small(*Given("", {kInlineSize / 2, kInlineSize / 4})));
  EXPECT_TRUE(is_small(*Given("", std::vector<size_t>(kInlineSize / 17, 1))));
  EXPECT_FALSE(is_small(*Given("", std::vector<size_t>(kInlineSize / 16, 1))));  // no room for the padding of each
  EXPECT_FALSE(is_small(*Given("", {1}, 1, BP_CUDA)));
  EXPECT_EQ(to_tensorpipe(*Given("", {kInlineSize}), kToken, 2).payloads.size(), 1U);
}

TEST(TensorPipeMessageTest, RejectsMalformedInlineMessages) {
  constexpr size_t kHas = sizeof(Token) + 12;
  constexpr size_t kSizes = kHas + 4 + sizeof(ExpressPosition);
  const std::string good = to_tensorpipe(*Given("hello", {20, 40}), kToken, 2).metadata;
  EXPECT_NO_THROW(arrive(good));
  const auto refusal = [&good](const std::function<void(std::string*)>& spoil) {
    std::string bytes = good;
    spoil(&bytes);
    std::string text;
    EXPECT_EQ(test::status_of<sdk::Failure>([&bytes] { arrive(bytes); }, &text), BP_INVALID) << text;
    return text;
  };
  const auto put = [](std::string* bytes, size_t at, auto number) {
    std::memcpy(bytes->data() + at, &number, sizeof(number));
  };
  const std::string sizes = "inconsistent sizes";
  const std::string nonsense = "malformed descriptor";
  const auto expect = [&refusal](const std::string& words, const std::function<void(std::string*)>& spoil) {
    const std::string text = refusal(spoil);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  expect(sizes, [&](std::string* it) { put(it, kSizes, UINT64_MAX); });
  expect(sizes, [&](std::string* it) { put(it, kSizes, UINT64_MAX - 64); });
  expect(sizes, [&](std::string* it) { put(it, kSizes + 8, uint64_t{60}); });
  expect(nonsense, [&](std::string* it) { put(it, kHas, uint32_t{4}); });  // no inline payload
  expect(nonsense, [&](std::string* it) { put(it, kHas, uint32_t{7}); });  // and devices
  expect(sizes, [&](std::string* it) { put(it, kHas, uint32_t{1}); });     // the buffers are not inline
  expect(sizes, [](std::string* it) { it->resize(kSizes + 16 + 50); });
  expect(nonsense, [](std::string* it) { it->append(kInlineSize, 'x'); });
}

}  // namespace
}  // namespace backplane::tensorpipe
