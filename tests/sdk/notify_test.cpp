// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/notify.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "backplane/sdk/layer.hpp"
#include "backplane/sdk/worker.hpp"
#include "sdk/host.hpp"
#include "support/eventually.hpp"

namespace backplane::sdk {
namespace {

using backplane::test::eventually;

// Counts its calls.
struct Told {
  Notice notice() {
    return {[](void* to) { ++static_cast<Told*>(to)->times; }, this};
  }
  std::atomic<int> times = 0;
};

TEST(NotifyTest, ACompletionNotifiesOnceWhenItIsSettled) {
  auto completion = std::make_shared<Completion>();
  CompletionWork work(completion);
  Told told;
  EXPECT_TRUE(work.on_end(told.notice()));
  EXPECT_EQ(told.times, 0);
  completion->finish();
  EXPECT_EQ(told.times, 1);
  completion->fail(Failure(BP_INTERNAL, "too late"));
  EXPECT_TRUE(work.wait(0));
  EXPECT_EQ(told.times, 1);
}

TEST(NotifyTest, ASettledCompletionNotifiesAtOnce) {
  auto completion = std::make_shared<Completion>();
  completion->fail(Failure(BP_TIMEOUT, "late"));
  Told told;
  EXPECT_TRUE(CompletionWork(completion).on_end(told.notice()));
  EXPECT_EQ(told.times, 1);
}

// A thread that sees the end may release the work and the notice's context at once.
TEST(NotifyTest, TheNoticePrecedesTheEndOfWait) {
  for (int round = 0; round < 2000; ++round) {
    auto completion = std::make_shared<Completion>();
    auto told = std::make_unique<Told>();
    auto work = std::make_unique<CompletionWork>(completion);
    work->on_end(told->notice());
    std::thread ending([completion = std::move(completion)] { completion->finish(); });
    while (!work->wait(0)) {
    }
    EXPECT_EQ(told->times, 1);
    work.reset();
    told.reset();
    ending.join();
  }
}

TEST(NotifyTest, TasksOfWorkersNotifyOnEveryEnd) {
  Told done, failed, aborted;
  {
    Workers workers(1);
    auto one = workers.submit([] {});
    auto two = workers.submit([] { throw Failure(BP_TIMEOUT, "no"); });
    one->on_end(done.notice());
    two->on_end(failed.notice());
    EXPECT_TRUE(eventually([&] { return done.times == 1 && failed.times == 1; }));
    auto three = workers.submit([](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      throw Failure(BP_CANCELLED, "told to");
    });
    three->on_end(aborted.notice());
    EXPECT_EQ(aborted.times, 0);
    workers.abort(Failure(BP_CANCELLED, "over"));
    EXPECT_TRUE(eventually([&] { return aborted.times == 1; }));
  }
  EXPECT_EQ(done.times + failed.times + aborted.times, 3);
}

// A group whose operations end on request of the test.
class ManualGroup final : public ProcessGroup {
 public:
  explicit ManualGroup(bool has_notices) : has_notices_(has_notices) {}
  std::unique_ptr<Work> submit(const bp_op&) override {
    completions.push_back(std::make_shared<Completion>());
    if (has_notices_) return std::make_unique<CompletionWork>(completions.back());
    return std::make_unique<WorkWithoutNotice>(completions.back());
  }
  void abort(const Failure& why) noexcept override {
    for (const auto& each : completions) each->fail(why);
  }
  const void* extension(std::string_view id) override {
    if (id == BP_EXT_PROBE || id == BP_EXT_NATIVE) return this;
    return id == BP_EXT_NOTIFY ? notify_table() : nullptr;
  }
  std::vector<std::shared_ptr<Completion>> completions;

 private:
  struct WorkWithoutNotice final : Work {
    explicit WorkWithoutNotice(std::shared_ptr<Completion> of) : completion(std::move(of)) {}
    bool wait(int64_t timeout_ns) override { return completion->wait(timeout_ns); }
    std::shared_ptr<Completion> completion;
  };
  const bool has_notices_;
};

// A layer around that group.
class CountingLayer final : public Layer {
 public:
  using Layer::Layer;
  std::unique_ptr<Work> submit(const bp_op& op) override {
    const auto ended = [this](const Failure*) { ++seen; };
    return std::make_unique<ObservedWork<decltype(ended)>>(inner().submit(op), ended);
  }
  int seen = 0;
};

struct Stack {
  explicit Stack(bool has_notices) : group(has_notices) {
    agent.struct_size = sizeof agent;
    agent.kind = BP_KIND_PROCESS_GROUP;
    agent.api = &detail::kProcessGroupApi;
    agent.self = &group;
    bp_init init = init_of(host, 0, 1, 0);
    init.inner = &agent;
    layer = std::make_unique<CountingLayer>(Context(init));
  }
  // The status that the core gets.
  int32_t on_end(const std::unique_ptr<Work>& work, Told& told) {
    const auto* api = static_cast<const bp_notify_api*>(layer->extension(BP_EXT_NOTIFY));
    const Notice notice = told.notice();
    return api->on_end(api->ctx, reinterpret_cast<bp_work*>(work.get()), notice.ended, notice.to, nullptr);
  }

  MemoryHost host;
  ManualGroup group;
  bp_agent agent{};
  std::unique_ptr<CountingLayer> layer;
};

TEST(NotifyTest, ALayerPassesTheWrappedGroupsWork) {
  Stack stack(true);
  bp_op op;
  bp_op_init(&op, BP_SEND);
  Told told;
  const std::unique_ptr<Work> work = stack.layer->submit(op);
  EXPECT_EQ(stack.on_end(work, told), BP_OK);
  EXPECT_EQ(told.times, 0);
  stack.group.completions.back()->finish();
  EXPECT_EQ(told.times, 1);
  EXPECT_EQ(stack.layer->seen, 0) << "that is by wait";
  EXPECT_TRUE(work->wait(0));
  EXPECT_EQ(stack.layer->seen, 1);
}

TEST(NotifyTest, ALayerReportsThatAWorkHasNoNotice) {
  Stack stack(false);
  bp_op op;
  bp_op_init(&op, BP_SEND);
  Told told;
  const std::unique_ptr<Work> work = stack.layer->submit(op);
  EXPECT_EQ(stack.on_end(work, told), BP_UNSUPPORTED);
  stack.group.abort(Failure(BP_CANCELLED, "over"));
  EXPECT_EQ(told.times, 0);
}

TEST(NotifyTest, ALayerForwardsExtensionsWithoutWorks) {
  const Stack stack(true);
  EXPECT_EQ(stack.layer->extension(BP_EXT_PROBE), &stack.group);
  EXPECT_EQ(stack.layer->extension(BP_EXT_NATIVE), &stack.group);
  EXPECT_EQ(stack.layer->extension("backplane.unknown/1"), nullptr);
}

}  // namespace
}  // namespace backplane::sdk
