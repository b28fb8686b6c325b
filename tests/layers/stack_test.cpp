// SPDX-License-Identifier: Apache-2.0
//
// Layers around every backend, in every order: programs behave as without layers.
#include <tuple>

#include "layers/support.hpp"
#include "support/resources.hpp"

namespace backplane::test {
namespace {

TEST(LayersTest, DistinguishesLayersFromBackends) {
  std::string text;
  EXPECT_EQ(failure_of([] { ProcessGroup::create(group_options("trace", Store::inproc(), 0, 1)); }, &text),
            Status::kInvalid);
  EXPECT_TRUE(contains(text, "trace is a layer, not a backend: name it in BACKPLANE_LAYERS")) << text;
  text = refusal("validate,inproc");
  EXPECT_TRUE(contains(text, "inproc is a backend, not a layer: BACKPLANE_LAYERS takes layers")) << text;
  text = refusal("validat");
  EXPECT_TRUE(contains(text, "unknown layer 'validat'. Did you mean 'validate'?")) << text;
  EXPECT_FALSE(contains(text, "inproc")) << "backends are listed: " << text;
  EXPECT_TRUE(
      contains(refusal("cpu:trace"), "a layer wraps the backends of all devices; write 'trace' without a device"));
  EXPECT_TRUE(contains(refusal("trace?file"), "expected key=value"));
}

// A misconfigured rank must fail at once instead of waiting for the others.
TEST(LayersTest, AreCheckedBeforeWaitingForOtherRanks) {
  const ScopedDirectory directory;
  GroupOptions options;
  options.init_method = "file://" + (directory.path() / "store").string();
  options.rank = 1;
  options.world_size = 2;
  options.timeout = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [layers, backend, sentence] : {std::tuple{"validat", "inproc", "Did you mean 'validate'?"},
                                                  {"trace?fiel=x", "inproc", "fiel"},
                                                  {"inproc", "inproc", "inproc is a backend, not a layer"},
                                                  {"trace", "validate", "validate is a layer, not a backend"}}) {
    const ScopedVariable variable("BACKPLANE_LAYERS", layers);
    options.backend = backend;
    std::string text;
    EXPECT_EQ(failure_of([&options] { ProcessGroup::create(options); }, &text), Status::kInvalid);
    EXPECT_TRUE(contains(text, sentence)) << text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(LayersTest, AreListedAsLayers) {
  char* text = nullptr;
  ASSERT_EQ(bp_registry_list(nullptr, &text, nullptr), BP_OK);
  std::string list(text);
  bp_free(text);
  std::erase_if(list, [](char c) { return c == ' ' || c == '\n'; });
  for (const char* id : {"validate", "trace", "chaos"}) {
    const size_t at = list.find("{\"id\":\"" + std::string(id) + "\"");
    ASSERT_NE(at, std::string::npos) << list;
    EXPECT_TRUE(contains(list.substr(at, list.find('}', at) - at), "\"kinds\":[\"layer\"]")) << list;
  }
}

class StackTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void in_stack(int world_size, const std::function<void(ProcessGroup&)>& body) const {
    in_layers(std::get<1>(GetParam()), std::get<0>(GetParam()), world_size, body);
  }
};

std::vector<std::string> stacks() {
  const std::string chaos = "chaos?rules=chance 0.1: delay 0ms..1ms&seed=1";
  const std::string validate = "validate?nan=error";
  const std::string trace = "trace";
  return {trace + "," + validate + "," + chaos, validate + "," + chaos + "," + trace,
          chaos + "," + trace + "," + validate, trace + "," + trace + "," + chaos + "," + chaos,
          trace + ",matching," + validate + "," + chaos};
}

INSTANTIATE_TEST_SUITE_P(Backends, StackTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::ValuesIn(stacks())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(info.index % stacks().size());
                         });

TEST_P(StackTest, OperationsAndFailures) {
  in_stack(3, [](ProcessGroup& group) {
    const int rank = group.rank();
    std::vector<float> sums(5000, static_cast<float>(rank));
    std::vector<Work> works;
    std::vector<std::vector<float>> more(8, sums);
    for (auto& each : more) works.push_back(group.all_reduce(each, ReduceOp::kSum, {.async_op = true}));
    group.all_reduce(sums);
    for (Work& work : works) work.wait();
    EXPECT_EQ(sums, std::vector<float>(5000, 3));
    EXPECT_EQ(more[7], sums);
    const std::vector<int> out = {rank * 10, rank * 10 + 1, rank * 10 + 2};
    std::vector<int> in(3);
    group.all_to_all(out, in);
    EXPECT_EQ(in, (std::vector<int>{rank, 10 + rank, 20 + rank}));
    std::vector<int> root(3, rank);
    group.broadcast(root, 1);
    EXPECT_EQ(root[2], 1);
    int value = 0;
    EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), rank, 5, {.timeout = std::chrono::milliseconds(20)}); }),
              Status::kTimeout);
    Work pending = group.irecv(as_buffer(value), rank, 6);
    pending.cancel();
    EXPECT_EQ(failure_of([&] { pending.wait(); }), Status::kCancelled);
    group.barrier();
  });
}

TEST_P(StackTest, AbortAndDestroyWithPending) {
  BarrierLeftByAll barrier(2);
  in_stack(2, [&barrier](ProcessGroup& group) {
    int values[2] = {};
    Work pending = group.irecv(as_buffer(values[0]), group.rank(), 1);
    barrier(group);
    if (group.rank() == 0) {
      group.abort("aborted by the test");
      std::string text;
      EXPECT_EQ(failure_of([&] { pending.wait(); }, &text), Status::kCancelled);
      EXPECT_TRUE(contains(text, "aborted by the test")) << text;
      EXPECT_EQ(failure_of([&] { group.send(as_buffer(values[1]), 0); }, &text), Status::kCancelled);
    } else {
      group.destroy();
      EXPECT_EQ(failure_of([&] { pending.wait(); }), Status::kCancelled);
    }
  });
}

TEST_P(StackTest, LeavesNoDescriptorOrThread) {
  const auto cycle = [this] { in_stack(2, [](ProcessGroup& group) { group.barrier(); }); };
  cycle();
  const Resources before;
  for (int i = 0; i < 5; ++i) cycle();
  EXPECT_TRUE(before.are_restored());
}

}  // namespace
}  // namespace backplane::test
