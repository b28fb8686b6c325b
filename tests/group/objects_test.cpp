// SPDX-License-Identifier: Apache-2.0
//
// Objects of any length, and the traps of hfai's zmq backend that concern them: None can be broadcast, the root gets a
// copy, nothing received is executed.
#include "backplane/adapters/objects.hpp"

#include <map>
#include <optional>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

using ObjectsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, ObjectsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 5)),
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

TEST_P(ObjectsTest, TypedValues) {
  in_group([](ProcessGroup& group) {
    using Map = std::map<std::string, std::vector<double>>;
    const Map mine = {{"rank", {static_cast<double>(group.rank())}}, {"pi", {3.14159}}};
    const auto all = all_gather_values(group, mine);
    for (int rank = 0; rank < group.world_size(); ++rank) EXPECT_EQ(all[static_cast<size_t>(rank)].at("rank")[0], rank);
    EXPECT_EQ(broadcast_value(group, mine, group.world_size() - 1).at("rank")[0], group.world_size() - 1);
    const std::optional<int> none;
    EXPECT_EQ(broadcast_value(group, none, 0), std::nullopt);  // None is an object like any other
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
    // So many elements are refused before there is memory for them.
    EXPECT_EQ(failure_of([] { detail::unpack<std::vector<int>>("\xdd\xff\xff\xff\xff"); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("array size overflow"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace backplane::test
