// SPDX-License-Identifier: Apache-2.0
//
// The layer `matching` over backends without tags, any-source and any-tag. Its behaviour over every backend is tested
// by InsideMatching (CMakeLists.txt).
#include "backplane/registry.hpp"
#include "layers/support.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

// Registers an existing backend as `plain` without its matching flags, and checks the operations that it gets.
class Plain {
 public:
  static void add() {
    static bp_backend backend = backend_type("inproc").descriptor();
    if (std::string(backend.id) == "plain") return;
    real_ = backend.init;
    backend.id = "plain";
    backend.flags &= ~uint32_t{BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG};
    backend.init = init;
    detail::call(bp_register_backend, static_cast<bp_registry*>(nullptr), static_cast<const bp_backend*>(&backend),
                 static_cast<const bp_backend_type**>(nullptr));
  }
  // Operations must have tag 0, a source and no probed message.
  static inline std::atomic<bool> checks_operations = false;

 private:
  static int32_t init(const bp_backend* self, const bp_init* request, bp_agent* agent, bp_error* err) {
    const int32_t status = real_(self, request, agent, err);
    if (status != BP_OK) return status;
    static const bp_process_group_api checking = checked(static_cast<const bp_process_group_api*>(agent->api));
    agent->api = &checking;
    return BP_OK;
  }
  static bp_process_group_api checked(const bp_process_group_api* api) {
    submit_ = api->submit;
    bp_process_group_api result = *api;
    result.submit = submit;
    return result;
  }
  static int32_t submit(void* self, const bp_op* op, bp_work** work, bp_error* err) {
    const bool is_message = op->kind == BP_SEND || op->kind == BP_RECV;
    if (checks_operations && is_message) {
      EXPECT_EQ(op->tag, 0U);
      EXPECT_GE(op->peer, 0);
      EXPECT_EQ(op->message, nullptr);
    }
    return submit_(self, op, work, err);
  }
  static inline decltype(bp_backend::init) real_ = nullptr;
  static inline decltype(bp_process_group_api::submit) submit_ = nullptr;
};

TEST(MatchingTest, IsRecommendedByTheError) {
  Plain::add();
  in_group("plain", 2, [](ProcessGroup& group) {
    int value = 0;
    for (const auto& refused : std::vector<std::function<void()>>{
             [&] { group.recv(as_buffer(value), ProcessGroup::kAnySource); },
             [&] { group.recv(as_buffer(value), 0, ProcessGroup::kAnyTag); },
             [&] { group.recv(as_buffer(value), 0, 5); },
         }) {
      std::string text;
      EXPECT_EQ(failure_of(refused, &text), Status::kUnsupported);
      EXPECT_TRUE(contains(text, "wrap it in the layer matching (BACKPLANE_LAYERS=matching)")) << text;
    }
  });
}

TEST(MatchingTest, AddsTagsAnySourceAndProbes) {
  Plain::add();
  Plain::checks_operations = true;
  in_layers("matching", "plain", 3, [](ProcessGroup& group) {
    const int rank = group.rank();
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    std::vector<Work> sends;
    std::vector<std::vector<int>> messages;
    for (const size_t size : {100'000, 10, 0, 1'000'000, 1}) messages.emplace_back(size, rank);
    for (size_t i = messages.size(); i > 0; --i) sends.push_back(group.isend(messages[i - 1], next, i - 1));
    for (size_t i = 0; i < 3; ++i) {
      std::vector<int> in(messages[i].size());
      const Received received = group.recv(in, ProcessGroup::kAnySource, i).received();
      EXPECT_EQ(received.source, previous);
      EXPECT_EQ(in, std::vector<int>(messages[i].size(), previous));
    }
    for (const size_t size : {1, 1'000'000}) {  // the oldest first
      Message message = group.probe(previous, ProcessGroup::kAnyTag);
      std::vector<int> in(message.info().bytes / sizeof(int));
      EXPECT_EQ(in.size(), static_cast<size_t>(size));
      group.recv(in, std::move(message));
      EXPECT_EQ(in, std::vector<int>(in.size(), previous));
    }
    for (Work& send : sends) send.wait();
    std::vector<float> sums(50'000, 1.0F);  // by the core, from sends and receives
    group.all_reduce(sums);
    EXPECT_EQ(sums, std::vector<float>(sums.size(), 3.0F));
    std::vector<int> ranks(3);
    group.all_gather(as_buffer(rank), ranks);
    EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2}));
    group.barrier();
  });
  Plain::checks_operations = false;
}

class MatchingOverTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, MatchingOverTest, testing::ValuesIn(built_backends()),
                         [](const auto& info) { return info.param; });

// Messages sent before a rank left are received. Operations that wait for it afterwards fail.
TEST_P(MatchingOverTest, DeliversAllMessagesOfARankThatLeft) {
  for (int round = 0; round < 3; ++round) {
    in_layers("matching", GetParam(), 2, [](ProcessGroup& group) {
      constexpr int kMessages = 50;
      if (group.rank() == 1) {
        group.barrier();
        for (int i = 0; i < kMessages; ++i) group.send(as_buffer(i), 0, 1);
        group.destroy();
        return;
      }
      int value = 0, never = 0;
      Work unmatched = group.irecv(as_buffer(never), 1, 2);  // while rank 1 is in the group
      group.barrier();
      for (int i = 0; i < kMessages; ++i) {
        group.recv(as_buffer(value), i % 2 == 0 ? 1 : ProcessGroup::kAnySource, ProcessGroup::kAnyTag);
        EXPECT_EQ(value, i);
      }
      std::string text;
      EXPECT_EQ(failure_of([&] { unmatched.wait(); }, &text), Status::kPeerLost) << text;
      EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), ProcessGroup::kAnySource, 3); }), Status::kPeerLost);
      EXPECT_EQ(failure_of([&] { group.probe(1, 3); }), Status::kPeerLost);
    });
  }
}

TEST_P(MatchingOverTest, OtherRanksContinueWhenOneLeaves) {
  in_layers("matching", GetParam(), 3, [](ProcessGroup& group) {
    if (group.rank() == 1) return group.destroy();
    const int other = 2 - group.rank();
    int value = 0;
    EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), 1, 9); }), Status::kPeerLost);
    for (int i = 0; i < 20; ++i) {
      const std::vector<int> out(i % 2 == 0 ? 10 : 100'000, i);
      Work sent = group.isend(out, other, 1);
      std::vector<int> in(out.size());
      EXPECT_EQ(group.recv(in, ProcessGroup::kAnySource, ProcessGroup::kAnyTag).received().source, other);
      EXPECT_EQ(in, out);
      sent.wait();
    }
  });
}

TEST(MatchingTest, MustBeSetOnAllRanks) {
  Store store = Store::inproc();
  std::string text;
  const auto start = [&store, &text](int rank) {
    EXPECT_EQ(failure_of([&] { ProcessGroup::create(group_options("inproc", store, rank, 2)); }, &text),
              Status::kInvalid);
  };
  std::optional<std::thread> with;
  {
    const ScopedVariable variable("BACKPLANE_LAYERS", "matching");
    with.emplace(start, 0);
    ASSERT_TRUE(eventually([&store] { return store.num_keys() > 0; }));  // rank 0 has read the variable
  }
  std::string other;
  EXPECT_EQ(failure_of([&] { ProcessGroup::create(group_options("inproc", store, 1, 2)); }, &other), Status::kInvalid);
  with->join();
  EXPECT_EQ(text, other);
  EXPECT_TRUE(contains(text, "rank 0 chose backend inproc within matching for ranks 0 1")) << text;
}

}  // namespace
}  // namespace backplane::test
