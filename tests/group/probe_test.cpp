// SPDX-License-Identifier: Apache-2.0
//
// Matched probes and receives with any tag, and the error of a backend that does not support them.
#include "support/groups.hpp"

namespace backplane::test {
namespace {

// gloo matches messages itself, without BP_ANY_TAG.
std::optional<ScopedVariable> within_matching(const std::string& backend) {
  if (backend != "gloo") return std::nullopt;
  return std::optional<ScopedVariable>(std::in_place, "BACKPLANE_LAYERS", "matching");
}

class ProbeTest : public testing::TestWithParam<std::string> {
 protected:
  void in_group(const std::function<void(ProcessGroup&)>& body) const { test::in_group(GetParam(), 2, body); }

 private:
  const std::optional<ScopedVariable> layers_ = within_matching(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Backends, ProbeTest, testing::ValuesIn(built_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(ProbeTest, FindsTheSizeBeforeTheBuffer) {
  in_group([](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    for (const size_t size : {0, 1, 1000, 1'000'000}) {
      const std::vector<int> out(size, group.rank());
      Work sent = group.isend(out, peer, 7);
      Message message = group.probe(ProcessGroup::kAnySource, ProcessGroup::kAnyTag);
      EXPECT_EQ(message.info().source, peer);
      EXPECT_EQ(message.info().tag, 7U);
      std::vector<int> in(message.info().bytes / sizeof(int));
      EXPECT_EQ(in.size(), size);
      group.recv(in, std::move(message));
      EXPECT_EQ(in, std::vector<int>(size, peer));
      sent.wait();
    }
  });
}

TEST_P(ProbeTest, TimesOut) {
  in_group([](ProcessGroup& group) {
    EXPECT_EQ(failure_of([&] { group.probe(0, 3, std::chrono::milliseconds(0)); }), Status::kTimeout);
    EXPECT_EQ(failure_of([&] { group.probe(0, 3, std::chrono::milliseconds(100)); }), Status::kTimeout);
    EXPECT_EQ(failure_of([&] { group.probe(5, 3); }), Status::kInvalid);
    EXPECT_EQ(failure_of([&] { group.probe(0, uint64_t{1} << 40); }), Status::kInvalid);
  });
}

TEST_P(ProbeTest, DroppingAMessageEndsItsSend) {
  in_group([](ProcessGroup& group) {
    const std::vector<int> out(500'000, 1);
    Work sent = group.isend(out, 1 - group.rank(), 1);
    group.probe(1 - group.rank(), 1);
    sent.wait();
  });
}

TEST_P(ProbeTest, AMessageBelongsToItsGroupAndToOneRecv) {
  in_group([](ProcessGroup& group) {
    ProcessGroup other = group.new_group({0, 1});
    const int peer = 1 - group.rank();
    int value = group.rank();
    for (const bool is_wrong_group : {true, false}) {
      group.isend(std::vector<int>{group.rank()}, peer, 1);
      bp_message* message = nullptr;
      bp_result found = {sizeof found, -1, 0, 0};
      detail::call(bp_group_probe, group.get(), peer, uint64_t{1}, int64_t{BP_INHERIT_TIMEOUT}, &message, &found);
      bp_op op = ProcessGroup::make_op(BP_RECV, {}, as_buffer(value), {});
      op.message = message;
      EXPECT_EQ(bp_group_run((is_wrong_group ? other : group).get(), &op, nullptr),
                is_wrong_group ? BP_INVALID : BP_OK);
      EXPECT_EQ(bp_group_run(group.get(), &op, nullptr), BP_INVALID) << "a handle that was released is taken again";
      bp_message_release(message);
    }
    EXPECT_EQ(value, peer);
    // Only a recv accepts it.
    group.isend(std::vector<int>{group.rank()}, peer, 1);
    bp_message* kept_message = nullptr;
    bp_result about = {sizeof about, -1, 0, 0};
    detail::call(bp_group_probe, group.get(), peer, uint64_t{1}, int64_t{BP_INHERIT_TIMEOUT}, &kept_message, &about);
    for (const uint32_t kind : {BP_SEND, BP_BARRIER, BP_ALL_REDUCE}) {
      bp_op op = ProcessGroup::make_op(kind, as_buffer(value), as_buffer(value), {});
      op.message = kept_message;
      EXPECT_EQ(bp_group_run(group.get(), &op, nullptr), BP_INVALID);
    }
    bp_op recv = ProcessGroup::make_op(BP_RECV, {}, as_buffer(value), {});
    recv.message = kept_message;
    EXPECT_EQ(bp_group_run(group.get(), &recv, nullptr), BP_OK);
    // A refused recv releases it as well.
    group.isend(std::vector<int>{group.rank()}, peer, 1);
    EXPECT_EQ(failure_of([&] { group.recv(Buffer(nullptr, 5, DType::kI32), group.probe(peer, 1)); }), Status::kInvalid);
    // A message outlives its group.
    other.isend(std::vector<int>{1}, peer, 1);
    const Message kept = other.probe(peer, 1);
    group.barrier();
    other.destroy();
  });
}

TEST_P(ProbeTest, AnyTagReceivesTheOldestMessage) {
  in_group([](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    for (uint32_t tag = 10; tag > 0; --tag) group.isend(std::vector<uint32_t>{tag}, peer, tag);
    for (uint32_t tag = 10; tag > 0; --tag) {
      uint32_t value = 0;
      const Received received = group.recv(as_buffer(value), peer, ProcessGroup::kAnyTag).received();
      EXPECT_EQ(value, tag);
      EXPECT_EQ(received.tag, tag);
    }
  });
}

#ifdef BACKPLANE_TEST_gloo
TEST(Probe, TheErrorNamesABackendWithoutProbes) {
  in_group("gloo", 2, [](ProcessGroup& group) {
    std::string text;
    EXPECT_EQ(failure_of([&] { group.probe(0, 1); }, &text), Status::kUnsupported);
    EXPECT_NE(text.find("backend gloo cannot probe"), std::string::npos) << text;
    int value = 0;
    EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), 0, ProcessGroup::kAnyTag); }, &text), Status::kUnsupported);
    EXPECT_NE(text.find("any tag"), std::string::npos) << text;
  });
}
#endif

}  // namespace
}  // namespace backplane::test
