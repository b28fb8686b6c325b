// SPDX-License-Identifier: Apache-2.0
//
// The agent process_group without the core: refusals, receipts, order of goodbyes.
#include "../../plugins/process_group/wire.hpp"
#include "backplane/sdk/layer.hpp"
#include "log.hpp"
#include "rpc/test_agent.hpp"

namespace backplane::test {
namespace {

TEST(ProcessGroupAgentTest, ReceiverReportsRefusedMessages) {
  const TestAgents sides(builtin("process_group"), {}, 50000);
  sides.zero->send(1, 7, 100000);  // in parts
  sides.zero->send(1, 8, 2000000);
  sides.zero->send(1, 9, 1000);
  for (const uint64_t id : {7, 8}) {
    EXPECT_EQ(sides.zero->failure(id),
              "its receiver refused it: the message is larger than this worker takes (max_message_bytes)");
  }
  sides.zero->send(1, 10, 40000);
  EXPECT_TRUE(sides.one->has_received(2));
}

// A peer that sends and receives the frames of the agent over the inner group.
class Peer {
 public:
  explicit Peer(const std::shared_ptr<core::Store>& store)
      : host_("rank 1", store),
        agent_(start_agent(builtin("inproc"), BP_KIND_PROCESS_GROUP, 1, &host_, {}, nullptr)),
        group_(&agent_) {}
  ~Peer() { static_cast<const bp_process_group_api*>(agent_.api)->destroy(agent_.self); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::string receive_frame() {
    std::string frame(process_group::kFrameSize, '\0');
    bp_result result = {sizeof(bp_result), -1, 0, 0};
    message(BP_RECV, &frame, &result);
    frame.resize(result.bytes);
    return frame;
  }
  void send_frame(process_group::Frame head, std::string_view payload) {
    send_bytes(process_group::encode(&head, payload, {}));
  }
  void send_bytes(std::string bytes) { message(BP_SEND, &bytes, nullptr); }
  void receive_part(uint64_t number, size_t part, std::string* bytes) {
    bp_result result = {sizeof(bp_result), -1, 0, 0};
    message(BP_RECV, bytes, &result, (uint64_t{1} << 48) | (number * process_group::kMaxParts + part));
  }
  // Sends the first part of a large message.
  void send_part(uint64_t number, std::string bytes) {
    message(BP_SEND, &bytes, nullptr, (uint64_t{1} << 48) | (number * process_group::kMaxParts));
  }

 private:
  void message(uint32_t kind, std::string* bytes, bp_result* result, uint64_t tag = 1) {
    bp_op op;
    bp_op_init(&op, kind);
    op.dtype = BP_U8;
    op.tag = tag;
    op.timeout_ns = BP_NO_TIMEOUT;
    op.result = result;
    (kind == BP_SEND ? op.input : op.output) = {bytes->data(), bytes->size(), BP_HOST, 0};
    const auto work = group_.submit(op);
    if (!work || work->wait(INT64_C(20'000'000'000))) return;
    work->cancel();
    throw std::runtime_error(kind == BP_SEND ? "the peer's message was not received within 20 s"
                                             : "the peer received no message within 20 s");
  }

  core::Host host_;
  bp_agent agent_;
  const sdk::Inner group_;
};

// The agent at rank 0, and a peer at rank 1, which start concurrently.
struct AgentAndPeer {
  explicit AgentAndPeer(const core::KeyValues& options = {}, void (*modify_group)(bp_agent*) = nullptr) {
    std::thread other([this] { peer = std::make_unique<Peer>(store); });
    agent = std::make_unique<TestAgent>(builtin("process_group"), store, 0, options, uint64_t{1} << 32, modify_group);
    other.join();
  }
  const std::shared_ptr<core::Store> store = core::make_inproc_store();
  std::unique_ptr<Peer> peer;
  std::unique_ptr<TestAgent> agent;
};

TEST(ProcessGroupAgentTest, ReportsAFailureOnce) {
  const AgentAndPeer pair;
  ASSERT_EQ(pair.agent->send(1, 7, 100000, 1'000'000), BP_OK);  // its buffer is not received
  process_group::Frame frame;
  process_group::decode(pair.peer->receive_frame(), UINT64_MAX, &frame);
  const std::string why = "it was not received within its timeout";
  EXPECT_EQ(pair.agent->failure(7), why);
  frame.refusal = BP_INVALID;
  pair.peer->send_frame(frame, "too late");
  pair.peer->send_frame({}, "after that");
  EXPECT_TRUE(pair.agent->has_received(1));
  EXPECT_EQ(pair.agent->failure(7), why);
}

TEST(ProcessGroupAgentTest, ReportsMissingPartsToTheSender) {
  const AgentAndPeer pair;
  process_group::Frame head;
  head.number = 7;
  head.timeout_ns = 1'000'000;
  pair.peer->send_frame(head, std::string(100000, 'x'));
  process_group::Frame refusal;
  const std::string bytes = pair.peer->receive_frame();
  process_group::decode(bytes, UINT64_MAX, &refusal);
  EXPECT_EQ(refusal.number, 7U);
  EXPECT_EQ(refusal.refusal, BP_TIMEOUT);
  EXPECT_EQ(bytes.substr(refusal.parts[0].offset, refusal.parts[0].bytes),
            "its parts did not arrive within their timeout");
}

// A goodbye that arrives during a large message is deferred.
TEST(ProcessGroupAgentTest, DeliversGoodbyesAfterEarlierMessages) {
  const AgentAndPeer pair;
  process_group::Frame large;
  large.number = 1;
  large.id = 7;
  const std::string payload(100000, 'x');
  pair.peer->send_frame(large, payload);
  const auto begun = std::chrono::steady_clock::now();
  process_group::Frame goodbye;
  goodbye.number = 2;
  pair.peer->send_frame(goodbye, "goodbye");
  process_group::Frame call;
  call.number = 3;
  call.id = 8;
  pair.peer->send_frame(call, "a call");
  pair.agent->has_received(1);  // the call, which was sent after the goodbye
  pair.peer->send_part(1, payload);
  ASSERT_TRUE(pair.agent->has_received(3));
  const bool was_late =
      std::chrono::steady_clock::now() - begun >= std::chrono::seconds(1);  // the limit of the deferral
  EXPECT_TRUE(was_late || pair.agent->received_payloads() == std::vector<uint64_t>({6, 100000, 7}));
}

// A withdrawn message does not delay a goodbye.
TEST(ProcessGroupAgentTest, WithdrawnMessagesDelayNoGoodbye) {
  const AgentAndPeer pair;
  process_group::Frame large;
  large.number = 1;
  large.id = 7;
  pair.peer->send_frame(large, std::string(100000, 'x'));
  process_group::Frame end;
  end.number = 1;
  end.withdrawn = true;
  pair.peer->send_frame(end, "");
  process_group::Frame goodbye;
  goodbye.number = 2;
  pair.peer->send_frame(goodbye, "goodbye");
  process_group::Frame call;
  call.number = 3;
  call.id = 8;
  pair.peer->send_frame(call, "a call");
  ASSERT_TRUE(pair.agent->has_received(2));
  EXPECT_EQ(pair.agent->received_payloads(), std::vector<uint64_t>({7, 6}));
  pair.peer->send_frame(end, "");  // already withdrawn: ignored
  pair.peer->send_frame(call, "another");
  EXPECT_TRUE(pair.agent->has_received(3));
}

// Calls to and from that worker fail at once.
TEST(ProcessGroupAgentTest, BothSidesReportAnotherVersion) {
  const AgentAndPeer pair;
  process_group::Frame call;
  call.number = call.id = 1;
  std::string unknown = process_group::encode(&call, "a call", {});
  EXPECT_EQ(unknown.substr(0, 8), "pframe04");
  unknown.replace(6, 2, "99");
  pair.peer->send_bytes(unknown);
  ASSERT_TRUE(pair.agent->reports_loss_of(1));
  EXPECT_EQ(pair.agent->loss_of(1),
            "rank 1 uses version 99 of this agent's frames, and this worker version 04; run the same version of "
            "Backplane on all workers");
  EXPECT_EQ(pair.agent->send(1, 7, 0), BP_UNSUPPORTED);
  EXPECT_EQ(pair.peer->receive_frame().substr(0, 8), "pframe04");  // the peer detects the version in the same way
  pair.peer->send_bytes(unknown);
  pair.peer->send_frame(call, "a call");
  EXPECT_TRUE(pair.agent->has_received(1));
  EXPECT_EQ(pair.agent->losses_of(1), 1U);  // reported once
}

// Makes large sends of the inner group fail.
void fail_large_sends(bp_agent* agent) {
  static const auto* const whole = static_cast<const bp_process_group_api*>(agent->api);
  static const bp_process_group_api failing = [] {
    bp_process_group_api api = *whole;
    api.submit = [](void* self, const bp_op* op, bp_work** work, bp_error* err) -> int32_t {
      if (op->kind == BP_SEND && op->input.count > process_group::kFrameSize) {
        return bp_error_set(err, BP_RESOURCE, 0, -1, "no memory for it");
      }
      return whole->submit(self, op, work, err);
    };
    return api;
  }();
  agent->api = &failing;
}

TEST(ProcessGroupAgentTest, WithdrawsAMessageThatFailsAfterItsFrame) {
  const AgentAndPeer pair({}, fail_large_sends);
  for (const uint64_t id : {7, 8}) {
    ASSERT_EQ(pair.agent->send(1, id, 100000), BP_OK);
    process_group::Frame frame;
    process_group::decode(pair.peer->receive_frame(), UINT64_MAX, &frame);
    EXPECT_FALSE(frame.withdrawn);
    process_group::Frame end;
    process_group::decode(pair.peer->receive_frame(), UINT64_MAX, &end);
    EXPECT_TRUE(end.withdrawn);
    EXPECT_EQ(end.number, frame.number);
    EXPECT_EQ(pair.agent->failure(id), "no memory for it");
  }
}

// A message that cannot be received does not delay others.
TEST(ProcessGroupAgentTest, DeliversOneMessagePerThreadConcurrently) {
  const AgentAndPeer pair(core::KeyValues{{"num_send_recv_threads", "2"}});
  const std::string payload(100000, 'x');
  for (const uint64_t number : {1, 2}) {
    process_group::Frame large;
    large.number = number;
    large.id = number;
    pair.peer->send_frame(large, payload);
  }
  process_group::Frame call;
  call.number = call.id = 3;
  pair.peer->send_frame(call, "a call");
  ASSERT_TRUE(pair.agent->has_received(1));  // both threads wait for the parts of the large messages
  pair.agent->block_deliveries_until(3);
  for (const uint64_t number : {1, 2}) pair.peer->send_part(number, payload);
  EXPECT_TRUE(pair.agent->has_received(3));
}

// A goodbye is released only after it has arrived, because its sender then aborts the group.
TEST(ProcessGroupAgentTest, ReleasesGoodbyesAfterEarlierMessages) {
  const AgentAndPeer pair;
  ASSERT_EQ(pair.agent->send(1, 7, 100000), BP_OK);
  ASSERT_EQ(pair.agent->send(1, 0, 0), BP_OK);
  process_group::Frame large;
  process_group::decode(pair.peer->receive_frame(), UINT64_MAX, &large);
  process_group::Frame goodbye;
  process_group::decode(pair.peer->receive_frame(), UINT64_MAX, &goodbye);
  process_group::Frame receipt;
  receipt.number = goodbye.number;
  receipt.receipt = true;
  pair.peer->send_frame(receipt, "");
  ASSERT_EQ(pair.agent->send(1, 8, 0), BP_OK);
  pair.peer->receive_frame();
  EXPECT_TRUE(pair.agent->holds_messages(2));  // the last message has been released
  std::string bytes(100000, '\0');
  pair.peer->receive_part(large.number, 1, &bytes);
  EXPECT_TRUE(pair.agent->holds_messages(0));
}

// A completed send does not mean that the goodbye has arrived.
TEST(ProcessGroupAgentTest, ReleasesGoodbyesWithTheirReceipt) {
  const AgentAndPeer pair;
  ASSERT_EQ(pair.agent->send(1, 0, 0), BP_OK);
  process_group::Frame goodbye;
  process_group::decode(pair.peer->receive_frame(), UINT64_MAX, &goodbye);
  ASSERT_EQ(pair.agent->send(1, 7, 0), BP_OK);
  pair.peer->receive_frame();
  EXPECT_TRUE(pair.agent->holds_messages(1));
  process_group::Frame receipt;
  receipt.number = goodbye.number;
  receipt.receipt = true;
  pair.peer->send_frame(receipt, "");
  EXPECT_TRUE(pair.agent->holds_messages(0));
  // Without a receipt it is released at its timeout.
  ASSERT_EQ(pair.agent->send(1, 0, 0, 1'000'000), BP_OK);
  EXPECT_TRUE(pair.agent->holds_messages(0));
}

TEST(ProcessGroupAgentTest, ConfirmsReceivedGoodbyes) {
  const AgentAndPeer pair;
  process_group::Frame goodbye;
  goodbye.number = 7;
  pair.peer->send_frame(goodbye, "goodbye");
  process_group::Frame receipt;
  process_group::decode(pair.peer->receive_frame(), UINT64_MAX, &receipt);
  EXPECT_TRUE(receipt.receipt);
  EXPECT_EQ(receipt.number, 7U);
  EXPECT_TRUE(pair.agent->has_received(1));
}

// Makes all sends of the inner group fail, as to a peer that has left.
void fail_sends(bp_agent* agent) {
  static const auto* const whole = static_cast<const bp_process_group_api*>(agent->api);
  static const bp_process_group_api failing = [] {
    bp_process_group_api api = *whole;
    api.submit = [](void* self, const bp_op* op, bp_work** work, bp_error* err) -> int32_t {
      if (op->kind == BP_SEND) return bp_error_set(err, BP_PEER_LOST, 0, op->peer, "rank 1 left");
      return whole->submit(self, op, work, err);
    };
    return api;
  }();
  agent->api = &failing;
}

// A receipt that cannot be sent to a peer that has left is logged as information only.
TEST(ProcessGroupAgentTest, IgnoresReceiptsToPeersThatLeft) {
  struct Log {
    std::mutex mutex;
    std::string lines;
  } log;
  core::set_log(
      [](void* ctx, uint32_t level, const char* text) {
        const std::lock_guard lock(static_cast<Log*>(ctx)->mutex);
        static_cast<Log*>(ctx)->lines += std::to_string(level) + " " + text + "\n";
      },
      &log);
  {
    const AgentAndPeer pair({}, fail_sends);
    for (const uint64_t number : {7, 8}) {  // the receipt of the first fails before the second is received
      process_group::Frame goodbye;
      goodbye.number = number;
      pair.peer->send_frame(goodbye, "goodbye");
    }
    EXPECT_TRUE(pair.agent->has_received(2));
  }
  core::set_log(nullptr, nullptr);
  const std::string info = std::to_string(BP_LOG_INFO);
  EXPECT_TRUE(
      log.lines.starts_with(info + " rank 0: cannot send rank 1 a refusal, withdrawal or receipt: rank 1 left\n"))
      << log.lines;
}

}  // namespace
}  // namespace backplane::test
