// SPDX-License-Identifier: Apache-2.0
//
// Parts of nccl over the double, where a peer plays that keeps no rules.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

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
#include "fate.hpp"
#include "messages.hpp"
#include "support/environment.hpp"
#include "wire.hpp"

namespace backplane::nccl {
namespace {

int32_t status_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const sdk::Failure& failure) {
    return failure.status();
  }
  return BP_OK;
}

TEST(NcclFate, WakesWhoeverStopsTheDeviceAndWaitsForThat) {
  int woken = 0;
  Fate fate([&woken] { ++woken; });
  EXPECT_TRUE(fate.decide({BP_TIMEOUT, "first"}));
  EXPECT_FALSE(fate.decide({BP_CANCELLED, "second"}));
  EXPECT_EQ(woken, 1);
  EXPECT_FALSE(fate.await_settled(0));
  fate.settle();
  EXPECT_TRUE(fate.await_settled(0));
  EXPECT_EQ(status_of([&fate] { fate.throw_if_decided(); }), BP_TIMEOUT);
}

TEST(NcclFate, IsWhatTheFirstAbortSays) {
  int woken = 0;
  Fate fate([&woken] { ++woken; });
  fate.decide({BP_PEER_LOST, "rank 1 has ended its connection", 1});
  fate.overrule({BP_PEER_LOST, "rank 2 was killed", 2});
  fate.overrule({BP_CANCELLED, "the group was destroyed"});
  EXPECT_FALSE(fate.decide({BP_TIMEOUT, "late"}));
  EXPECT_EQ(fate.why().peer_rank(), 2);
  EXPECT_EQ(woken, 1);
}

// While NCCL connects nobody reads, and what a peer has said before it left is left for later.
TEST(NcclWire, SeesWhoIsGone) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  std::vector<sdk::Descriptor> sockets(3);
  sockets[2] = sdk::Descriptor(pair[0]);
  sdk::Descriptor peer(pair[1]);
  Wire wire(std::move(sockets), {});
  EXPECT_EQ(wire.lost(), -1);
  ASSERT_EQ(::send(peer.get(), "x", 1, 0), 1);
  EXPECT_EQ(wire.lost(), -1);
  peer.reset();
  EXPECT_EQ(wire.lost(), -1);

  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  sockets = std::vector<sdk::Descriptor>(3);
  sockets[2] = sdk::Descriptor(pair[0]);
  ::close(pair[1]);
  EXPECT_EQ(Wire(std::move(sockets), {}).lost(), 2);
}

// Counts the calls of a function of one of the tables.
template <auto Member>
struct Counting;
template <typename Table, typename Result, typename... Args, Result (*Table::*Member)(Args...)>
struct Counting<Member> {
  static void put_into(Table& table) {
    calls = 0;
    real = std::exchange(table.*Member, call);
  }
  static Result call(Args... args) {
    ++calls;
    return real(args...);
  }
  static inline Result (*real)(Args...) = nullptr;
  static inline int calls = 0;
};

// How long a launch takes on a GPU is beyond these tests; what it calls is not. A program without Backplane would call
// ncclAllReduce, ask for the state until it is launched, and record an event.
TEST(NcclLaunch, CallsLittleBesideNcclItself) {
  constexpr int kLaunches = 100;
  Api api = open_api(BACKPLANE_NCCL_DOUBLE);
  Pool pool(api, 0);
  Fate fate([] {});
  Communicator comm(api, 0, Communicator::new_id(api), 0, 1, 0);
  while (!comm.ready()) std::this_thread::yield();
  Collectives collectives({api, 0, 0, 1, fate, pool, comm});
  const Stream stream(api, 0);
  const Piece data(pool, 4);
  bp_op op{};
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_I32;
  op.reduce_op = BP_SUM;
  op.stream = stream.get();
  op.input = op.output = {data.data(), 1, BP_CUDA, 0};
  const auto launch_all = [&collectives, &op] {
    std::vector<std::unique_ptr<sdk::Work>> works;
    for (int i = 0; i < kLaunches; ++i) works.push_back(collectives.submit(op));
    return works;
  };
  for (const auto& work : launch_all()) EXPECT_TRUE(work->wait(BP_NO_TIMEOUT));  // from now on there are events
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

// The collectives of one rank alone, and what it takes to launch one.
class NcclCollectives : public testing::Test {
 protected:
  // In a stream with a gate in it, behind which there is room for one thing.
  std::unique_ptr<sdk::Work> submit() {
    nccl_double::Stream& stream = nccl_double::stream_of(stream_.get());
    stream.add([open = gate_.get_future().share()] { open.wait(); });
    for (int i = 1; i < 4; ++i) stream.add([] {});
    bp_op op{};
    op.kind = BP_ALL_REDUCE;
    op.dtype = BP_I32;
    op.reduce_op = BP_SUM;
    op.stream = stream_.get();
    op.input = op.output = {data_.data(), 1, BP_CUDA, 0};
    return collectives_.submit(op);
  }
  const test::ScopedVariable queue_{"BACKPLANE_DOUBLE_QUEUE", "4"};
  Api api_ = open_api(BACKPLANE_NCCL_DOUBLE);
  Pool pool_{api_, 0};
  Fate fate_{[] {}};
  Communicator comm_{api_, 0, Communicator::new_id(api_), 0, 1, 0};
  const bool is_ready_ = [this] {
    while (!comm_.ready()) std::this_thread::yield();
    return true;
  }();
  Collectives collectives_{{api_, 0, 0, 1, fate_, pool_, comm_}};
  const Stream stream_{api_, 0};
  const Piece data_{pool_, 4};
  std::promise<void> gate_;
};

// A launch that fails may have put a part of itself into the stream before. While the stream is full nobody can tell,
// but whoever asks for something else is answered.
TEST_F(NcclCollectives, AreNotStillWhileAFailedLaunchMayUseItsBuffers) {
  double_fail(0, 3);  // an event is made and recorded, and ncclAllReduce fails
  const std::unique_ptr<sdk::Work> work = submit();
  double_fail(0, UINT64_MAX);
  ASSERT_TRUE(fate_.decided());
  comm_.abort();
  auto stopping = std::async(std::launch::async, [this] {
    while (!collectives_.is_still()) std::this_thread::yield();
  });
  while (double_calls() < 2) std::this_thread::yield();  // the next event is made and recorded
  auto asking = std::async(std::launch::async, [this] { return collectives_.launching(); });
  EXPECT_EQ(asking.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(stopping.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  gate_.set_value();
  stopping.get();
  double_fail(-1, 0);
}

TEST_F(NcclCollectives, EndWhereALaunchFindsNoMemory) {
  api_.nccl.all_reduce = [](const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                            cudaStream_t) -> ncclResult_t { throw std::bad_alloc(); };
  const std::unique_ptr<sdk::Work> work = submit();
  ASSERT_TRUE(fate_.decided());
  EXPECT_EQ(fate_.why().status(), BP_RESOURCE);
  comm_.abort();
  gate_.set_value();
  while (!collectives_.is_still()) std::this_thread::yield();
}

// Rank 0 of two; this test is rank 1.
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

  std::unique_ptr<sdk::Work> receive(std::vector<std::byte>& buffer) {
    bp_op op{};
    op.kind = BP_RECV;
    op.dtype = BP_U8;
    op.peer = 1;
    op.tag = 5;
    op.output = {buffer.data(), buffer.size(), BP_HOST, 0};
    op.timeout_ns = BP_NO_TIMEOUT;
    return messages_.submit(op);
  }
  int32_t arrives(Frame frame) {
    return status_of([this, &frame] { messages_.arrived(1, frame); });
  }

  const Api& api_ = open_api(BACKPLANE_NCCL_DOUBLE);
  Pool pool_{api_, 0};
  Fate fate_{[] {}};
  Wire wire_{sockets(), {}};
  Messages messages_{{api_, 0, pool_, 0}, 0, 2, fate_, wire_, [] {}};
};

TEST_F(NcclMessages, TakesNoOtherSizeThanWasAnnounced) {
  std::vector<std::byte> buffer(16);
  const std::unique_ptr<sdk::Work> work = receive(buffer);
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 1, 16, {}}), BP_OK);
  Frame begin{FrameKind::kBegin, 1, 0, 1, 1 << 20, Communicator::new_id(api_)};
  EXPECT_EQ(arrives(begin), BP_PEER_LOST);
  EXPECT_FALSE(work->wait(0));
  begin.size = 16;
  EXPECT_EQ(arrives(begin), BP_OK);
  messages_.fail({BP_CANCELLED, "the test is over"});
}

TEST_F(NcclMessages, RefusesAnnouncementsThatCannotBe) {
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 1, 0, {}}), BP_PEER_LOST);
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 2, 8, {}}), BP_OK);
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 2, 16, {}}), BP_PEER_LOST);
  EXPECT_EQ(arrives({FrameKind::kBegin, 1, 0, 2, 8, {}}), BP_PEER_LOST);
  EXPECT_EQ(arrives({static_cast<FrameKind>(77), 0, 0, 0, 0, {}}), BP_PEER_LOST);
}

TEST_F(NcclMessages, CancelsAReceiveWhoseMessageIsWithdrawn) {
  std::vector<std::byte> buffer(16);
  const std::unique_ptr<sdk::Work> work = receive(buffer);
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 1, 16, {}}), BP_OK);
  work->cancel();
  EXPECT_FALSE(work->wait(0));
  EXPECT_EQ(arrives({FrameKind::kWithdraw, 0, 0, 1, 0, {}}), BP_OK);
  EXPECT_EQ(status_of([&work] { work->wait(0); }), BP_CANCELLED);
}

}  // namespace
}  // namespace backplane::nccl
