// SPDX-License-Identifier: Apache-2.0
//
// The sentence that names the rank at fault.
#include "group/diagnosis.hpp"

#include <gtest/gtest.h>

#include "group/subgroups.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kSeq = 812;
const std::string kSignature = "all_reduce sum (f32 x 1048576)";

Position inside(int pid) {
  Position position;
  position.identity = "host" + std::to_string(pid) + ", pid " + std::to_string(pid);
  position.entered = kSignature;
  position.in_flight = Position::Step{kSignature, kSeq, true, 30.04};
  return position;
}

Position behind(int pid) {
  Position position = inside(pid);
  position.entered.clear();
  position.in_flight.reset();
  position.last = Position::Step{"broadcast (u8 x 4) with root 0", kSeq - 1, true, 31.26};
  return position;
}

TEST(Diagnosis, NamesTheRankThatNeverEnteredAndItsLastOperation) {
  const Diagnosis diagnosis =
      diagnose(kSeq, kSignature, 4, {{0, inside(10)}, {1, inside(11)}, {2, inside(12)}, {3, behind(13)}});
  EXPECT_EQ(diagnosis.failed_rank, 3);
  EXPECT_EQ(diagnosis.text,
            "rank 3 (host13, pid 13) never entered all_reduce sum (f32 x 1048576) #812; it last finished broadcast "
            "(u8 x 4) with root 0 #811, 31.3 s ago");
}

TEST(Diagnosis, ReportsTheOperationOfAnAbsentRank) {
  Position stuck = behind(11);
  stuck.in_flight = Position::Step{"recv (u8 x 4) from rank 0", 5, false, 12.0};
  const Diagnosis diagnosis = diagnose(kSeq, kSignature, 2, {{0, inside(10)}, {1, stuck}});
  EXPECT_NE(diagnosis.text.find("it is in recv (u8 x 4) from rank 0 #5 since 12.0 s"), std::string::npos)
      << diagnosis.text;
}

TEST(Diagnosis, ReportsAMismatchFirst) {
  Position other = inside(11);
  other.entered = "broadcast (u8 x 4) with root 0";
  const Diagnosis diagnosis = diagnose(kSeq, kSignature, 3, {{0, inside(10)}, {1, other}, {2, behind(12)}});
  EXPECT_EQ(diagnosis.failed_rank, 1);
  EXPECT_EQ(
      diagnosis.text,
      "rank 1 (host11, pid 11) entered broadcast (u8 x 4) with root 0 as #812 where rank 0 entered all_reduce sum "
      "(f32 x 1048576)");
}

TEST(Diagnosis, ComparesWithTheMajority) {
  Position other = inside(10);
  other.entered = "all_reduce sum (f32 x 8)";
  const Diagnosis diagnosis =
      diagnose(kSeq, kSignature, 4, {{0, other}, {1, behind(11)}, {2, inside(12)}, {3, inside(13)}});
  EXPECT_EQ(diagnosis.failed_rank, 0);
  EXPECT_EQ(diagnosis.text,
            "rank 0 (host10, pid 10) entered all_reduce sum (f32 x 8) as #812 where rank 2 entered all_reduce sum "
            "(f32 x 1048576)");
}

TEST(Diagnosis, NamesARankThatDoesNotAnswer) {
  const Diagnosis diagnosis = diagnose(kSeq, kSignature, 3, {{0, inside(10)}, {1, inside(11)}});
  EXPECT_EQ(diagnosis.failed_rank, 2);
  EXPECT_EQ(diagnosis.text, "rank 2 does not answer");
}

TEST(Diagnosis, NamesThreeOfManyRanks) {
  const Diagnosis diagnosis = diagnose(kSeq, kSignature, 1000, {{7, inside(10)}});
  EXPECT_EQ(diagnosis.failed_rank, 0);
  EXPECT_EQ(diagnosis.text,
            "rank 0 does not answer; rank 1 does not answer; rank 2 does not answer; and 996 more ranks");
}

TEST(Diagnosis, NamesTheBackendIfAllRanksEntered) {
  const Diagnosis diagnosis = diagnose(kSeq, kSignature, 2, {{0, inside(10)}, {1, inside(11)}});
  EXPECT_EQ(diagnosis.failed_rank, -1);
  EXPECT_NE(diagnosis.text.find("their backend does not progress"), std::string::npos);
}

TEST(Diagnosis, DecodesAnEncodedPosition) {
  const Position sent = behind(13);
  const std::optional<Position> received = decode_position(encode(sent));
  ASSERT_TRUE(received);
  EXPECT_EQ(received->identity, sent.identity);
  ASSERT_TRUE(received->last);
  EXPECT_EQ(received->last->signature, sent.last->signature);
  EXPECT_FALSE(received->in_flight);
  for (const char* text : {"", "{}", "[1]", "null", "{\"identity\":1}"}) EXPECT_FALSE(decode_position(text)) << text;
}

TEST(Diagnosis, TakesThePositionFromTheRecorder) {
  Recorder recorder;
  bp_op op = {};
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_F32;
  recorder.finish(recorder.start(op, 1, 4, -1), BP_OK);
  op.kind = BP_BROADCAST;
  recorder.start(op, 2, 8, 3);
  const Position at_first = position(recorder, 1, "here");
  EXPECT_EQ(at_first.entered, "all_reduce sum (f32 x 4)");
  EXPECT_TRUE(at_first.finished);
  ASSERT_TRUE(at_first.in_flight);
  EXPECT_EQ(at_first.in_flight->signature, "broadcast (f32 x 8) with root 3");
  EXPECT_EQ(position(recorder, 3, "here").entered, "");
}

TEST(RenumberedError, NamesTheSameProcess) {
  const Error lost(BP_PEER_LOST, "rank 5 is lost", 1, 7);
  const std::vector<int32_t> parent = {4, 5, 6};
  EXPECT_EQ(renumbered(lost, parent, {6, 5}).peer_rank(), 1);
  EXPECT_EQ(renumbered(lost, parent, {5}).peer_rank(), 0);
  EXPECT_EQ(renumbered(lost, parent, {4, 6}).peer_rank(), -1);
  EXPECT_EQ(renumbered(Error(BP_CANCELLED, "aborted"), parent, {4}).peer_rank(), -1);
  EXPECT_EQ(renumbered(lost, parent, {5}).status(), BP_PEER_LOST);
  EXPECT_EQ(renumbered(lost, parent, {5}).native_code(), 7);
}

}  // namespace
}  // namespace backplane::core
