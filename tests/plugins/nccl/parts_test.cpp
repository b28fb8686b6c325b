// SPDX-License-Identifier: Apache-2.0
//
// Parts of nccl over the double, where a peer plays that keeps no rules.
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
#include "fate.hpp"
#include "memory.hpp"
#include "messages.hpp"
#include "support/environment.hpp"
#include "support/eventually.hpp"
#include "want.hpp"
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
  ASSERT_TRUE(test::eventually([&comm] { return comm.ready(); })) << "NCCL does not connect";
  Collectives collectives({api, 0, 0, 1, fate, pool, comm});
  const Stream stream(api, 0);
  const Piece data(pool, 4);
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_I32;
  op.reduce_op = BP_SUM;
  op.stream = stream.get();
  op.input = op.output = {data.data(), 1, BP_CUDA, 0};
  op.timeout_ns = BP_NO_TIMEOUT;  // however busy this machine is, all of them are launched
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
  Fate fate_{[] {}};
  Communicator comm_{api_, 0, Communicator::new_id(api_), 0, 1, 0};
  const bool is_ready_ = test::eventually([this] { return comm_.ready(); });
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
  auto stopping =
      std::async(std::launch::async, [this] { return test::eventually([this] { return collectives_.is_still(); }); });
  EXPECT_TRUE(test::eventually([] { return double_calls() >= 2; })) << "the next event is not made and recorded";
  auto asking = std::async(std::launch::async, [this] { return collectives_.launching(); });
  EXPECT_EQ(asking.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(stopping.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  gate_.set_value();
  EXPECT_TRUE(stopping.get()) << "they go on";
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
  EXPECT_TRUE(test::eventually([this] { return collectives_.is_still(); })) << "they go on";
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
  int32_t arrives(Frame frame) {
    return status_of([this, &frame] { messages_.arrived(1, frame); });
  }

  Api api_ = open_api(BACKPLANE_NCCL_DOUBLE);
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

// Whoever is told so frees the buffer and the result.
TEST_F(NcclMessages, LeaveNothingOfAReceiveWithoutMemory) {
  std::vector<std::byte> buffer(16);
  std::unique_ptr<sdk::Work> work;
  for (uint64_t number = 1; !work; ++number) {
    bp_result result{sizeof result, -7, 0, 0};
    bp_op op = message(BP_RECV, 1, host(buffer));
    op.result = &result;
    test::lacks_memory(number, [this, &op, &work] { work = messages_.submit(op); });
    EXPECT_EQ(arrives({FrameKind::kEmpty, 0, 5, number, 0, {}}), BP_OK);
    EXPECT_EQ(result.source, work ? 1 : -7);
    if (!work) {
      EXPECT_TRUE(receive(buffer)->wait(0));
    } else {
      EXPECT_GT(number, 2);
    }
  }
}

TEST_F(NcclMessages, LeaveNothingOfASendWithoutMemory) {
  std::vector<std::byte> buffer(16);
  const bp_op op = message(BP_SEND, 1, host(buffer));
  std::unique_ptr<sdk::Work> work;
  for (uint64_t number = 1; !work; ++number) {
    test::lacks_memory(number, [this, &op, &work] { work = messages_.submit(op); });
    for (uint64_t id = 1; id <= number && !work; ++id) {
      EXPECT_EQ(arrives({FrameKind::kReady, 0, 0, id, 0, {}}), BP_OK);
      EXPECT_FALSE(messages_.busy()) << "the send without allocation " << number << " goes on";
    }
  }
  messages_.fail({BP_CANCELLED, "the test is over"});
}

TEST_F(NcclMessages, KeepTheirOrderWhereOneToThisRankFindsNoMemory) {
  const Stream stream(api_, 0);
  const Piece to(pool_, 16);
  std::vector<std::byte> from(16);
  Counting<&CudaTable::stream_wait_event>::put_into(api_.cuda);
  bool lacked = true;
  for (int number = 1; lacked; ++number) {
    const auto received = messages_.submit(message(BP_RECV, 0, {to.data(), 16, BP_CUDA, 0}, &stream));
    std::unique_ptr<sdk::Work> sent;
    const bp_op op = message(BP_SEND, 0, host(from));
    lacked = test::lacks_memory(static_cast<uint64_t>(number), [this, &op, &sent] { sent = messages_.submit(op); });
    if (!sent) sent = messages_.submit(op);
    const auto is_received = [this, &received] {
      messages_.progress();
      return received->wait(0);
    };
    ASSERT_TRUE(test::eventually(is_received)) << number;
    EXPECT_TRUE(sent->wait(BP_NO_TIMEOUT));
    EXPECT_EQ(Counting<&CudaTable::stream_wait_event>::calls, number) << "one did not wait for its stream";
  }
}

TEST_F(NcclMessages, AreCancelledWithoutMemory) {
  std::vector<std::byte> buffer(16);
  const std::unique_ptr<sdk::Work> received = receive(buffer);
  EXPECT_FALSE(test::lacks_memory(1, [&received] { received->cancel(); }));
  EXPECT_EQ(status_of([&received] { received->wait(0); }), BP_CANCELLED);
  // A withdrawal is a frame, and now and then the queue of frames grows.
  bool lacked = false;
  for (int i = 0; i < 100 && !lacked; ++i) {
    const std::unique_ptr<sdk::Work> sent = messages_.submit(message(BP_SEND, 1, host(buffer)));
    lacked = test::lacks_memory(1, [&sent] { sent->cancel(); });
    EXPECT_EQ(fate_.decided(), lacked);
    const int32_t status = status_of([&sent] { sent->wait(0); });
    EXPECT_EQ(status, lacked ? BP_OK : BP_CANCELLED);
  }
  ASSERT_TRUE(lacked);
  EXPECT_EQ(fate_.why().status(), BP_RESOURCE);
}

TEST_F(NcclMessages, AreNotStillWhileACopyThatFailedIsUnderWay) {
  const Stream stream(api_, 0);
  std::promise<void> gate;
  nccl_double::stream_of(stream.get()).add([open = gate.get_future().share()] { open.wait(); });
  const Piece data(pool_, 32);
  const bp_buffer from{data.data(), 16, BP_CUDA, 0};
  const bp_buffer to{data.data() + 16, 16, BP_CUDA, 0};
  const auto received = messages_.submit(message(BP_RECV, 0, to, &stream));
  const auto sent = messages_.submit(message(BP_SEND, 0, from, &stream));
  const auto real = std::exchange(api_.cuda.event_record, [](cudaEvent_t, cudaStream_t) { return cudaErrorUnknown; });
  EXPECT_EQ(status_of([this] { messages_.progress(); }), BP_RESOURCE);
  api_.cuda.event_record = real;
  EXPECT_FALSE(messages_.is_still());
  gate.set_value();
  EXPECT_TRUE(test::eventually([this] { return messages_.is_still(); })) << "they go on";
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
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 1, 16, {}}), BP_OK);
  op.message = probed();
  const std::unique_ptr<sdk::Work> taken = messages_.submit(op);
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 2, 16, {}}), BP_OK);
  EXPECT_EQ(arrives({FrameKind::kWithdraw, 0, 0, 1, 0, {}}), BP_OK);
  EXPECT_EQ(status_of([&taken] { taken->wait(0); }), BP_CANCELLED) << "it does not take another one";
  probe.drop(probe.ctx, probed());
  EXPECT_EQ(arrives({FrameKind::kBegin, 1, 0, 2, 16, {}}), BP_PEER_LOST) << "nobody has it";
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 3, 16, {}}), BP_OK);
  op.message = probed();
  EXPECT_TRUE(test::lacks_memory(1, [this, &op] { messages_.submit(op); }));
  EXPECT_EQ(arrives({FrameKind::kAnnounce, 0, 5, 3, 16, {}}), BP_OK) << "it was dropped: its number is free again";
  messages_.fail({BP_CANCELLED, "the test is over"});
}

// What NCCL is asked to register and to forget.
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

TEST(NcclMemory, RegistersWhatTheProgramHas) {
  Api api = open_api(BACKPLANE_NCCL_DOUBLE);
  api.nccl.comm_register = Registered::add;
  api.nccl.comm_deregister = Registered::remove;
  Communicator comm(api, 0, Communicator::new_id(api), 0, 1, 0);
  ASSERT_TRUE(test::eventually([&comm] { return comm.ready(); })) << "NCCL does not connect";
  DeviceMemory memory(api, 0, comm);
  std::vector<std::byte> data(100);  // of the double's device
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
  EXPECT_EQ(data[0], std::byte{}) << "it stays the program's";
  api.nccl.comm_register = nullptr;
  EXPECT_EQ(status_of([&] { memory.register_memory(data.data(), 8, BP_CUDA, 0); }), BP_UNSUPPORTED);
}

}  // namespace
}  // namespace backplane::nccl
