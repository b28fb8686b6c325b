// SPDX-License-Identifier: Apache-2.0
//
// Parts of nccl over the test double, apart from messages.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "collectives.hpp"
#include "double/settings.hpp"
#include "double/stream.hpp"
#include "failure.hpp"
#include "memory.hpp"
#include "parts.hpp"
#include "support/environment.hpp"
#include "support/eventually.hpp"
#include "transport.hpp"

namespace backplane::nccl {
namespace {

TEST(NcclGroupFailure, StopsTheDeviceOnceAndWaitsForIt) {
  int stops = 0;
  GroupFailure failure([&stops] { ++stops; });
  EXPECT_TRUE(failure.set({BP_TIMEOUT, "first"}));
  EXPECT_FALSE(failure.set({BP_CANCELLED, "second"}));
  EXPECT_EQ(stops, 1);
  EXPECT_FALSE(failure.await_device_stopped(0));
  failure.set_device_stopped();
  EXPECT_TRUE(failure.await_device_stopped(0));
  EXPECT_EQ(status_of([&failure] { failure.throw_if_set(); }), BP_TIMEOUT);
}

TEST(NcclGroupFailure, HasTheCauseOfTheFirstAbort) {
  int stops = 0;
  GroupFailure failure([&stops] { ++stops; });
  failure.set({BP_PEER_LOST, "rank 1 has ended its connection", 1});
  failure.set_by_core({BP_PEER_LOST, "rank 2 was killed", 2});
  failure.set_by_core({BP_CANCELLED, "the group was destroyed"});
  EXPECT_FALSE(failure.set({BP_TIMEOUT, "late"}));
  EXPECT_EQ(failure.cause().peer_rank(), 2);
  EXPECT_EQ(stops, 1);
}

// While NCCL connects, no thread reads. Frames of a peer that has left since stay for the first progress.
TEST(NcclTransport, FindsADisconnectedPeerWithNothingLeftToRead) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  std::vector<sdk::Descriptor> sockets(3);
  sockets[2] = sdk::Descriptor(pair[0]);
  sdk::Descriptor peer(pair[1]);
  Transport transport(std::move(sockets), {});
  EXPECT_EQ(transport.disconnected(), -1);
  ASSERT_EQ(::send(peer.get(), "x", 1, 0), 1);
  EXPECT_EQ(transport.disconnected(), -1);
  peer.reset();
  EXPECT_EQ(transport.disconnected(), -1);

  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  sockets = std::vector<sdk::Descriptor>(3);
  sockets[2] = sdk::Descriptor(pair[0]);
  ::close(pair[1]);
  EXPECT_EQ(Transport(std::move(sockets), {}).disconnected(), 2);
}

// The cost of a launch, as calls into the libraries. A program without Backplane would call ncclAllReduce, poll the
// state until it is launched, and record an event.
TEST(NcclLaunch, MakesFewCallsBesideTheCollective) {
  constexpr int kLaunches = 100;
  Api api = open_api(BACKPLANE_NCCL_DOUBLE);
  Pool pool(api, 0);
  GroupFailure failure([] {});
  Communicator comm(api, 0, Communicator::new_id(api), 0, 1, 0);
  ASSERT_TRUE(test::eventually([&comm] { return comm.ready(); })) << "NCCL does not connect";
  Collectives collectives({api, 0, 0, 1, failure, pool}, comm);
  const Stream stream(api, 0);
  const PooledMemory data(pool, 4);
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_I32;
  op.reduce_op = BP_SUM;
  op.stream = stream.get();
  op.input = op.output = {data.data(), 1, BP_CUDA, 0};
  op.timeout_ns = BP_NO_TIMEOUT;  // all are launched, even on a busy machine
  const auto launch_all = [&collectives, &op] {
    std::vector<std::unique_ptr<sdk::Work>> works;
    for (int i = 0; i < kLaunches; ++i) works.push_back(collectives.submit(op));
    return works;
  };
  for (const auto& work : launch_all()) EXPECT_TRUE(work->wait(BP_NO_TIMEOUT));  // the pool has events from here on
  std::promise<void> gate;
  nccl_double::stream_of(stream.get()).add([open = gate.get_future().share()] { open.wait(); });
  Counting<&NcclTable::all_reduce>::put_into(api.nccl);
  Counting<&NcclTable::group_start>::put_into(api.nccl);
  Counting<&NcclTable::group_end>::put_into(api.nccl);
  Counting<&CudaTable::get_device>::put_into(api.cuda);
  Counting<&CudaTable::set_device>::put_into(api.cuda);
  Counting<&CudaTable::event_create>::put_into(api.cuda);
  Counting<&CudaTable::event_record>::put_into(api.cuda);
  Counting<&CudaTable::event_query>::put_into(api.cuda);
  Counting<&CudaTable::stream_wait_event>::put_into(api.cuda);
  Counting<&CudaTable::memcpy_async>::put_into(api.cuda);
  Counting<&CudaTable::malloc>::put_into(api.cuda);
  const auto works = launch_all();
  EXPECT_EQ(Counting<&NcclTable::all_reduce>::calls, kLaunches);
  EXPECT_EQ(Counting<&NcclTable::group_start>::calls, kLaunches);
  EXPECT_EQ(Counting<&NcclTable::group_end>::calls, kLaunches);
  EXPECT_EQ(Counting<&CudaTable::event_record>::calls, 2 * kLaunches);
  EXPECT_EQ(Counting<&CudaTable::get_device>::calls, 2 * kLaunches);
  EXPECT_EQ(Counting<&CudaTable::set_device>::calls, 0);
  EXPECT_EQ(Counting<&CudaTable::event_create>::calls, 0);
  EXPECT_EQ(Counting<&CudaTable::event_query>::calls, 0);
  EXPECT_EQ(Counting<&CudaTable::stream_wait_event>::calls, 0);
  EXPECT_EQ(Counting<&CudaTable::memcpy_async>::calls, 0);
  EXPECT_EQ(Counting<&CudaTable::malloc>::calls, 0);
  gate.set_value();
  for (const auto& work : works) EXPECT_TRUE(work->wait(BP_NO_TIMEOUT));
}

// The collectives of a group of one rank.
class NcclCollectives : public testing::Test {
 protected:
  // Submits to a stream that waits for gate_ and has room for one more entry.
  std::unique_ptr<sdk::Work> submit() {
    EXPECT_TRUE(is_ready_) << "NCCL does not connect";
    nccl_double::Stream& stream = nccl_double::stream_of(stream_.get());
    stream.add([open = gate_.get_future().share()] { open.wait(); });
    for (int i = 1; i < 4; ++i) stream.add([] {});
    bp_op op;
    bp_op_init(&op, BP_ALL_REDUCE);
    op.timeout_ns = 0;
    op.dtype = BP_I32;
    op.reduce_op = BP_SUM;
    op.stream = stream_.get();
    op.input = op.output = {data_.data(), 1, BP_CUDA, 0};
    return collectives_.submit(op);
  }
  const test::ScopedVariable queue_{"BACKPLANE_DOUBLE_QUEUE", "4"};
  Api api_ = open_api(BACKPLANE_NCCL_DOUBLE);
  Pool pool_{api_, 0};
  GroupFailure failure_{[] {}};
  Communicator comm_{api_, 0, Communicator::new_id(api_), 0, 1, 0};
  const bool is_ready_ = test::eventually([this] { return comm_.ready(); });
  Collectives collectives_{{api_, 0, 0, 1, failure_, pool_}, comm_};
  const Stream stream_{api_, 0};
  const PooledMemory data_{pool_, 4};
  std::promise<void> gate_;
};

// A failed launch may be partly in the stream. While the stream is full, is_idle blocks, but other functions do not.
TEST_F(NcclCollectives, AreNotIdleWhileAFailedLaunchMayUseItsBuffers) {
  double_fail(0, 3);  // after an event is created and recorded, ncclAllReduce fails
  const std::unique_ptr<sdk::Work> work = submit();
  double_fail(0, UINT64_MAX);
  ASSERT_TRUE(failure_.is_set());
  comm_.abort();
  auto stopping =
      std::async(std::launch::async, [this] { return test::eventually([this] { return collectives_.is_idle(); }); });
  EXPECT_TRUE(test::eventually([] { return double_calls() >= 2; })) << "the next event is not created and recorded";
  auto asking = std::async(std::launch::async, [this] { return collectives_.launching(); });
  EXPECT_EQ(asking.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(stopping.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  gate_.set_value();
  EXPECT_TRUE(stopping.get()) << "the device does not become idle";
  double_fail(-1, 0);
}

TEST_F(NcclCollectives, EndWhenALaunchRunsOutOfMemory) {
  api_.nccl.all_reduce = [](const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                            cudaStream_t) -> ncclResult_t { throw std::bad_alloc(); };
  const std::unique_ptr<sdk::Work> work = submit();
  ASSERT_TRUE(failure_.is_set());
  EXPECT_EQ(failure_.cause().status(), BP_RESOURCE);
  comm_.abort();
  gate_.set_value();
  EXPECT_TRUE(test::eventually([this] { return collectives_.is_idle(); })) << "the device does not become idle";
}

// Replaces NCCL's registration.
struct Registered {
  static inline std::vector<std::pair<void*, size_t>> now;
  static ncclResult_t add(ncclComm_t, void* data, size_t bytes, void** handle) {
    if (bytes == 13) return ncclSystemError;
    now.emplace_back(data, bytes);
    *handle = data;
    return ncclSuccess;
  }
  static ncclResult_t remove(ncclComm_t, void* handle) {
    const auto found =
        std::find_if(now.begin(), now.end(), [handle](const auto& each) { return each.first == handle; });
    EXPECT_NE(found, now.end());
    now.erase(found);
    return ncclSuccess;
  }
};

TEST(NcclMemory, RegistersMemoryOfTheProgram) {
  Api api = open_api(BACKPLANE_NCCL_DOUBLE);
  api.nccl.comm_register = Registered::add;
  api.nccl.comm_deregister = Registered::remove;
  Communicator comm(api, 0, Communicator::new_id(api), 0, 1, 0);
  ASSERT_TRUE(test::eventually([&comm] { return comm.ready(); })) << "NCCL does not connect";
  DeviceMemory memory(api, 0, comm);
  std::vector<std::byte> data(100);  // device memory of the test double
  auto all = memory.register_memory(data.data(), 100, BP_CUDA, 0);
  auto part = memory.register_memory(data.data() + 10, 20, BP_CUDA, 0);
  auto again = memory.register_memory(data.data() + 10, 20, BP_CUDA, 0);
  EXPECT_EQ(Registered::now.size(), 3U);
  EXPECT_EQ(status_of([&] { memory.register_memory(data.data(), 13, BP_CUDA, 0); }), BP_RESOURCE);
  EXPECT_EQ(status_of([&] { memory.register_memory(data.data(), 8, BP_HOST, 0); }), BP_UNSUPPORTED);
  EXPECT_EQ(status_of([&] { memory.register_memory(data.data(), 8, BP_CUDA, 1); }), BP_UNSUPPORTED);
  part.reset();
  all.reset();
  EXPECT_EQ(Registered::now, (std::vector<std::pair<void*, size_t>>{{data.data() + 10, 20}}));
  memory.end();
  EXPECT_TRUE(Registered::now.empty());
  EXPECT_EQ(status_of([&] { memory.register_memory(data.data(), 8, BP_CUDA, 0); }), BP_UNSUPPORTED);
  again.reset();  // after the end
  EXPECT_EQ(data[0], std::byte{}) << "it still belongs to the program";
  api.nccl.comm_register = nullptr;
  EXPECT_EQ(status_of([&] { memory.register_memory(data.data(), 8, BP_CUDA, 0); }), BP_UNSUPPORTED);
}

}  // namespace
}  // namespace backplane::nccl
