// SPDX-License-Identifier: Apache-2.0
//
// Composites: one backend inside hosts, another one between them. Receives of any source must lose no message and keep
// those of one sender in order.
#include <map>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

class CompositeTest : public testing::TestWithParam<std::string> {
 protected:
  // On the hosts of ImaginedHosts: ranks 0 and 3 are on one, 1 and 2 on the other.
  void in_group(const std::function<void(ProcessGroup&)>& body) const { test::in_group(GetParam(), 4, body); }

 private:
  const ImaginedHosts hosts_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Composites, CompositeTest, testing::ValuesIn(composite_backends()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

constexpr int kAny = ProcessGroup::kAnySource;

TEST_P(CompositeTest, IsNamedAsItIsWritten) {
  in_group([](ProcessGroup& group) { EXPECT_EQ(group.backend(), GetParam()); });
}

TEST_P(CompositeTest, ReceivesOfAnySourceKeepTheOrderOfEachSender) {
  static constexpr int kMessages = 300;
  constexpr uint64_t kTag = 4;
  in_group([](ProcessGroup& group) {
    if (group.rank() != 0) {
      for (int i = 0; i < kMessages; ++i) group.send(as_buffer(i), 0, kTag);
      return;
    }
    constexpr size_t kPosted = 6;
    std::map<int, int> next;
    int left = 3 * kMessages;
    while (left > 0) {
      std::vector<int> values(std::min(kPosted, static_cast<size_t>(left)), -1);
      std::vector<Work> receives;
      for (int& value : values) receives.push_back(group.irecv(as_buffer(value), kAny, kTag));
      for (size_t i = 0; i < values.size(); ++i) {
        receives[i].wait();
        const int source = receives[i].received().source;
        ASSERT_EQ(values[i], next[source]) << "from rank " << source;
        ++next[source];
      }
      left -= static_cast<int>(values.size());
    }
    for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(next[rank], kMessages);
  });
}

// Receives that name their sender, behind some of any source, which take at most two messages of a sender.
TEST_P(CompositeTest, MixedReceivesKeepTheOrderOfEachSender) {
  static constexpr int kRounds = 100;
  static constexpr int kMessages = 4;  // of each sender in a round
  constexpr uint64_t kTag = 4;
  in_group([](ProcessGroup& group) {
    if (group.rank() == 0) {
      std::map<int, int> next;
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<int> peers = {kAny, kAny, 1, 2, 3, 1, 2, 3};
        std::vector<int> values(peers.size() + 4, -1);
        std::vector<Work> receives;
        for (size_t i = 0; i < peers.size(); ++i) {
          receives.push_back(group.irecv(as_buffer(values[i]), peers[i], kTag));
        }
        for (Work& each : receives) each.wait();
        for (size_t i = 0; i < values.size(); ++i) {
          if (i >= peers.size()) receives.push_back(group.irecv(as_buffer(values[i]), kAny, kTag));
          receives[i].wait();
          const int source = receives[i].received().source;
          ASSERT_EQ(values[i], next[source]) << "from rank " << source << " in round " << round;
          ++next[source];
        }
        for (int rank = 1; rank < 4; ++rank) group.send(as_buffer(round), rank, kTag + 1);
      }
      return;
    }
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kMessages; ++i) {
        const int value = round * kMessages + i;
        group.send(as_buffer(value), 0, kTag);
      }
      int at = -1;
      group.recv(as_buffer(at), 0, kTag + 1);
      ASSERT_EQ(at, round);
    }
  });
}

TEST_P(CompositeTest, ALaterReceiveWaitsBehindOneOfAnySource) {
  in_group([](ProcessGroup& group) {
    constexpr uint64_t kTag = 9;
    for (const int sender : {3, 1}) {  // inside the host, then between hosts
      int first = 0;
      int second = 0;
      if (group.rank() == 0) {
        Work any = group.irecv(as_buffer(first), kAny, kTag);
        Work named = group.irecv(as_buffer(second), sender, kTag);
        const int go = 1;
        group.send(as_buffer(go), sender);
        any.wait();
        named.wait();
        EXPECT_EQ(any.received().source, sender);
        EXPECT_EQ(first, 10);
        EXPECT_EQ(second, 11);
      } else if (group.rank() == sender) {
        int go = 0;
        group.recv(as_buffer(go), 0);
        for (const int value : {10, 11}) group.send(as_buffer(value), 0, kTag);
      }
    }
  });
}

TEST_P(CompositeTest, LargeMessagesOfAnySourceArriveWhole) {
  in_group([](ProcessGroup& group) {
    constexpr size_t kSize = 700'000;
    const std::vector<int> out(kSize, group.rank());
    if (group.rank() != 0) {
      group.send(out, 0, 2);
      return;
    }
    for (int i = 0; i < 3; ++i) {
      std::vector<int> in(kSize + 1, -1);
      const Work done = group.recv(in, kAny, 2);
      EXPECT_EQ(done.received().bytes, kSize * sizeof(int));
      EXPECT_EQ(in.front(), done.received().source);
      EXPECT_EQ(in[kSize - 1], done.received().source);
      EXPECT_EQ(in[kSize], -1);
    }
  });
}

TEST_P(CompositeTest, ACancelledReceiveOfAnySourceTakesNoMessage) {
  in_group([](ProcessGroup& group) {
    int value = 0;
    if (group.rank() == 0) {
      const CallOptions soon = {.timeout = std::chrono::milliseconds(50)};
      EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), kAny, 3, soon); }), Status::kTimeout);
      Work cancelled = group.irecv(as_buffer(value), kAny, 3);
      cancelled.cancel();
      EXPECT_EQ(failure_of([&] { cancelled.wait(); }), Status::kCancelled);
    }
    group.barrier();
    if (group.rank() == 0) {
      int sum = 0;
      for (int i = 1; i < 4; ++i) {
        group.recv(as_buffer(value), i, 3);
        EXPECT_EQ(value, i);
        sum += value;
      }
      EXPECT_EQ(sum, 6);
    } else {
      value = group.rank();
      group.send(as_buffer(value), 0, 3);
    }
  });
}

TEST_P(CompositeTest, AMessageThatIsTooLongEndsAReceiveOfAnySource) {
  in_group([](ProcessGroup& group) {
    const std::vector<int32_t> out = {1, 2, 3};
    for (const int sender : {3, 1}) {
      if (group.rank() == sender) {
        group.send(out, 0, 1);
        group.send(out, 0, 1);
      } else if (group.rank() == 0) {
        std::vector<int32_t> in(2);
        std::string text;
        EXPECT_EQ(failure_of([&] { group.recv(in, kAny, 1); }, &text), Status::kInvalid);
        EXPECT_NE(text.find("12 bytes"), std::string::npos) << text;
        in.resize(3);
        group.recv(in, kAny, 1);
        EXPECT_EQ(in, out);
      }
      group.barrier();
    }
  });
}

TEST_P(CompositeTest, BroadcastsAndReducesFromEveryRootInEverySize) {
  in_group([](ProcessGroup& group) {
    for (const size_t size : {size_t{1}, size_t{1000}, size_t{100'000}}) {
      for (int root = 0; root < 4; ++root) {
        std::vector<int64_t> data(size, group.rank() == root ? root + 5 : -1);
        group.broadcast(data, root);
        EXPECT_EQ(data, std::vector<int64_t>(size, root + 5));
        const std::vector<int64_t> one(size, group.rank() + 1);
        std::vector<int64_t> sum(group.rank() == root ? size : 0);
        group.reduce(one, sum, root);
        if (group.rank() == root) {
          EXPECT_EQ(sum, std::vector<int64_t>(size, 10));
        }
      }
    }
  });
}

// If each rank or none is alone on its host, one of the backends serves the whole group.
TEST(CompositeShapeTest, OneBackendServesAGroupThatNeedsNoOther) {
  for (const std::string& backend : composite_backends()) {
    for (const char* const hosts : {"0,0,0", "0,1,2"}) {
      const ScopedVariable imagined("BACKPLANE_IMAGINED_HOSTS", hosts);
      test::in_group(backend, 3, [&backend](ProcessGroup& group) {
        EXPECT_EQ(group.backend(), backend);
        std::vector<int64_t> sum(5000, group.rank() + 1);
        group.all_reduce(sum);
        EXPECT_EQ(sum, std::vector<int64_t>(5000, 6));
        int value = group.rank();
        int received = -1;
        Work sent = group.isend(as_buffer(value), (group.rank() + 1) % 3, 7);
        const Work done = group.recv(as_buffer(received), kAny, 7);
        EXPECT_EQ(received, (group.rank() + 2) % 3);
        EXPECT_EQ(done.received().source, received);
        sent.wait();
        ProcessGroup pair = group.split(group.rank() == 2 ? -1 : 0, group.rank());
        if (group.rank() < 2) pair.barrier();
        group.barrier();
      });
    }
  }
}

#if defined(BACKPLANE_TEST_shm) && defined(BACKPLANE_TEST_gloo)
TEST(CompositeAutoTest, IsChosenWhereRanksShareHosts) {
  const ScopedVariable imagined("BACKPLANE_IMAGINED_HOSTS", "0,1,1");
  test::in_group("auto", 3, [](ProcessGroup& group) {
    EXPECT_EQ(group.backend(), "shm+gloo");
    int sum = 1;
    group.all_reduce(as_buffer(sum));
    EXPECT_EQ(sum, 3);
  });
}
#endif

// Errors name ranks by their numbers in the group, not in the part of a host.
TEST(CompositeErrorTest, NamesTheRankOfTheGroup) {
  const std::vector<std::string> backends = composite_backends();
  if (backends.empty()) GTEST_SKIP() << "no composite was built";
  const ImaginedHosts hosts(backends.front());
  const Store store = Store::inproc();
  on_ranks(4, [&](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backends.front(), store, rank, 4));
    int value = 0;
    std::string text;
    const CallOptions soon = {.timeout = std::chrono::milliseconds(50)};
    if (rank == 0) {
      EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), 3, 9, soon); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("rank 3"), std::string::npos) << text;
    }
    group.barrier();
  });
}

TEST(CompositeErrorTest, UnknownOptionsNameTheBackendOfThePart) {
  if (composite_backends().empty()) GTEST_SKIP() << "no composite was built";
  const Store store = Store::inproc();
  for (const std::string& backend :
       {"shm?nothing=1+" + composite_backends().front().substr(4), composite_backends().front() + "?nothing=1"}) {
    std::string text;
    EXPECT_EQ(failure_of([&] { ProcessGroup::create(group_options(backend, store, 0, 1)); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("nothing"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace backplane::test
