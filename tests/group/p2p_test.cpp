// SPDX-License-Identifier: Apache-2.0
#include "support/groups.hpp"
#include "support/optimized.hpp"

namespace backplane::test {
namespace {

using P2pTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, P2pTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2, 3, 5)),
                         backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, P2pTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(2, 3, 5)),
                         backend_test_name);

BACKPLANE_TEST_OPTIMIZED void write_pattern(uint8_t* bytes, int rank, size_t size) {
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 31 + static_cast<size_t>(rank));
}
std::vector<uint8_t> pattern(int rank, size_t size) {
  std::vector<uint8_t> bytes(size);
  write_pattern(bytes.data(), rank, size);
  return bytes;
}

TEST_P(P2pTest, MessagesAroundTheRing) {
  in_group([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4097}, size_t{65536}, size_t{3000001}}) {
      const auto out = pattern(group.rank(), size);
      std::vector<uint8_t> in(size);
      Work sending = group.isend(out, next);
      const Work received = group.recv(in, previous);
      sending.wait();
      EXPECT_TRUE(in == pattern(previous, size)) << size;
      EXPECT_EQ(received.received().source, previous);
      EXPECT_EQ(received.received().bytes, size);
    }
  });
}

TEST_P(P2pTest, TagsAreMatchedInAnyOrder) {
  in_group([](ProcessGroup& group) {
    if (group.rank() == 0) {
      std::vector<Work> sends;
      std::vector<int32_t> values = {10, 11, 12, 13};
      for (uint32_t tag = 0; tag < 4; ++tag) sends.push_back(group.isend(as_buffer(values[tag]), 1, tag));
      for (Work& work : sends) work.wait();
    } else if (group.rank() == 1) {
      for (const uint32_t tag : {3U, 0U, 2U, 1U}) {
        int32_t value = 0;
        group.recv(as_buffer(value), 0, tag);
        EXPECT_EQ(value, 10 + static_cast<int32_t>(tag));
      }
    }
  });
}

TEST_P(P2pTest, OrderIsKeptPerPeerAndTag) {
  in_group([](ProcessGroup& group) {
    constexpr int kMessages = 500;
    if (group.rank() == 0) {
      for (int i = 0; i < kMessages; ++i) group.send(as_buffer(i), 1, 7);
    } else if (group.rank() == 1) {
      for (int i = 0; i < kMessages; ++i) {
        int got = -1;
        group.recv(as_buffer(got), 0, 7);
        ASSERT_EQ(got, i);
      }
    }
  });
}

TEST_P(P2pTest, AnySourceNamesTheSender) {
  in_group([](ProcessGroup& group) {
    if (group.rank() != 0) {
      const int mine = group.rank() * 100;
      group.send(as_buffer(mine), 0, 5);
      return;
    }
    std::vector<bool> seen(static_cast<size_t>(group.world_size()));
    for (int i = 1; i < group.world_size(); ++i) {
      int value = 0;
      const int source = group.recv(as_buffer(value), ProcessGroup::kAnySource, 5).received().source;
      EXPECT_EQ(value, source * 100);
      EXPECT_FALSE(seen[static_cast<size_t>(source)]);
      seen[static_cast<size_t>(source)] = true;
    }
  });
}

TEST_P(P2pTest, MessageToItself) {
  in_group([](ProcessGroup& group) {
    const int out = group.rank() + 1;
    int in = 0;
    Work sending = group.isend(as_buffer(out), group.rank());
    group.recv(as_buffer(in), group.rank());
    sending.wait();
    EXPECT_EQ(in, out);
  });
}

TEST_P(P2pTest, AShorterMessageIsReceivedAndALongerOneIsAnError) {
  in_group([](ProcessGroup& group) {
    const std::vector<int32_t> out = {1, 2, 3};
    if (group.rank() == 0) {
      group.send(out, 1, 1);
      group.send(out, 1, 2);
      group.send(out, 1, 3);
    } else if (group.rank() == 1) {
      std::vector<int32_t> in(10);
      EXPECT_EQ(group.recv(in, 0, 1).received().bytes, 12U);
      EXPECT_EQ(in[2], 3);
      std::string text;
      EXPECT_EQ(failure_of([&group, &in] { group.recv(std::span(in).first(2), 0, 2); }, &text), Status::kInvalid);
      EXPECT_NE(text.find("12 bytes"), std::string::npos) << text;
      group.recv(in, 0, 3);  // the group remains usable
    }
  });
}

TEST_P(P2pTest, UnmatchedReceiveTimesOutAndNamesThePeer) {
  in_group([](ProcessGroup& group) {
    if (group.rank() == 0) {
      int value = 0;
      std::string text;
      const CallOptions soon = {.timeout = std::chrono::milliseconds(50)};
      EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), 1, 9, soon); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("recv"), std::string::npos) << text;
    }
    // The timeout of a message does not break the group.
    int value = group.rank();
    group.all_reduce(as_buffer(value));
    EXPECT_EQ(value, group.world_size() * (group.world_size() - 1) / 2);
  });
}

}  // namespace
}  // namespace backplane::test
