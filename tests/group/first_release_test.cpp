// SPDX-License-Identifier: Apache-2.0
//
// A program built with the first release passes structs of that release's size.
#include "support/groups.hpp"

namespace backplane::test {
namespace {

TEST(FirstRelease, ConfigurationsAreAccepted) {
  struct {
    bp_group_config config;
    uint64_t behind = 0xABABABABABABABAB;  // must not be read
  } exact;
  bp_group_config_init(&exact.config);
  bp_store* store = nullptr;
  ASSERT_EQ(bp_store_create_inproc(&store, nullptr), BP_OK);
  exact.config.store = store;
  exact.config.rank = 0;
  exact.config.world_size = 1;
  exact.config.backend = "inproc";
  exact.config.struct_size = offsetof(bp_group_config, timeout_ns) + sizeof exact.config.timeout_ns;
  bp_group* group = nullptr;
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(bp_group_create(&exact.config, &group, &err), BP_OK) << err.text;
  bp_group_release(group);
  bp_store_release(store);
}

TEST(FirstRelease, CallbacksAreAccepted) {
  struct {
    bp_store_callbacks callbacks;
    uint64_t behind = 0xABABABABABABABAB;
  } exact;
  static int releases = 0;
  bp_store_callbacks_init(&exact.callbacks);
  exact.callbacks.set = [](void*, const char*, const void*, uint64_t, int64_t, bp_error*) -> int32_t { return BP_OK; };
  exact.callbacks.get = [](void*, const char*, bp_store_answer*, int64_t, bp_error*) -> int32_t { return BP_TIMEOUT; };
  exact.callbacks.add = [](void*, const char*, int64_t, int64_t*, int64_t, bp_error*) -> int32_t { return BP_OK; };
  exact.callbacks.compare_set = [](void*, const char*, const void*, uint64_t, const void*, uint64_t, bp_store_answer*,
                                   int64_t, bp_error*) -> int32_t { return BP_OK; };
  exact.callbacks.delete_key = [](void*, const char*, int32_t*, int64_t, bp_error*) -> int32_t { return BP_OK; };
  exact.callbacks.release = [](void*) { ++releases; };
  exact.callbacks.struct_size = offsetof(bp_store_callbacks, release) + sizeof exact.callbacks.release;
  bp_store* store = nullptr;
  bp_error err;
  bp_error_init(&err);
  ASSERT_EQ(bp_store_create_custom(&exact.callbacks, &store, &err), BP_OK) << err.text;
  bp_store_release(store);
  EXPECT_EQ(releases, 1);
}

}  // namespace
}  // namespace backplane::test
