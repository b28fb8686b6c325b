// SPDX-License-Identifier: Apache-2.0
#include "device_maps.hpp"

#include <gtest/gtest.h>

#include "backplane/sdk/failure.hpp"

namespace backplane::tensorpipe {
namespace {

// The error text for these maps.
std::string map_refusal(const std::vector<WorkerDevices>& authenticated) {
  try {
    check_device_maps(authenticated);
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), BP_INVALID);
    return failure.what();
  }
  return "";
}

std::string refusal_of_text(const std::string& text) {
  try {
    parse_device_maps(text);
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), BP_INVALID);
    return failure.what();
  }
  return "";
}

TEST(DeviceMapsTest, RoundTrip) {
  const std::string text = "host:1:0=1,1=0;worker2:0=3";
  const DeviceMaps maps = parse_device_maps(text);
  EXPECT_EQ(maps, (DeviceMaps{{"host:1", {{0, 1}, {1, 0}}}, {"worker2", {{0, 3}}}}));
  EXPECT_EQ(format_device_maps(maps), text);
  EXPECT_TRUE(parse_device_maps("").empty());
}

TEST(DeviceMapsTest, AreOneToOneAndWellFormed) {
  EXPECT_NE(refusal_of_text("w:0=1,1=1").find("not one-to-one"), std::string::npos);
  EXPECT_NE(refusal_of_text("w:0=1,0=2").find("not one-to-one"), std::string::npos);
  EXPECT_NE(refusal_of_text("w:0=1;w:1=0").find("named twice"), std::string::npos);
  for (const char* bad : {"w", ":0=1"}) EXPECT_NE(refusal_of_text(bad).find("has no worker"), std::string::npos) << bad;
  for (const char* bad : {"w:0", "w:x=1", "w:0=-1", "w:0=1=2", "w:99999999999=0"}) {
    EXPECT_NE(refusal_of_text(bad).find("is not a device"), std::string::npos) << bad << ": " << refusal_of_text(bad);
  }
}

TEST(DeviceMapsTest, RejectUnknownWorkersAndDevices) {
  EXPECT_EQ(map_refusal({{"a", 2, {{"b", {{1, 0}}}}}, {"b", 1, {}}}), "");
  EXPECT_EQ(map_refusal({{"a", 2, {{"c", {{0, 0}}}}}, {"b", 1, {}}}),
            "device_maps: worker a maps to worker c, which does not exist");
  EXPECT_EQ(map_refusal({{"a", 1, {{"b", {{1, 0}}}}}, {"b", 1, {}}}),
            "device_maps: worker a maps its device 1, but has 1");
  EXPECT_EQ(map_refusal({{"a", 0, {{"b", {{1, 0}}}}, "no driver"}, {"b", 1, {}}}),
            "device_maps: worker a maps its device 1, but has 0: no driver");
  EXPECT_EQ(map_refusal({{"a", 2, {{"b", {{1, 1}}}}}, {"b", 1, {}}}),
            "device_maps: worker a maps to device 1 of worker b, which has 1");
  EXPECT_EQ(map_refusal({{"a", 0, {}}, {"b", 0, {}}}), "");  // no worker has devices
}

TEST(DeviceMapsTest, AreReversedForTheCallee) {
  const std::vector<WorkerDevices> authenticated = {
      {"a", 2, {{"b", {{0, 1}, {1, 0}}}}}, {"b", 2, {{"a", {{0, 0}}}}}, {"c", 4, {{"b", {{3, 1}}}}}};
  EXPECT_EQ(reverse_device_maps(authenticated, "b"), (DeviceMaps{{"a", {{1, 0}, {0, 1}}}, {"c", {{1, 3}}}}));
  EXPECT_EQ(reverse_device_maps(authenticated, "a"), (DeviceMaps{{"b", {{0, 0}}}}));
  EXPECT_TRUE(reverse_device_maps(authenticated, "c").empty());
}

TEST(DeviceMapsTest, PreferTheOwnMapOverTheReverse) {
  const WorkerDevices a = {"a", 3, {{"b", {{0, 1}}}}};
  const WorkerDevices b = {"b", 3, {{"a", {{2, 0}, {1, 2}}}}};
  const WorkerDevices c = {"c", 3, {}};
  EXPECT_EQ(device_map_between(a, b), (DeviceMap{{0, 1}, {2, 1}}));  // a's map takes precedence over b's 2=0
  EXPECT_EQ(device_map_between(b, a), (DeviceMap{{2, 0}, {1, 2}}));
  EXPECT_EQ(device_map_between({"d", 2, {}}, {"e", 2, {{"d", {{0, 1}, {1, 0}}}}}), (DeviceMap{{0, 1}, {1, 0}}));
  EXPECT_TRUE(device_map_between(a, c).empty());
  EXPECT_TRUE(device_map_between(c, b).empty());
}

}  // namespace
}  // namespace backplane::tensorpipe
