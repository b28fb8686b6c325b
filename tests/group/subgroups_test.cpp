// SPDX-License-Identifier: Apache-2.0
#include "support/groups.hpp"

namespace backplane::test {
namespace {

class SubgroupsTest : public BackendTest {
 protected:
  // Runs body(group) on all ranks, without the barrier of in_group.
  void in_group_that_breaks(const std::function<void(ProcessGroup&)>& body) const {
    const Store store = Store::inproc();
    on_ranks(world_size(), [this, &store, &body](int rank) {
      ProcessGroup group = ProcessGroup::create(group_options(backend(), store, rank, world_size()));
      body(group);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, SubgroupsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2, 4, 5)),
                         backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, SubgroupsTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(4, 5)),
                         backend_test_name);

int sum_of_ones(ProcessGroup& group) {
  int value = 1;
  group.all_reduce(as_buffer(value));
  return value;
}

TEST_P(SubgroupsTest, NewGroupOfSomeRanks) {
  in_group([](ProcessGroup& group) {
    const int last = group.world_size() - 1;
    ProcessGroup pair = group.new_group({last, 0}, "ends");
    EXPECT_EQ(pair.name(), "ends");
    EXPECT_EQ(pair.world_size(), 2);
    if (group.rank() == last || group.rank() == 0) {
      EXPECT_EQ(pair.rank(), group.rank() == last ? 0 : 1);
      EXPECT_EQ(pair.global_rank(0), last);
      EXPECT_EQ(sum_of_ones(pair), 2);
    } else {
      EXPECT_EQ(pair.rank(), -1);
      std::string text;
      EXPECT_EQ(failure_of([&pair] { pair.barrier(); }, &text), Status::kInvalid);
      EXPECT_NE(text.find("not a member of group 'ends'"), std::string::npos) << text;
    }
  });
}

// Other ranks do not take part, and other groups are made at the same time.
TEST_P(SubgroupsTest, GroupsMadeByTheirMembersOnly) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    const auto make = [&group](const std::vector<int32_t>& ranks) {
      bp_group* made = nullptr;
      detail::call(bp_group_new_by_members, group.get(), ranks.data(), uint64_t{ranks.size()},
                   static_cast<const char*>(nullptr), int64_t{BP_INHERIT_TIMEOUT}, &made);
      return ProcessGroup(made);
    };
    const int first = group.rank() / 2 * 2;
    const std::vector<int32_t> pair =
        first + 1 < world ? std::vector<int32_t>{first + 1, first} : std::vector<int32_t>{first};
    for (int round = 0; round < 3; ++round) {
      ProcessGroup mine = make(pair);
      EXPECT_EQ(mine.world_size(), static_cast<int>(pair.size()));
      EXPECT_EQ(mine.global_rank(mine.rank()), group.rank());
      int sum = 1;
      mine.all_reduce(as_buffer(sum));
      EXPECT_EQ(sum, mine.world_size());
      mine.barrier();
    }
    if (world == 1) return;
    EXPECT_EQ(failure_of([&] { make({group.rank() == 0 ? 1 : 0}); }), Status::kInvalid);
  });
}

TEST_P(SubgroupsTest, SplitByColourAndKey) {
  in_group([](ProcessGroup& group) {
    const int rank = group.rank();
    ProcessGroup half = group.split(rank % 2, -rank);  // the highest rank is first
    const int members = (group.world_size() + 1 - rank % 2) / 2;
    EXPECT_EQ(half.world_size(), members);
    EXPECT_EQ(sum_of_ones(half), members);
    EXPECT_EQ(half.global_rank(half.rank()), rank);
    if (members > 1) {
      EXPECT_GT(half.global_rank(0), half.global_rank(1));
    }
  });
}

TEST_P(SubgroupsTest, UndefinedColourJoinsNone) {
  in_group([](ProcessGroup& group) {
    ProcessGroup some = group.split(group.rank() == 0 ? -1 : 0);
    EXPECT_EQ(some.rank(), group.rank() - 1);
    if (group.rank() != 0) {
      EXPECT_EQ(sum_of_ones(some), group.world_size() - 1);
    }
    EXPECT_EQ(sum_of_ones(group), group.world_size());
  });
}

TEST_P(SubgroupsTest, GroupsOfGroupsAndInterleavedUse) {
  in_group([](ProcessGroup& group) {
    std::vector<int> all;
    for (int rank = 0; rank < group.world_size(); ++rank) all.push_back(rank);
    ProcessGroup child = group.new_group(all);
    ProcessGroup grandchild = child.new_group({0, 1});
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(sum_of_ones(child), group.world_size());
      EXPECT_EQ(sum_of_ones(group), group.world_size());
      if (group.rank() < 2) {
        EXPECT_EQ(sum_of_ones(grandchild), 2);
      }
    }
  });
}

TEST_P(SubgroupsTest, DestroyingAParentEndsItsChildren) {
  const Store store = Store::inproc();
  on_ranks(world_size(), [this, &store](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backend(), store, rank, world_size()));
    ProcessGroup child = group.new_group({0, 1});
    group.barrier();
    group.destroy();
    if (rank < 2) {
      std::string text;
      EXPECT_EQ(failure_of([&child] { child.barrier(); }, &text), Status::kInvalid);
      EXPECT_NE(text.find("has been destroyed"), std::string::npos) << text;
    }
  });
}

TEST_P(SubgroupsTest, WrongListsAreRefused) {
  in_group([](ProcessGroup& group) {
    const auto refusal = [&group](const std::vector<int>& list) {
      std::string text;
      EXPECT_EQ(failure_of([&group, &list] { group.new_group(list); }, &text), Status::kInvalid) << text;
      return text;
    };
    EXPECT_EQ(refusal({0, 0}), "new_group: rank 0 is named twice");
    EXPECT_EQ(refusal({99}).find("new_group: 99 is not a rank of group 'test'"), 0U) << refusal({99});
    EXPECT_EQ(refusal({}), "new_group: a group has at least one rank");
  });
}

// Makes a group of which this rank is no member. Fails if another rank has noted something else.
void make_as_non_member(ProcessGroup& group, const std::vector<int>& list) {
  try {
    group.new_group(list);
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kInvalid) << e.what();
  }
}

// Neither the members that have called before nor those that call later wait for the timeout.
TEST_P(SubgroupsTest, AnInvalidListOfOneRankIsNamedOnAllSidesAtOnce) {
  in_group([](ProcessGroup& group) {
    if (group.rank() > 1) {
      make_as_non_member(group, {0, 1});
    } else {
      const bool is_wrong = group.rank() == 1;
      std::string text;
      const auto start = std::chrono::steady_clock::now();
      const auto make = [&group, is_wrong] { group.new_group(is_wrong ? std::vector{0, 0} : std::vector{0, 1}); };
      EXPECT_EQ(failure_of(make, &text), Status::kInvalid);
      EXPECT_NE(text.find("rank 0 is named twice"), std::string::npos) << text;
      for (const char* each : {"rank 1 ", "a group of ranks 0, 0 (new_group: rank 0 is named twice)"}) {
        EXPECT_TRUE(is_wrong || text.find(each) != std::string::npos) << text;
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    }
    group.barrier();
    ProcessGroup next = group.new_group({1, 0});  // all ranks have made as many groups
    if (group.rank() < 2) {
      EXPECT_EQ(sum_of_ones(next), 2);
    }
  });
}

TEST_P(SubgroupsTest, AMissingBackendFailsOnAllRanksAndALaterCallWorks) {
  in_group([](ProcessGroup& group) {
    std::string text;
    const bool lacks = group.rank() == 1;
    const Status status =
        failure_of([&] { group.with_backend(lacks ? "nowhere" : "inproc", std::chrono::seconds(60)); }, &text);
    EXPECT_EQ(status, Status::kInvalid);
    EXPECT_NE(text.find("nowhere"), std::string::npos) << text;
    EXPECT_TRUE(lacks || text.find("rank 1") != std::string::npos) << text;
    ProcessGroup next = group.with_backend("inproc");
    EXPECT_EQ(sum_of_ones(next), group.world_size());
  });
}

TEST_P(SubgroupsTest, DifferentListsAreNamed) {
  const bool pair = world_size() == 2;
  const std::vector<const char*> words =
      pair ? std::vector{"different groups", "of ranks 0, 1 over", "of ranks 1, 0 over"}
           : std::vector{"different groups", "of ranks 0, 1, 2", "of ranks 1, 0, 2"};
  in_group([pair, &words](ProcessGroup& group) {
    std::vector<int> list = pair ? std::vector{0, 1} : std::vector{0, 1, 2};
    const int last = list.back();
    if (group.rank() > last) return;
    if (group.rank() == last) std::swap(list[0], list[1]);
    std::string text;
    const auto make = [&group, &list] { group.new_group(list, "", std::chrono::seconds(60)); };
    EXPECT_EQ(failure_of(make, &text), Status::kInvalid);
    for (const char* each : words) EXPECT_NE(text.find(each), std::string::npos) << text;
  });
}

// Neither rank waits for the timeout.
TEST_P(SubgroupsTest, AnotherOrderIsNamedOnAllSidesAtOnce) {
  if (world_size() < 4) return;
  in_group([](ProcessGroup& group) {
    if (group.rank() > 1) {
      group.barrier();
      return;
    }
    const bool swapped = group.rank() == 1;
    std::string text;
    const auto start = std::chrono::steady_clock::now();
    const auto make = [&] {
      group.new_group(swapped ? std::vector{0, 1, 2} : std::vector{0, 1}, swapped ? "three" : "pair");
    };
    EXPECT_EQ(failure_of(make, &text), Status::kInvalid);
    for (const char* each : {"group 'pair' of ranks 0, 1 over", "group 'three' of ranks 0, 1, 2 over",
                             "make different groups", "rank 0 ", "rank 1 "}) {
      EXPECT_NE(text.find(each), std::string::npos) << text;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    group.barrier();
  });
}

// Any two of the lists have one rank in common, which is in one of the groups at most.
TEST_P(SubgroupsTest, OverlappingListsAreNamedOnAllSides) {
  if (world_size() < 4) return;
  in_group([](ProcessGroup& group) {
    const std::vector<int> list = {group.rank() % 3, (group.rank() + 1) % 3};
    if (group.rank() < 3) {
      std::string text;
      EXPECT_EQ(failure_of([&] { group.new_group(list); }, &text), Status::kInvalid);
      EXPECT_NE(text.find("make different groups"), std::string::npos) << text;
      EXPECT_NE(text.find("of ranks " + std::to_string(list[0]) + ", " + std::to_string(list[1]) + " over"),
                std::string::npos)
          << text;
    } else {
      make_as_non_member(group, list);
    }
    group.barrier();
    ProcessGroup next = group.split(0, 0);  // the parent works on
    EXPECT_EQ(sum_of_ones(next), group.world_size());
  });
}

// Each rank asks for a group that does not contradict any other's, but rank 1 is missing in its own.
TEST_P(SubgroupsTest, AMemberThatAskedForAnotherGroupIsNoticed) {
  if (world_size() != 4) return;
  in_group([](ProcessGroup& group) {
    std::string text;
    if (group.rank() == 0) {
      EXPECT_EQ(failure_of([&] { group.new_group({0, 1}); }, &text), Status::kInvalid);
      EXPECT_NE(text.find("make different groups"), std::string::npos) << text;
    } else {
      make_as_non_member(group, {2, 3});
    }
    group.barrier();
  });
}

TEST_P(SubgroupsTest, DifferentGroupsOfOneCallWithoutACommonMember) {
  if (world_size() < 4) return;
  in_group([](ProcessGroup& group) {
    if (group.rank() < 4) {
      ProcessGroup mine = group.new_group(group.rank() < 2 ? std::vector{0, 1} : std::vector{3, 2});
      EXPECT_EQ(sum_of_ones(mine), 2);
    }
    group.barrier();
  });
}

// The others are in an operation of the parent, which ends with it.
TEST_P(SubgroupsTest, ASplitWhereAnotherRankMakesAGroup) {
  in_group_that_breaks([](ProcessGroup& group) {
    std::string text;
    const auto make = [&group] {
      if (group.rank() == 0) {
        group.new_group({0, 1}, "pair");
      } else {
        group.split(0, 0);
      }
    };
    EXPECT_EQ(failure_of(make, &text), Status::kInvalid);
    EXPECT_NE(text.find("group 'pair' of ranks 0, 1 over"), std::string::npos) << text;
    EXPECT_NE(text.find("a split"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace backplane::test
