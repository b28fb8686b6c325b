// SPDX-License-Identifier: Apache-2.0
//
// How groups of nccl end: aborts, deadlines, errors of NCCL, lost ranks.
#include <atomic>
#include <thread>
#include <vector>

#include "support.hpp"

namespace backplane::test {
namespace {

// The operation of one group waits in a stream behind that of another group, which is aborted slightly later. Neither
// abort may wait for the other.
TEST(Nccl, AbortsGroupsThatShareAStreamInAnyOrder) {
  for (const bool behind_first : {true, false}) {
    BarrierLeftByAll barrier(2);
    std::promise<void> stopped;
    on_devices(2, [behind_first, &barrier, &stopped](ProcessGroup& group, Device device) {
      ProcessGroup other = group.new_group({0, 1});
      barrier(group);
      barrier(other);
      if (group.rank() == 1) return await(stopped);
      Memory<float> memory = filled<float>(group, device, 4, 1);
      const TestStream stream(device);
      Work first = group.all_reduce(span(memory, device), ReduceOp::kSum, stream.async());
      Work behind = other.all_reduce(span(memory, device), ReduceOp::kSum, stream.async());
      (behind_first ? other : group).abort("the test says so");
      (behind_first ? group : other).abort("the test says so again");
      EXPECT_EQ(failure_of([&] { behind.wait(); }), Status::kCancelled);
      EXPECT_EQ(failure_of([&] { first.wait(); }), Status::kCancelled);
      stopped.set_value();
    });
  }
}

// NCCL's abort waits until the device reaches the operation. The program does not wait for that, and the operation
// ahead of it, of a group that has not failed, continues.
TEST(Nccl, AbortsAGroupBehindOneThatContinues) {
  BarrierLeftByAll barrier(2);
  std::promise<void> stopped;
  on_devices(2, [&barrier, &stopped](ProcessGroup& group, Device device) {
    ProcessGroup other = group.new_group({0, 1});
    Memory<int32_t> memory = filled<int32_t>(group, device, 4, 1);
    Memory<int32_t> others = filled<int32_t>(group, device, 4, 1);
    const TestStream stream(device);
    group.all_reduce(span(others, device));
    barrier(other);
    if (group.rank() == 1) await(stopped);
    Work first = group.all_reduce(span(memory, device), ReduceOp::kSum, stream.async());
    if (group.rank() == 0) {
      Work behind = other.all_reduce(span(others, device), ReduceOp::kSum, stream.async());
      other.abort("the test says so");
      EXPECT_EQ(failure_of([&] { behind.wait(); }), Status::kCancelled);
      EXPECT_FALSE(first.is_completed());
      stopped.set_value();
    }
    first.wait();
    EXPECT_TRUE(all_are<int32_t>(memory, 2));
    group.barrier();
  });
}

TEST(Nccl, BreaksTheGroupWhenACollectiveIsCancelled) {
  BarrierLeftByAll barrier(2);
  std::promise<void> cancelled;
  on_devices(2, [&barrier, &cancelled](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    barrier(group);
    if (group.rank() == 1) return await(cancelled);
    Work work = group.all_reduce(span(memory, device), ReduceOp::kSum, async());
    work.cancel();
    EXPECT_EQ(failure_of([&] { work.wait(); }), Status::kCancelled);
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, device)); }), Status::kCancelled);
    cancelled.set_value();
  });
}

TEST(Nccl, FailsTheGroupWithTheErrorOfNccl) {
  const ScopedVariable fail("BACKPLANE_DOUBLE_FAIL", "6@2");  // ncclRemoteError
  MeetingPoint together(2);
  on_devices(2, [&together](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    // The failure would end the first on the other rank.
    together.after([&] { group.all_reduce(span(memory, device)); });
    std::string text;
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, device)); }, &text), Status::kPeerLost) << text;
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, device)); }), Status::kPeerLost);
  });
}

TEST(Nccl, KeepsDeadlinesWhileTheDeviceHangs) {
  const ScopedVariable stall("BACKPLANE_DOUBLE_STALL", "2");
  MeetingPoint together(2);
  on_devices(2, [&together](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    together.after([&] { group.all_reduce(span(memory, device)); });
    CallOptions options;
    options.timeout = std::chrono::milliseconds(200);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, device), ReduceOp::kSum, options); }), Status::kTimeout);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  });
}

TEST(Nccl, KeepsDeadlinesWhileStagedBuffersWait) {
  const ScopedVariable stall("BACKPLANE_DOUBLE_STALL", "2");
  MeetingPoint together(2);
  on_devices(
      2,
      [&together](ProcessGroup& group, Device) {
        std::vector<float> host(100'000, 1);
        together.after([&] { group.all_reduce(host); });
        CallOptions options;
        options.timeout = std::chrono::milliseconds(200);
        EXPECT_EQ(failure_of([&] { group.all_reduce(host, ReduceOp::kSum, options); }), Status::kTimeout);
      },
      nccl("stage=true"));
}

TEST(Nccl, ContinuesAfterARankHasLeft) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, static_cast<float>(group.rank()));
    Memory<float> ones = filled<float>(group, device, 4, 1);
    Work sum = group.all_reduce(span(ones, device), ReduceOp::kSum, async());
    if (group.rank() == 1) {
      sum.wait();
      group.send(span(memory, device), 0, 1);
      return;
    }
    group.recv(span(memory, device), 1, 1);
    EXPECT_TRUE(all_are<float>(memory, 1));
    std::string text;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(failure_of([&] { group.recv(span(memory, device), 1, 2); }, &text), Status::kPeerLost);
      EXPECT_TRUE(contains(text, "has left the group")) << text;
    }
    // The collective had completed before that, although no call had observed it. The group is still usable.
    Work own = group.send(span(memory, device), 0, 3, async());
    group.recv(span(memory, device), 0, 3);
    own.wait();
    sum.wait();
    EXPECT_TRUE(all_are<float>(ones, 2));
  });
}

// The message is in a channel, behind a collective that only the end of the group stops.
TEST(Nccl, FailsWhenThePeerOfAMessageIsLost) {
  std::promise<void> sent_all;
  on_devices(2, [&sent_all](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    group.barrier();
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CallOptions async;
    async.async_op = true;
    async.stream = stream;
    const Buffer nothing(memory.data(), 0, dtype_of<float>, device);
    if (group.rank() == 1) {
      Work received = group.recv(span(memory, device), 0, 1, async);
      group.recv(nothing, 0, 2);
      group.send(nothing, 0, 3);
      group.recv(nothing, 0, 4);
      await(sent_all);
      group.abort("the test says so");
      EXPECT_EQ(failure_of([&] { received.wait(); }), Status::kCancelled);
    } else {
      Work sum = group.all_reduce(span(memory, device), ReduceOp::kSum, async);
      Work sent = group.send(span(memory, device), 1, 1, async);
      group.send(nothing, 1, 2);
      group.recv(nothing, 1, 3);  // its ready frame arrived before this
      group.send(nothing, 1, 4);  // follows the data frame
      sent_all.set_value();
      EXPECT_EQ(failure_of([&] { sum.wait(); }), Status::kCancelled);
      EXPECT_EQ(failure_of([&] { sent.wait(); }), Status::kCancelled);
    }
    cudaStreamDestroy(stream);
  });
}

// A thread waits for room in a stream that only an abort empties.
TEST(Nccl, AbortsWhileAThreadLaunchesIntoAFullStream) {
  const ScopedVariable queue("BACKPLANE_DOUBLE_QUEUE", "8");
  BarrierLeftByAll barrier(2);
  std::promise<void> aborted;
  on_devices(2, [&barrier, &aborted](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    barrier(group);
    if (group.rank() == 1) return await(aborted);
    std::atomic<int> submitted = 0;
    auto launching = std::async(std::launch::async, [&] {
      const TestStream stream(device);
      std::vector<Work> works;
      EXPECT_EQ(failure_of([&] {
                  for (; submitted < 1000; ++submitted) {
                    works.push_back(group.all_reduce(span(memory, device), ReduceOp::kSum, stream.async()));
                  }
                }),
                Status::kCancelled);
      for (Work& work : works) EXPECT_EQ(failure_of([&] { work.wait(); }), Status::kCancelled);
    });
    EXPECT_TRUE(eventually([&submitted] { return submitted >= 2; })) << "nothing is launched";
    group.abort("the test says so");
    launching.get();
    EXPECT_LT(submitted, 1000);
    aborted.set_value();
  });
}

// A stream that waits for a message is full. NCCL's thread that launches a collective into it, which an abort of that
// communicator joins, continues only when the message is stopped.
TEST(Nccl, AbortsWhileACollectiveIsLaunchedBehindAMessage) {
  const ScopedVariable queue("BACKPLANE_DOUBLE_QUEUE", "16");
  std::promise<void> launched;
  std::promise<void> aborted;
  on_devices(2, [&launched, &aborted](ProcessGroup& group, Device device) {
    Memory<int32_t> memory = filled<int32_t>(group, device, 4, 1);
    const TestStream stream(device);
    group.barrier();
    if (group.rank() == 1) {
      Work sum = group.all_reduce(span(memory, device), ReduceOp::kSum, stream.async());
      Work sent = group.send(span(memory, device), 0, 1, stream.async());
      launched.set_value();
      await(aborted);
      return;
    }
    const TestStream other(device);
    Work received = group.recv(span(memory, device), 1, 1, other.async());
    received.wait_on_stream(stream.get());
    const uint64_t before = double_launches(device.ordinal);
    for (int i = 0; i < 15; ++i) stream.copy(memory, memory);
    auto launching = std::async(std::launch::async, [&] {
      EXPECT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
      Work sum = group.all_reduce(span(memory, device), ReduceOp::kSum, stream.async());
      EXPECT_EQ(failure_of([&] { sum.wait(); }), Status::kCancelled);
    });
    EXPECT_TRUE(eventually([&] { return double_launches(device.ordinal) != before; })) << "nothing is launched";
    await(launched);
    group.abort("the test says so");
    launching.get();
    EXPECT_EQ(failure_of([&] { received.wait(); }), Status::kCancelled);
    aborted.set_value();
  });
}

// Each collective is short, but the stream would be full before the other rank submits any.
TEST(Nccl, KeepsDeadlinesOfMoreCollectivesThanAStreamHolds) {
  const ScopedVariable queue("BACKPLANE_DOUBLE_QUEUE", "512");
  BarrierLeftByAll barrier(2);
  std::promise<void> over;
  on_devices(2, [&barrier, &over](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    barrier(group);
    if (group.rank() == 1) return await(over);
    const TestStream stream(device);
    CallOptions options = stream.async();
    options.timeout = std::chrono::seconds(1);  // also of the first hundred calls
    std::vector<Work> works;
    const auto submit_many = [&] {
      while (works.size() < 1000) works.push_back(group.all_reduce(span(memory, device), ReduceOp::kSum, options));
    };
    EXPECT_EQ(failure_of(submit_many), Status::kTimeout);
    EXPECT_GE(works.size(), 100);
    for (Work& work : works) EXPECT_EQ(failure_of([&] { work.wait(); }), Status::kTimeout);
    over.set_value();
  });
}

// More messages than a stream holds are in progress and stay so, because the other end waits for a collective.
TEST(Nccl, AbortsWhileMessagesFillAStream) {
  constexpr uint64_t kMessages = 200;
  const ScopedVariable queue("BACKPLANE_DOUBLE_QUEUE", "256");
  const uint64_t before = double_message_launches();
  std::atomic<int> submitted = 0;
  on_devices(2, [before, &submitted](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, kMessages, 1);
    const TestStream stream(device);
    group.barrier();
    std::vector<Work> works;
    if (group.rank() == 1) works.push_back(group.all_reduce(span(memory, device), ReduceOp::kSum, stream.async()));
    for (uint64_t i = 0; i < kMessages; ++i) {
      const Buffer one(memory.data() + i, 1, dtype_of<float>, device);
      works.push_back(group.rank() == 0 ? group.send(one, 1, i, stream.async())
                                        : group.recv(one, 0, i, stream.async()));
    }
    submitted.fetch_add(1);
    // An abort now would refuse the remaining messages of the other rank.
    EXPECT_TRUE(eventually([&submitted] { return submitted == 2; })) << "a rank has not submitted all messages";
    EXPECT_TRUE(eventually([before] { return double_message_launches() - before >= 2 * 64; }))
        << "messages were not launched";
    group.abort("the test says so");
    int failed = 0;
    for (Work& work : works) {
      try {
        work.wait();  // a send is done once NCCL has taken its data
      } catch (const Error&) {
        ++failed;
      }
    }
    EXPECT_GT(failed, 100);
  });
}

}  // namespace
}  // namespace backplane::test
