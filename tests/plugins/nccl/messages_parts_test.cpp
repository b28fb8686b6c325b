// SPDX-License-Identifier: Apache-2.0
//
// Messages of nccl over the test double. The test plays the peer, also one that violates the protocol.
#include "messages.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <utility>
#include <vector>

#include "double/stream.hpp"
#include "parts.hpp"
#include "support/eventually.hpp"
#include "support/failing_allocation.hpp"

namespace backplane::nccl {
namespace {

// Rank 0 of two. The test plays rank 1.
class NcclMessages : public testing::Test {
 protected:
  static std::vector<sdk::Descriptor> sockets() {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    ::close(pair[0]);
    std::vector<sdk::Descriptor> made(2);
    made[1] = sdk::Descriptor(pair[1]);
    return made;
  }

  static bp_buffer host(std::vector<std::byte>& buffer) { return {buffer.data(), buffer.size(), BP_HOST, 0}; }
  static bp_op message(uint32_t kind, int32_t peer, const bp_buffer& buffer, const Stream* stream = nullptr) {
    bp_op op;
    bp_op_init(&op, kind);
    op.dtype = BP_U8;
    op.peer = peer;
    op.tag = 5;
    op.input = op.output = buffer;
    op.stream = stream == nullptr ? nullptr : stream->get();
    op.timeout_ns = BP_NO_TIMEOUT;
    return op;
  }
  std::unique_ptr<sdk::Work> receive(std::vector<std::byte>& buffer) {
    return messages_.submit(message(BP_RECV, 1, host(buffer)));
  }
  int32_t arrives(const Frame& frame) {
    return status_of([this, &frame] { messages_.on_frame(1, frame); });
  }
  // Frames of the messenger, by its kinds.
  enum Kind : uint32_t { kEager = 1, kAnnounce, kReady, kData, kWithdraw };
  int32_t arrives(uint32_t kind, uint64_t id, uint64_t size = 0) {
    return arrives({.kind = FrameKind::kMessage, .head = {kind, 0, 5, id, size}});
  }
  int32_t channel_arrives() { return arrives({.kind = FrameKind::kChannel, .channel = Communicator::new_id(api_)}); }

  Api api_ = open_api(BACKPLANE_NCCL_DOUBLE);
  Pool pool_{api_, 0};
  GroupFailure failure_{[] {}};
  Transport transport_{sockets(), {}};
  Messages messages_{{api_, 0, pool_, 0}, 0, 2, failure_, transport_, [] {}};
};

TEST_F(NcclMessages, RefuseDataOfAnotherSizeThanWasAnnounced) {
  std::vector<std::byte> buffer(16);
  const std::unique_ptr<sdk::Work> work = receive(buffer);
  EXPECT_EQ(arrives(kAnnounce, 1, 16), BP_OK);
  EXPECT_EQ(arrives(kData, 1, 16), BP_INTERNAL) << "there is no channel";
  EXPECT_EQ(channel_arrives(), BP_OK);
  EXPECT_EQ(arrives(kData, 1, 1 << 20), BP_INTERNAL);
  EXPECT_FALSE(work->wait(0));
  EXPECT_EQ(arrives(kData, 1, 16), BP_OK);
  messages_.fail({BP_CANCELLED, "the test is over"});
}

TEST_F(NcclMessages, RefuseMalformedFrames) {
  EXPECT_EQ(arrives(kAnnounce, 1, UINT64_MAX), BP_INTERNAL);
  EXPECT_EQ(arrives(kAnnounce, 2, 8), BP_OK);
  EXPECT_EQ(arrives(kAnnounce, 2, 16), BP_INTERNAL);
  EXPECT_EQ(channel_arrives(), BP_OK);
  EXPECT_EQ(channel_arrives(), BP_INTERNAL);
  EXPECT_EQ(arrives(kData, 2, 8), BP_INTERNAL);
  EXPECT_EQ(arrives(77, 0), BP_INTERNAL);
  EXPECT_EQ(arrives({.kind = static_cast<FrameKind>(77)}), BP_INTERNAL);
}

TEST_F(NcclMessages, NameWhatIsWrongWithAFrame) {
  const auto text_of = [this](const Frame& frame) -> std::string {
    try {
      messages_.on_frame(1, frame);
    } catch (const sdk::Failure& why) {
      EXPECT_EQ(why.peer_rank(), 1);
      return why.what();
    }
    return "";
  };
  const std::string front = "nccl: rank 1 sent a malformed frame: ";
  const std::string back = "; run the same version with the same options on all ranks";
  EXPECT_EQ(text_of({.kind = static_cast<FrameKind>(77)}), front + "kind 77 is unknown" + back);
  EXPECT_EQ(text_of({.kind = FrameKind::kMessage, .head = {77, 0, 5, 1, 0}}), front + "kind 77 is unknown" + back);
  EXPECT_EQ(text_of({.kind = FrameKind::kMessage, .head = {kData, 0, 5, 3, 8}}),
            front + "its data are of message 3, which was not requested" + back);
  EXPECT_EQ(channel_arrives(), BP_OK);
  EXPECT_EQ(text_of({.kind = FrameKind::kChannel, .channel = Communicator::new_id(api_)}),
            front + "it opens a second channel" + back);
}

// Work of the program is ahead of the message in its stream.
TEST_F(NcclMessages, WaitForTheirStreamBeforeTheyWaitForALostPeer) {
  const Stream stream(api_, 0);
  std::promise<void> gate;
  nccl_double::stream_of(stream.get()).add([open = gate.get_future().share()] { open.wait(); });
  const PooledMemory to(pool_, 16);
  const auto work = messages_.submit(message(BP_RECV, 1, {to.data(), 16, BP_CUDA, 0}, &stream));
  EXPECT_EQ(channel_arrives(), BP_OK);
  EXPECT_EQ(arrives(kAnnounce, 1, 16), BP_OK);
  EXPECT_EQ(arrives(kData, 1, 16), BP_OK);
  messages_.lost(1, {BP_PEER_LOST, "rank 1 is lost", 1}, std::chrono::nanoseconds(0));
  const auto progress = [this] { return status_of([this] { messages_.progress(); }); };
  for (int i = 0; i < 10; ++i) EXPECT_EQ(progress(), BP_OK);
  gate.set_value();
  EXPECT_TRUE(test::eventually([&progress] { return progress() == BP_PEER_LOST; }));
  messages_.fail({BP_CANCELLED, "the test is over"});
}

TEST_F(NcclMessages, CancelAReceiveWhoseMessageIsWithdrawn) {
  std::vector<std::byte> buffer(16);
  const std::unique_ptr<sdk::Work> work = receive(buffer);
  EXPECT_EQ(arrives(kAnnounce, 1, 16), BP_OK);
  work->cancel();
  EXPECT_FALSE(work->wait(0));
  EXPECT_EQ(arrives(kWithdraw, 1), BP_OK);
  EXPECT_EQ(status_of([&work] { work->wait(0); }), BP_CANCELLED);
}

// After an out-of-memory failure the caller frees the buffer and the result.
TEST_F(NcclMessages, KeepNothingOfAReceiveThatRanOutOfMemory) {
  std::vector<std::byte> buffer(16);
  std::unique_ptr<sdk::Work> work;
  for (uint64_t number = 1; !work; ++number) {
    bp_result result{sizeof result, -7, 0, 0};
    bp_op op = message(BP_RECV, 1, host(buffer));
    op.result = &result;
    test::with_failing_allocation(number, [this, &op, &work] { work = messages_.submit(op); });
    EXPECT_EQ(arrives(kEager, number), BP_OK);
    EXPECT_EQ(result.source, work ? 1 : -7);
    if (!work) {
      EXPECT_EQ(receive(buffer), nullptr) << "the message was not there";
    } else {
      EXPECT_GT(number, 2);
    }
  }
}

TEST_F(NcclMessages, KeepNothingOfASendThatRanOutOfMemory) {
  std::vector<std::byte> buffer(16);
  const bp_op op = message(BP_SEND, 1, host(buffer));
  std::unique_ptr<sdk::Work> work;
  for (uint64_t number = 1; !work; ++number) {
    test::with_failing_allocation(number, [this, &op, &work] { work = messages_.submit(op); });
    for (uint64_t id = 1; id <= number && !work; ++id) {
      EXPECT_EQ(arrives(kReady, id), BP_OK);
      messages_.progress();
      EXPECT_FALSE(messages_.busy()) << "the send without allocation " << number << " continues";
    }
  }
  messages_.fail({BP_CANCELLED, "the test is over"});
}

TEST_F(NcclMessages, ToThisRankKeepTheirOrderWhenOneRunsOutOfMemory) {
  const Stream stream(api_, 0);
  const PooledMemory to(pool_, 16);
  std::vector<std::byte> from(16);
  Counting<&CudaTable::stream_wait_event>::put_into(api_.cuda);
  bool lacked = true;
  for (int number = 1; lacked; ++number) {
    const auto received = messages_.submit(message(BP_RECV, 0, {to.data(), 16, BP_CUDA, 0}, &stream));
    std::unique_ptr<sdk::Work> sent;
    const bp_op op = message(BP_SEND, 0, host(from));
    lacked = test::with_failing_allocation(static_cast<uint64_t>(number),
                                           [this, &op, &sent] { sent = messages_.submit(op); });
    if (!sent) sent = messages_.submit(op);
    const auto is_received = [this, &received] {
      messages_.progress();
      return received->wait(0);
    };
    ASSERT_TRUE(test::eventually(is_received)) << number;
    EXPECT_TRUE(sent->wait(BP_NO_TIMEOUT));
    EXPECT_EQ(Counting<&CudaTable::stream_wait_event>::calls, number) << "a message did not wait for its stream";
  }
}

TEST_F(NcclMessages, AreCancelledWithoutMemory) {
  std::vector<std::byte> buffer(16);
  const std::unique_ptr<sdk::Work> received = receive(buffer);
  EXPECT_FALSE(test::with_failing_allocation(1, [&received] { received->cancel(); }));
  EXPECT_EQ(status_of([&received] { received->wait(0); }), BP_CANCELLED);
  // A withdrawal is a frame, and now and then the queue of frames grows. Without memory the send continues, and the
  // core aborts the group.
  bool failed = false;
  std::unique_ptr<sdk::Work> sent;
  for (int i = 0; i < 100 && !failed; ++i) {
    sent = messages_.submit(message(BP_SEND, 1, host(buffer)));
    failed = test::with_failing_allocation(1, [&sent] { sent->cancel(); });
    EXPECT_EQ(status_of([&sent] { sent->wait(0); }), failed ? BP_OK : BP_CANCELLED);
  }
  EXPECT_TRUE(failed);
  messages_.fail({BP_RESOURCE, "the core aborts the group"});
  EXPECT_EQ(status_of([&sent] { sent->wait(0); }), BP_RESOURCE);
}

TEST_F(NcclMessages, AreNotIdleWhileAFailedCopyMayUseItsBuffers) {
  const Stream stream(api_, 0);
  std::promise<void> gate;
  nccl_double::stream_of(stream.get()).add([open = gate.get_future().share()] { open.wait(); });
  const PooledMemory data(pool_, 32);
  const bp_buffer from{data.data(), 16, BP_CUDA, 0};
  const bp_buffer to{data.data() + 16, 16, BP_CUDA, 0};
  const auto received = messages_.submit(message(BP_RECV, 0, to, &stream));
  const auto sent = messages_.submit(message(BP_SEND, 0, from, &stream));
  const auto real = std::exchange(api_.cuda.event_record, [](cudaEvent_t, cudaStream_t) { return cudaErrorUnknown; });
  EXPECT_EQ(status_of([this] { messages_.progress(); }), BP_RESOURCE);
  api_.cuda.event_record = real;
  EXPECT_FALSE(messages_.is_idle());
  gate.set_value();
  EXPECT_TRUE(test::eventually([this] { return messages_.is_idle(); })) << "the device does not become idle";
  messages_.fail({BP_CANCELLED, "the test is over"});
}

TEST_F(NcclMessages, AreProbedReceivedAndDropped) {
  std::vector<std::byte> buffer(16);
  const bp_probe_api& probe = *messages_.probe_table();
  const auto probed = [&probe] {
    bp_result result = {sizeof result, -7, 0, 0};
    bp_message* found = nullptr;
    EXPECT_EQ(probe.probe(probe.ctx, 1, BP_ANY_TAG, &found, &result, nullptr), BP_OK);
    EXPECT_EQ(result.tag, 5U);
    return found;
  };
  bp_op op = message(BP_RECV, 1, host(buffer));
  EXPECT_EQ(channel_arrives(), BP_OK);
  EXPECT_EQ(arrives(kAnnounce, 1, 16), BP_OK);
  op.message = probed();
  const std::unique_ptr<sdk::Work> taken = messages_.submit(op);
  EXPECT_EQ(arrives(kAnnounce, 2, 16), BP_OK);
  EXPECT_EQ(arrives(kWithdraw, 1), BP_OK);
  EXPECT_EQ(status_of([&taken] { taken->wait(0); }), BP_CANCELLED) << "it must not take another message";
  probe.drop(probe.ctx, probed());
  EXPECT_EQ(arrives(kData, 2, 16), BP_INTERNAL) << "no receive has taken it";
  EXPECT_EQ(arrives(kAnnounce, 3, 16), BP_OK);
  op.message = probed();
  EXPECT_TRUE(test::with_failing_allocation(1, [this, &op] { messages_.submit(op); }));
  EXPECT_EQ(arrives(kAnnounce, 3, 16), BP_OK) << "it was dropped, so its id is free";
  messages_.fail({BP_CANCELLED, "the test is over"});
}

}  // namespace
}  // namespace backplane::nccl
