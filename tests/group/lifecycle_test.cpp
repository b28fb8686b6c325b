// SPDX-License-Identifier: Apache-2.0
//
// The default group of the process, and the cleanup by destroy.
#include <utility>

#include "backplane/compat/hf.hpp"
#include "support/environment.hpp"
#include "support/groups.hpp"
#include "support/resources.hpp"

namespace backplane::test {
namespace {

GroupOptions alone(const Store& store) { return group_options("self", store, 0, 1); }

TEST(LifecycleTest, DefaultGroup) {
  EXPECT_TRUE(is_available());
  EXPECT_FALSE(is_initialized());
  EXPECT_EQ(failure_of([] { get_rank(); }), Status::kInvalid);
  const Store store = Store::inproc();
  init_process_group(alone(store));
  EXPECT_TRUE(is_initialized());
  EXPECT_EQ(get_rank(), 0);
  EXPECT_EQ(get_world_size(), 1);
  EXPECT_EQ(get_backend(), "self");
  float value = 3;
  all_reduce(as_buffer(value));
  broadcast(as_buffer(value), 0);
  reduce(as_buffer(value), 0);
  EXPECT_EQ(value, 3);
  float copy = 0;
  const auto copied = [&copy] { return std::exchange(copy, 0.0F); };
  all_gather(as_buffer(value), as_buffer(copy));
  EXPECT_EQ(copied(), 3);
  gather(as_buffer(value), as_buffer(copy));
  EXPECT_EQ(copied(), 3);
  scatter(as_buffer(value), as_buffer(copy));
  EXPECT_EQ(copied(), 3);
  reduce_scatter(as_buffer(value), as_buffer(copy));
  EXPECT_EQ(copied(), 3);
  all_to_all(as_buffer(value), as_buffer(copy));
  EXPECT_EQ(copied(), 3);
  Work sending = isend(as_buffer(value), 0);
  EXPECT_EQ(recv(as_buffer(copy)), 0);
  EXPECT_EQ(copied(), 3);
  sending.wait();
  EXPECT_EQ(new_group().world_size(), 1);
  barrier();
  destroy_process_group();
  EXPECT_FALSE(is_initialized());
  EXPECT_EQ(failure_of([] { destroy_process_group(); }), Status::kInvalid);
}

TEST(LifecycleTest, InitializingTwiceIsAnError) {
  const Store store = Store::inproc();
  init_process_group(alone(store));
  std::string text;
  EXPECT_EQ(failure_of([&store] { init_process_group(alone(store)); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("twice"), std::string::npos) << text;
  destroy_process_group();
  init_process_group(alone(store));  // allowed after destroy
  destroy_process_group();
}

TEST(LifecycleTest, GroupsMayBeDestroyedTwiceAndUsedAfterwards) {
  const Store store = Store::inproc();
  ProcessGroup group = ProcessGroup::create(alone(store));
  group.destroy();
  group.destroy();
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(failure_of([&group] { group.barrier(); }), Status::kInvalid);
  EXPECT_EQ(failure_of([&group] { group.new_group({0}); }), Status::kInvalid);
  EXPECT_EQ(failure_of([&group] { group.split(0); }), Status::kInvalid);
}

TEST(LifecycleTest, ALocalBackendLeavesTheDefaultGroupUnchanged) {
  static bp_backend local_self = backend_type("self").descriptor();
  local_self.id = "local_self";
  local_self.flags |= BP_BACKEND_LOCAL;
  register_backend(local_self);
  const Store store = Store::inproc();
  ProcessGroup group = init_process_group(group_options("local_self", store, 0, 1));
  EXPECT_EQ(group.backend(), "local_self");
  EXPECT_FALSE(is_initialized());
}

#ifdef BACKPLANE_TEST_zmq
// In hfai, a local group of a library overwrote the name of the global backend.
TEST(LifecycleTest, HfZmqLocalLeavesTheDefaultGroupUnchanged) {
  const Store store = Store::inproc();
  on_ranks(1, [&store](int) {
    init_process_group(alone(store));
    GroupOptions local = group_options(compat::HF_ZMQ_LOCAL_BACKEND, store, 0, 1);
    local.name = "library";
    ProcessGroup group = compat::init_process_group(local);
    EXPECT_EQ(group.backend(), "zmq");
    group.barrier();
    EXPECT_EQ(get_backend(), "self");
    group.destroy();
    EXPECT_TRUE(is_initialized());
    destroy_process_group();
    local.name = "library2";
    ProcessGroup only = compat::init_process_group(local);
    EXPECT_FALSE(is_initialized());
  });
}

TEST(LifecycleTest, HfZmqBecomesTheDefaultGroup) {
  const Store store = Store::inproc();
  for (const char* name :
       {compat::HF_ZMQ_BACKEND, compat::HF_BARRIER_BACKEND, "hf_barrier", "HF_ZMQ", "hf_zmq?io_threads=2", "zmq"}) {
    compat::init_process_group(group_options(name, store, 0, 1));
    EXPECT_EQ(get_backend(), "zmq");
    barrier();
    destroy_process_group();
  }
}
#endif

class BackendsLifecycleTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, BackendsLifecycleTest, testing::ValuesIn(built_backends()));

TEST_P(BackendsLifecycleTest, InitAndDestroyLeaveNothingBehind) {
  const auto cycle = [this] {
    in_group(GetParam(), 2, [](ProcessGroup& group) { group.new_group({0, 1}).barrier(); });
  };
  cycle();
  const Resources before;
  for (int i = 0; i < 20; ++i) cycle();
  EXPECT_TRUE(before.are_restored());
}

TEST_P(BackendsLifecycleTest, OneStoreServesSuccessiveGroups) {
  const Store store = Store::inproc();
  for (int i = 0; i < 3; ++i) {
    on_ranks(2, [this, &store](int rank) {
      ProcessGroup group = ProcessGroup::create(group_options(GetParam(), store, rank, 2));
      int value = 1;
      group.all_reduce(as_buffer(value));
      EXPECT_EQ(value, 2);
      group.barrier();
    });
  }
}

TEST_P(BackendsLifecycleTest, OverATcpStoreAndAFile) {
  const StoreServer server;
  const Store tcp = Store::connect("127.0.0.1", server.port());
  const ScopedDirectory directory;
  const std::string file = "file://" + (directory.path() / "store").string();
  on_ranks(3, [this, &tcp, &file](int rank) {
    ProcessGroup by_store = ProcessGroup::create(group_options(GetParam(), tcp, rank, 3));
    int value = rank;
    by_store.all_reduce(as_buffer(value));
    EXPECT_EQ(value, 3);
    by_store.barrier();
    GroupOptions options;
    options.backend = GetParam();
    options.init_method = file;
    options.rank = rank;
    options.world_size = 3;
    options.timeout = std::chrono::seconds(60);
    ProcessGroup by_file = ProcessGroup::create(options);
    by_file.all_reduce(as_buffer(value));
    EXPECT_EQ(value, 9);
    by_file.barrier();
  });
}

}  // namespace
}  // namespace backplane::test
