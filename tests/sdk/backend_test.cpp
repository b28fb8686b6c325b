// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/backend.hpp"

#include <gtest/gtest.h>

#include "sdk/host.hpp"

namespace backplane::sdk {
namespace {

class Group final : public ProcessGroup {
 public:
  std::unique_ptr<Work> submit(const bp_op&) override { return nullptr; }
  void abort(const Failure&) noexcept override {}
  const void* extension(std::string_view id) override {
    if (id == "test.throws/1") throw std::runtime_error("no");
    return id == "test.there/1" ? this : nullptr;
  }
};

struct Description {
  static constexpr const char* id = "test";
  static constexpr const char* version = "1.0";
  static constexpr const char* summary = "for a test";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = 0;
  static constexpr std::array<bp_option, 0> options = {};
  static constexpr std::array capabilities = {moves(BP_SEND), moves(BP_RECV)};
  static inline bool is_nothing_made = false;
  static std::unique_ptr<ProcessGroup> init(const Context&) {
    return is_nothing_made ? nullptr : std::make_unique<Group>();
  }
};

struct Started {
  int32_t status;
  bp_agent agent;
  bp_error err;
};

Started start(int32_t rank, int32_t world_size) {
  MemoryHost host;
  const bp_init init = init_of(host, rank, world_size, 0);
  Started started{};
  started.agent.struct_size = sizeof started.agent;
  bp_error_init(&started.err);
  const bp_backend& backend = detail::Tables<Description>::backend;
  started.status = backend.init(&backend, &init, &started.agent, &started.err);
  return started;
}

TEST(BackendTest, ARankOutsideTheWorldIsRefused) {
  for (const auto& [rank, world_size] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, -1}, {5, 1}}) {
    const Started started = start(rank, world_size);
    EXPECT_EQ(started.status, BP_INVALID) << rank << " of " << world_size;
    EXPECT_EQ(started.err.status, BP_INVALID);
    EXPECT_EQ(std::string(started.err.text), "rank " + std::to_string(rank) + " is not in a world of " +
                                                 std::to_string(world_size) + "; ranks count from 0 to world_size - 1");
    EXPECT_EQ(started.agent.self, nullptr);
  }
}

TEST(BackendTest, ExtensionNeverThrows) {
  const Started started = start(1, 2);
  ASSERT_EQ(started.status, BP_OK) << started.err.text;
  const auto* api = static_cast<const bp_process_group_api*>(started.agent.api);
  EXPECT_EQ(api->extension(started.agent.self, "test.there/1"), started.agent.self);
  EXPECT_EQ(api->extension(started.agent.self, "test.other/1"), nullptr);
  EXPECT_EQ(api->extension(started.agent.self, "test.throws/1"), nullptr);
  EXPECT_EQ(api->extension(started.agent.self, nullptr), nullptr);
  api->destroy(started.agent.self);
}

TEST(BackendTest, AnInitWithoutAGroupFails) {
  Description::is_nothing_made = true;
  const Started started = start(0, 1);
  Description::is_nothing_made = false;
  EXPECT_EQ(started.status, BP_INTERNAL);
  EXPECT_STREQ(started.err.text, "the init of backend test made no group");
  EXPECT_EQ(started.agent.self, nullptr);
}

}  // namespace
}  // namespace backplane::sdk
