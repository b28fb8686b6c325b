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

// Counts how often it was told.
struct Told {
  Notice notice() {
    return {[](void* to) { ++static_cast<Told*>(to)->times; }, this};
  }
  std::atomic<int> times = 0;
};

TEST(NotifyTest, ACompletionTellsOnceWhenItIsSettled) {
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

TEST(NotifyTest, ACompletionThatIsSettledTellsAtOnce) {
  auto completion = std::make_shared<Completion>();
  completion->fail(Failure(BP_TIMEOUT, "late"));
  Told told;
  EXPECT_TRUE(CompletionWork(completion).on_end(told.notice()));
  EXPECT_EQ(told.times, 1);
}

// Whoever sees the end may release the work, and what the notice points to, at once.
TEST(NotifyTest, WhoSeesTheEndOfACompletionHasBeenTold) {
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

TEST(NotifyTest, TasksOfWorkersTellHoweverTheyEnd) {
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

// A group whose operations end when the test says so.
class Slow final : public ProcessGroup {
 public:
  explicit Slow(bool tells) : tells_(tells) {}
  std::unique_ptr<Work> submit(const bp_op&) override {
    flying.push_back(std::make_shared<Completion>());
    if (tells_) return std::make_unique<CompletionWork>(flying.back());
    return std::make_unique<Mute>(flying.back());
  }
  void abort(const Failure& why) noexcept override {
    for (const auto& each : flying) each->fail(why);
  }
  const void* extension(std::string_view id) override {
    if (id == BP_EXT_PROBE || id == BP_EXT_NATIVE) return this;
    return id == BP_EXT_NOTIFY ? notify_table() : nullptr;
  }
  std::vector<std::shared_ptr<Completion>> flying;

 private:
  struct Mute final : Work {
    explicit Mute(std::shared_ptr<Completion> of) : completion(std::move(of)) {}
    bool wait(int64_t timeout_ns) override { return completion->wait(timeout_ns); }
    std::shared_ptr<Completion> completion;
  };
  const bool tells_;
};

// A layer that watches, around that.
class Watching final : public Layer {
 public:
  using Layer::Layer;
  std::unique_ptr<Work> submit(const bp_op& op) override {
    const auto ended = [this](const Failure*) { ++seen; };
    return std::make_unique<ObservedWork<decltype(ended)>>(inner().submit(op), ended);
  }
  int seen = 0;
};

struct Stack {
  explicit Stack(bool tells) : slow(tells) {
    agent.struct_size = sizeof agent;
    agent.kind = BP_KIND_PROCESS_GROUP;
    agent.api = &detail::kProcessGroupApi;
    agent.self = &slow;
    bp_init init = init_of(host, 0, 1, 0);
    init.inner = &agent;
    layer = std::make_unique<Watching>(Context(init));
  }
  // The status, as the core gets it.
  int32_t on_end(const std::unique_ptr<Work>& work, Told& told) {
    const auto* api = static_cast<const bp_notify_api*>(layer->extension(BP_EXT_NOTIFY));
    const Notice notice = told.notice();
    return api->on_end(api->ctx, reinterpret_cast<bp_work*>(work.get()), notice.ended, notice.to, nullptr);
  }

  MemoryHost host;
  Slow slow;
  bp_agent agent{};
  std::unique_ptr<Watching> layer;
};

TEST(NotifyTest, ALayerAsksTheWrappedGroupWithItsOwnWork) {
  Stack stack(true);
  bp_op op;
  bp_op_init(&op, BP_SEND);
  Told told;
  const std::unique_ptr<Work> work = stack.layer->submit(op);
  EXPECT_EQ(stack.on_end(work, told), BP_OK);
  EXPECT_EQ(told.times, 0);
  stack.slow.flying.back()->finish();
  EXPECT_EQ(told.times, 1);
  EXPECT_EQ(stack.layer->seen, 0) << "that is by wait";
  EXPECT_TRUE(work->wait(0));
  EXPECT_EQ(stack.layer->seen, 1);
}

TEST(NotifyTest, ALayerSaysThatAWorkHasNoNotice) {
  Stack stack(false);
  bp_op op;
  bp_op_init(&op, BP_SEND);
  Told told;
  const std::unique_ptr<Work> work = stack.layer->submit(op);
  EXPECT_EQ(stack.on_end(work, told), BP_UNSUPPORTED);
  stack.slow.abort(Failure(BP_CANCELLED, "over"));
  EXPECT_EQ(told.times, 0);
}

TEST(NotifyTest, ALayerHandsOnWhatTakesNoWorks) {
  const Stack stack(true);
  EXPECT_EQ(stack.layer->extension(BP_EXT_PROBE), &stack.slow);
  EXPECT_EQ(stack.layer->extension(BP_EXT_NATIVE), &stack.slow);
  EXPECT_EQ(stack.layer->extension("backplane.unknown/1"), nullptr);
}

}  // namespace
}  // namespace backplane::sdk
