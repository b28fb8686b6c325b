// SPDX-License-Identifier: Apache-2.0
//
// Probed messages and completion notices through trace, chaos and validate, over a group implemented by the test.
#include <gtest/gtest.h>

#include <vector>

#include "backplane/sdk/sdk.hpp"
#include "sdk/host.hpp"
#include "support/agents.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

// Rank 0 of two. The test plays the other rank.
class Innermost final : public sdk::ProcessGroup {
 public:
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    sdk::Receive receive{op.peer, op.tag, op.output.data, op.output.count, op.result, nullptr, 0, false};
    const auto received = op.message == nullptr ? mailbox.take(receive) : mailbox.take(op.message, receive);
    if (received->wait(0)) return nullptr;
    return std::make_unique<sdk::CompletionWork>(received, [this, received] { mailbox.cancel(received.get()); });
  }
  void abort(const sdk::Failure& why) noexcept override { mailbox.close(why, why); }
  const void* extension(std::string_view id) override {
    if (id == BP_EXT_NOTIFY) return sdk::notify_table();
    return id == BP_EXT_PROBE ? probe_.table() : nullptr;
  }
  sdk::Mailbox mailbox;

 private:
  sdk::MailboxProbe probe_{mailbox};
};

// A layer around Innermost.
class Layered {
 public:
  Layered(const char* file, const char* id, std::vector<bp_key_value> values) {
    inner_.struct_size = sizeof inner_;
    inner_.kind = BP_KIND_PROCESS_GROUP;
    inner_.api = &sdk::detail::kProcessGroupApi;
    inner_.self = &group;
    inner_.world_size = 2;
    bp_init init = sdk::init_of(host_, 0, 2, 0);
    init.inner = &inner_;
    init.values = values.data();
    init.value_count = static_cast<uint32_t>(values.size());
    agent_.struct_size = sizeof agent_;
    bp_error err;
    bp_error_init(&err);
    const bp_backend& backend = open_backend(file, id);
    if (backend.init(&backend, &init, &agent_, &err) != BP_OK) throw std::runtime_error(err.text);
  }
  ~Layered() {
    release();
    api().destroy(agent_.self);
  }
  Layered(const Layered&) = delete;
  Layered& operator=(const Layered&) = delete;

  const bp_process_group_api& api() const { return *static_cast<const bp_process_group_api*>(agent_.api); }
  template <typename Table>
  const Table& extension(const char* id) const {
    return *static_cast<const Table*>(api().extension(agent_.self, id));
  }
  // Probes a message that waits at its sender until it is received or dropped.
  bp_message* probed(uint64_t tag = 5) {
    sent = group.mailbox.put(1, tag, large_.data(), large_.size());
    bp_result result = {sizeof result, -1, 0, 0};
    bp_message* message = nullptr;
    const auto& probe = extension<bp_probe_api>(BP_EXT_PROBE);
    EXPECT_EQ(probe.probe(probe.ctx, 1, tag, &message, &result, nullptr), BP_OK);
    return message;
  }
  int32_t recv(bp_message* message, std::vector<char>& buffer) {
    release();
    bp_op op;
    bp_op_init(&op, BP_RECV);
    op.dtype = BP_U8;
    op.peer = 1;
    op.tag = 7;
    op.output = {buffer.data(), buffer.size(), BP_HOST, 0};
    op.message = message;
    return api().submit(agent_.self, &op, &work, nullptr);
  }
  int32_t on_end(std::atomic<int>& told) {
    const auto& notify = extension<bp_notify_api>(BP_EXT_NOTIFY);
    return notify.on_end(
        notify.ctx, work, [](void* to) { ++*static_cast<std::atomic<int>*>(to); }, &told, nullptr);
  }
  int32_t end() {
    return work == nullptr ? BP_OK : api().work_wait(agent_.self, work, INT64_C(60'000'000'000), nullptr);
  }
  void abort(int32_t status) {
    bp_error why;
    bp_error_init(&why);
    bp_error_set(&why, status, 0, -1, "over");
    api().abort(agent_.self, &why);
  }
  void cancel() { api().work_cancel(agent_.self, work); }

  Innermost group;
  std::shared_ptr<sdk::Completion> sent;
  bp_work* work = nullptr;
  std::vector<char> buffer = std::vector<char>(sdk::Mailbox::kEagerLimit + 1);

 private:
  void release() {
    if (work != nullptr) api().work_release(agent_.self, work);
    work = nullptr;
  }

  sdk::MemoryHost host_;
  bp_agent inner_{};
  bp_agent agent_{};
  const std::vector<char> large_ = std::vector<char>(sdk::Mailbox::kEagerLimit + 1, 'x');
};

std::unique_ptr<Layered> in_chaos(const char* rules) {
  return std::make_unique<Layered>(CHAOS_PLUGIN, "chaos",
                                   std::vector<bp_key_value>{{"rules", rules}, {"file", ""}, {"seed", "0"}});
}
std::unique_ptr<Layered> in_validate() {
  return std::make_unique<Layered>(VALIDATE_PLUGIN, "validate",
                                   std::vector<bp_key_value>{{"input", "error"}, {"busy", "error"}, {"nan", "error"}});
}
std::unique_ptr<Layered> in_trace() {
  return std::make_unique<Layered>(
      TRACE_PLUGIN, "trace",
      std::vector<bp_key_value>{{"file", ""}, {"interval", "0"}, {"chrome", ""}, {"events", "10"}});
}

TEST(ProbedInLayers, AreReceivedThroughEachLayer) {
  for (const auto& layer : {in_chaos("send: drop"), in_chaos("recv: delay 1ms"), in_validate(), in_trace()}) {
    EXPECT_EQ(layer->recv(layer->probed(), layer->buffer), BP_OK);
    EXPECT_EQ(layer->end(), BP_OK);
    EXPECT_EQ(layer->buffer.back(), 'x');
    EXPECT_TRUE(layer->sent->wait(0));
  }
}

TEST(ProbedInLayers, AreDroppedWhenChaosDoesNotForwardTheRecv) {
  auto layer = in_chaos("recv: error timeout");
  EXPECT_EQ(layer->recv(layer->probed(), layer->buffer), BP_TIMEOUT);
  EXPECT_TRUE(layer->sent->wait(0));

  layer = in_chaos("recv: drop");
  EXPECT_EQ(layer->recv(layer->probed(), layer->buffer), BP_OK);
  EXPECT_FALSE(layer->sent->wait(0));
  layer->cancel();
  EXPECT_EQ(layer->end(), BP_CANCELLED);
  EXPECT_TRUE(layer->sent->wait(0));

  EXPECT_EQ(layer->recv(layer->probed(), layer->buffer), BP_OK);
  bp_message* const late = layer->probed(6);
  layer->abort(BP_RESOURCE);
  EXPECT_EQ(layer->end(), BP_RESOURCE);
  EXPECT_EQ(layer->recv(late, layer->buffer), BP_RESOURCE);
}

TEST(ProbedInLayers, AreDroppedWhenValidateRejectsTheBuffer) {
  const auto layer = in_validate();
  std::vector<char> busy(100);
  EXPECT_EQ(layer->recv(nullptr, busy), BP_OK);
  bp_work* const first = std::exchange(layer->work, nullptr);
  EXPECT_EQ(layer->recv(layer->probed(), busy), BP_INVALID);
  EXPECT_TRUE(layer->sent->wait(0));
  layer->abort(BP_CANCELLED);
  layer->work = first;
  EXPECT_EQ(layer->end(), BP_CANCELLED);
}

TEST(NoticesInLayers, ComeFromTheWrappedGroup) {
  for (const auto& layer : {in_chaos("send: drop"), in_validate(), in_trace()}) {
    std::atomic<int> told = 0, told_of_abort = 0;
    EXPECT_EQ(layer->recv(nullptr, layer->buffer), BP_OK);
    EXPECT_EQ(layer->on_end(told), BP_OK);
    EXPECT_EQ(told, 0);
    layer->group.mailbox.deliver(1, 7, {});
    EXPECT_EQ(told, 1);
    EXPECT_EQ(layer->end(), BP_OK);
    EXPECT_EQ(layer->recv(nullptr, layer->buffer), BP_OK);
    EXPECT_EQ(layer->on_end(told_of_abort), BP_OK);
    layer->abort(BP_RESOURCE);
    EXPECT_EQ(told_of_abort, 1);
    EXPECT_EQ(layer->end(), BP_RESOURCE);
    EXPECT_EQ(told, 1);
  }
}

TEST(NoticesInLayers, AreUnsupportedForDelayedOperations) {
  const auto layer = in_chaos("recv: delay 1ms");
  std::atomic<int> told = 0;
  EXPECT_EQ(layer->recv(nullptr, layer->buffer), BP_OK);
  EXPECT_EQ(layer->on_end(told), BP_UNSUPPORTED);
  layer->group.mailbox.deliver(1, 7, {});
  EXPECT_EQ(layer->end(), BP_OK);
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace backplane::test
