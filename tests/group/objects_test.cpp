// SPDX-License-Identifier: Apache-2.0
//
// Objects of any length, and defects of hfai's zmq backend: None can be broadcast, the root gets a copy, and received
// data is not executed.
#include "backplane/adapters/objects.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

using ObjectsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, ObjectsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 5)),
                         backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, ObjectsTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(5)),
                         backend_test_name);

TEST_P(ObjectsTest, BytesOfAnyLength) {
  in_group([](ProcessGroup& group) {
    const auto object = [](int rank) { return std::string(static_cast<size_t>(rank) * 100000, 'x') + '\0' + "end"; };
    const int world = group.world_size();
    const auto everyone = group.all_gather_object(object(group.rank()));
    ASSERT_EQ(everyone.size(), static_cast<size_t>(world));
    for (int rank = 0; rank < world; ++rank) EXPECT_TRUE(everyone[static_cast<size_t>(rank)] == object(rank));
    for (int root = 0; root < world; ++root) {
      EXPECT_TRUE(group.broadcast_object(object(group.rank()), root) == object(root));
      const auto gathered = group.gather_object(object(group.rank()), root);
      EXPECT_EQ(gathered.size(), group.rank() == root ? static_cast<size_t>(world) : 0);
      EXPECT_TRUE(group.scatter_object(gathered, root) == object(group.rank()));
    }
    EXPECT_EQ(group.broadcast_object("", 0), "");
  });
}

// From several threads at once, with one tag, from any source.
TEST_P(ObjectsTest, AsMessages) {
  in_group([](ProcessGroup& group) {
    const auto object = [](int rank, int i) {
      return std::string(static_cast<size_t>(i) * 7000, 'a') + std::to_string(rank);
    };
    const int next = (group.rank() + 1) % group.world_size();
    constexpr int kMany = 6;
    std::thread sender([&] {
      for (int i = 0; i < kMany; ++i) {
        const std::string text = object(group.rank(), i);
        detail::call(bp_group_send_object, group.get(), static_cast<const void*>(text.data()), uint64_t{text.size()},
                     next, 5U, int64_t{BP_INHERIT_TIMEOUT});
      }
    });
    std::mutex mutex;
    std::multiset<std::string> received;
    const auto receive = [&] {
      for (int i = 0; i < kMany / 2; ++i) {
        bp_objects* objects = nullptr;
        int32_t source = -1;
        detail::call(bp_group_recv_object, group.get(), int32_t{BP_ANY_SOURCE}, 5U, int64_t{BP_INHERIT_TIMEOUT},
                     &objects, &source);
        uint64_t size = 0;
        const auto* bytes = static_cast<const char*>(bp_objects_get(objects, 0, &size));
        const std::lock_guard lock(mutex);
        received.emplace(bytes, size);
        bp_objects_release(objects);
        EXPECT_EQ((source + 1) % group.world_size(), group.rank());
      }
    };
    std::thread other(receive);
    receive();
    other.join();
    sender.join();
    std::multiset<std::string> expected;
    for (int i = 0; i < kMany; ++i) {
      expected.insert(object((group.rank() + group.world_size() - 1) % group.world_size(), i));
    }
    EXPECT_TRUE(received == expected);
  });
}

TEST_P(ObjectsTest, TypedValues) {
  in_group([](ProcessGroup& group) {
    using Map = std::map<std::string, std::vector<double>>;
    const Map mine = {{"rank", {static_cast<double>(group.rank())}}, {"pi", {3.14159}}};
    const auto all = all_gather_values(group, mine);
    for (int rank = 0; rank < group.world_size(); ++rank) EXPECT_EQ(all[static_cast<size_t>(rank)].at("rank")[0], rank);
    EXPECT_EQ(broadcast_value(group, mine, group.world_size() - 1).at("rank")[0], group.world_size() - 1);
    const std::optional<int> none;
    EXPECT_EQ(broadcast_value(group, none, 0), std::nullopt);  // None is a valid object
    const auto at_root = gather_values(group, group.rank(), 0);
    EXPECT_EQ(scatter_value(group, at_root, 0), group.rank());
  });
}

TEST_P(ObjectsTest, AWrongTypeIsAnErrorOfTheReceiver) {
  in_group([](ProcessGroup& group) {
    const std::string packed = group.broadcast_object(detail::pack(std::string("text")), 0);
    std::string text;
    EXPECT_EQ(failure_of([&packed] { detail::unpack<std::vector<int>>(packed); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("does not have the expected type"), std::string::npos) << text;
    // So many elements are refused before memory is allocated.
    EXPECT_EQ(failure_of([] { detail::unpack<std::vector<int>>("\xdd\xff\xff\xff\xff"); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("array size overflow"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace backplane::test
