// SPDX-License-Identifier: Apache-2.0
#include "group/agreement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "store/store.hpp"
#include "store/store_fixture.hpp"

namespace backplane::core {
namespace {

class AgreementTest : public testing::Test {
 protected:
  static constexpr int32_t kRanks = 64;

  // The sentence with which the call of `rank` fails, "" if it succeeds.
  std::string ask(int32_t rank, const std::vector<int32_t>& ranks) {
    const auto refuse = [this](const GroupRequest& request, const std::string& why) { refused_[request.ranks] = why; };
    try {
      agree_on_group(*notes_, {name_, rank, kRanks}, {false, "made", "", ranks}, refuse, soon());
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), BP_INVALID);
      return e.what();
    }
  }
  static std::vector<int32_t> pair_of(int32_t rank) { return {rank / 2 * 2, rank / 2 * 2 + 1}; }

  const std::string name_ = "world";
  const std::shared_ptr<Store> notes_ = make_prefix_store(make_inproc_store(), "made/0/");
  std::map<std::vector<int32_t>, std::string> refused_;
};

TEST_F(AgreementTest, ManyDisjointGroupsDoNotMakeALongList) {
  for (int32_t rank = 0; rank + 1 < kRanks; ++rank) EXPECT_EQ(ask(rank, pair_of(rank)), "");
  const std::string list = notes_->get("asked", soon());
  EXPECT_LE(std::count(list.begin(), list.end(), '\n'), 16) << "each rank reads all of it";
  EXPECT_EQ(ask(kRanks - 1, pair_of(kRanks - 1)), "");
  EXPECT_EQ(notes_->num_keys(soon()), 0);
  EXPECT_TRUE(refused_.empty());
}

TEST_F(AgreementTest, AContradictionAmongManyGroupsIsFoundAtTheLatestByTheLastRank) {
  for (int32_t rank = 0; rank + 1 < kRanks; ++rank) {
    const bool is_other = rank == 41;
    const std::string why = ask(rank, is_other ? std::vector<int32_t>{41, 42} : pair_of(rank));
    if (!is_other && rank / 2 != 21) {
      EXPECT_EQ(why, "");
    }
  }
  EXPECT_EQ(ask(kRanks - 1, pair_of(kRanks - 1)), "") << "this group contradicts none";
  ASSERT_TRUE(refused_.contains({40, 41}));
  ASSERT_TRUE(refused_.contains({41, 42}));
  ASSERT_TRUE(refused_.contains({42, 43}));
  EXPECT_EQ(refused_.size(), 3U);
  const std::string& why = refused_.at({40, 41});
  for (const char* const each :
       {"rank 40 asked for group 'made' of ranks 40, 41", "rank 41 for group 'made' of ranks"}) {
    EXPECT_NE(why.find(each), std::string::npos) << why;
  }
  EXPECT_EQ(notes_->num_keys(soon()), 0);
}

TEST_F(AgreementTest, AFailedCallLeavesNoKeys) {
  EXPECT_EQ(ask(0, {0, 1}), "");
  EXPECT_NE(ask(1, {1, 0}), "");
  for (int32_t rank = 2; rank < kRanks; ++rank) ask(rank, {0, 1});
  EXPECT_EQ(notes_->num_keys(soon()), 0);
}

}  // namespace
}  // namespace backplane::core
