// SPDX-License-Identifier: Apache-2.0
//
// The five functions of torch.distributed.rpc.backend_registry: their errors, and their defects, which are absent here.
#include "backplane/registry.hpp"

#include <any>

#include "backplane/sdk/sdk.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

// A process group without operations, for handlers that must return one.
class Idle final : public sdk::ProcessGroup {
 public:
  std::unique_ptr<sdk::Work> submit(const bp_op&) override { return nullptr; }
  void abort(const sdk::Failure&) noexcept override {}
};

void return_agent(const bp_init& init, bp_agent* agent) {
  agent->kind = BP_KIND_PROCESS_GROUP;
  agent->api = &sdk::detail::kProcessGroupApi;
  agent->self = static_cast<sdk::ProcessGroup*>(new Idle);
  agent->rank = init.rank;
  agent->world_size = init.world_size;
}

BackendHandlers idle_handlers() {
  BackendHandlers handlers;
  handlers.options = {{0, BP_OPTION_INT, 0, 0, "num_send_recv_threads", "4", "threads", nullptr, 1, 64}};
  handlers.capabilities = {sdk::moves(BP_BARRIER)};
  handlers.init = [](const bp_init& init, const std::any&, bp_agent* agent) { return_agent(init, agent); };
  return handlers;
}

TEST(BackendTypeTest, RegisterConstructAndInit) {
  EXPECT_FALSE(backend_registered("my_group"));
  Timeout seen_timeout{};
  BackendHandlers handlers = idle_handlers();
  handlers.construct_options = [&seen_timeout](Timeout rpc_timeout, const std::string& init_method,
                                               const Keywords& keywords) {
    seen_timeout = rpc_timeout;
    EXPECT_EQ(init_method, "env://");
    return std::any(std::stoi(keywords.at("num_send_recv_threads")));
  };
  int seen_threads = 0;
  handlers.init = [&seen_threads](const bp_init& init, const std::any& options, bp_agent* agent) {
    seen_threads = std::any_cast<int>(options);
    return_agent(init, agent);
  };
  const BackendType type = register_backend("my_group", handlers);
  EXPECT_EQ(type.repr(), "BackendType.MY_GROUP");
  EXPECT_TRUE(backend_registered("MY_GROUP"));
  EXPECT_EQ(backend_type("My_Group"), type);

  const BackendOptions options =
      construct_rpc_backend_options(type, std::chrono::seconds(7), "env://", {{"num_send_recv_threads", "8"}});
  EXPECT_EQ(seen_timeout, std::chrono::seconds(7));
  EXPECT_EQ(options["num_send_recv_threads"], "8");
  EXPECT_THROW(options["missing"], std::out_of_range);
  ProcessGroup group = init_backend(type, Store::inproc(), "worker0", 0, 1, options);
  EXPECT_EQ(seen_threads, 8);
  EXPECT_EQ(group.rank(), 0);
  group.barrier();
}

TEST(BackendTypeTest, RegisteringTwiceIsAnError) {
  const BackendType first = register_backend("twice", idle_handlers());
  std::string text;
  EXPECT_EQ(failure_of([] { register_backend("twice", idle_handlers()); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "RPC backend TWICE: already registered");
  EXPECT_EQ(failure_of([] { register_backend("inproc", idle_handlers()); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "RPC backend INPROC: already registered");
  // torch rebuilds the enumeration, so that members held earlier no longer equal their successors.
  const BackendOptions options = construct_rpc_backend_options(first);
  register_backend("another", idle_handlers());
  EXPECT_EQ(backend_type("twice"), first);
  EXPECT_EQ(init_backend(first, Store::inproc(), "me", 0, 1, options).world_size(), 1);
}

template <typename T>
concept TakenForAStore = requires(BackendType type, T store, const BackendOptions& options) {
  init_backend(type, store, "me", 0, 1, options);
};

// At compile time, where types are known.
TEST(BackendTypeTest, AStoreOfTheWrongTypeIsRefused) {
  static_assert(TakenForAStore<Store> && !TakenForAStore<int> && !TakenForAStore<std::string> &&
                !TakenForAStore<ProcessGroup> && !TakenForAStore<bp_store*>);
  const BackendType type = backend_type("inproc");
  const BackendOptions options = construct_rpc_backend_options(type);
  bp_group* group = nullptr;
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(bp_init_backend(type.get(), nullptr, "me", 0, 1, options.get(), 0, &group, &err), BP_INVALID);
  EXPECT_STREQ(err.text, "`store` must be a bp_store. (null)");
}

// torch's handlers swallow keywords that they do not know.
TEST(BackendTypeTest, UnknownKeywordsAreNamed) {
  const BackendType type = register_backend("keywords", idle_handlers());
  std::string text;
  const auto construct = [&type] {
    construct_rpc_backend_options(type, std::chrono::seconds(1), "env://", {{"num_send_recv_thread", "4"}});
  };
  EXPECT_EQ(failure_of(construct, &text), Status::kInvalid);
  EXPECT_NE(text.find("Did you mean 'num_send_recv_threads'?"), std::string::npos) << text;
}

TEST(BackendTypeTest, OptionsOfAnotherBackendAreRefused) {
  const BackendType mine = register_backend("mine", idle_handlers());
  const BackendType other = register_backend("other", idle_handlers());
  const BackendOptions options = construct_rpc_backend_options(other);
  std::string text;
  EXPECT_EQ(failure_of([&] { init_backend(mine, Store::inproc(), "w", 0, 1, options); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "`rpc_backend_options` must be options of BackendType.MINE, these are of BackendType.OTHER");
}

TEST(BackendTypeTest, AnAgentThatDisagreesIsRefused) {
  BackendHandlers handlers = idle_handlers();
  handlers.init = [](const bp_init& init, const std::any&, bp_agent* agent) {
    return_agent(init, agent);
    agent->rank = 3;
  };
  const BackendType type = register_backend("liar", handlers);
  std::string text;
  const auto init = [&type] { init_backend(type, Store::inproc(), "w", 0, 1, construct_rpc_backend_options(type)); };
  EXPECT_EQ(failure_of(init, &text), Status::kInvalid);
  EXPECT_EQ(text, "rank argument 0 doesn't match pg rank 3");
  handlers.init = [](const bp_init& init, const std::any&, bp_agent* agent) {
    return_agent(init, agent);
    agent->world_size = 9;
  };
  const BackendType type2 = register_backend("liar2", handlers);
  const auto init2 = [&type2] {
    init_backend(type2, Store::inproc(), "w", 0, 1, construct_rpc_backend_options(type2));
  };
  EXPECT_EQ(failure_of(init2, &text), Status::kInvalid);
  EXPECT_EQ(text, "world_size argument 1 doesn't match pg size 9");
}

TEST(BackendTypeTest, AFailingHandlersTextReachesTheCaller) {
  BackendHandlers handlers = idle_handlers();
  handlers.init = [](const bp_init&, const std::any&, bp_agent*) { throw std::runtime_error("no fabric today"); };
  const BackendType type = register_backend("failing", handlers);
  std::string text;
  const auto init = [&type] { init_backend(type, Store::inproc(), "w", 0, 1, construct_rpc_backend_options(type)); };
  EXPECT_EQ(failure_of(init, &text), Status::kInternal);
  EXPECT_NE(text.find("no fabric today"), std::string::npos) << text;
}

// Backends that the program registers follow the same rules as those of files.
TEST(BackendTypeTest, AnUnsoundDescriptorIsRefused) {
  static const bp_capability aimless = {sizeof aimless, BP_SEND, 0, 0, 0};
  static const bp_capability* const capabilities[] = {&aimless};
  const auto init = [](const bp_backend*, const bp_init*, bp_agent*, bp_error*) -> int32_t { return BP_INTERNAL; };
  const auto refusal = [&init](void (*spoil)(bp_backend&)) {
    bp_backend backend = {};
    backend.struct_size = sizeof backend;
    backend.kinds = BP_KIND_PROCESS_GROUP;
    backend.id = "unsound";
    backend.version = backend.summary = "";
    backend.init = init;
    spoil(backend);
    bp_error err;
    bp_error_init(&err);
    EXPECT_EQ(bp_register_backend(nullptr, &backend, nullptr, &err), BP_INVALID);
    return std::string(err.text);
  };
  EXPECT_EQ(refusal([](bp_backend& b) { b.id = "\xff"; }), "a backend's id is [a-z0-9_-]{1,32}, not '\\xff'");
  EXPECT_EQ(refusal([](bp_backend& b) { b.struct_size = 16; }),
            "backend 'unsound' has a struct_size of 16, too small for ABI 1.0");
  EXPECT_EQ(refusal([](bp_backend& b) { b.summary = nullptr; }),
            "the version or summary of backend 'unsound' is NULL or not printable UTF-8");
  EXPECT_EQ(refusal([](bp_backend& b) { b.version = "1.0-very-long-indeed-2026"; }),
            "the version of backend 'unsound' is longer than 23 bytes");
  EXPECT_EQ(refusal([](bp_backend& b) { b.kinds = 0; }), "backend 'unsound' has no kind");
  EXPECT_EQ(refusal([](bp_backend& b) { b.init = nullptr; }), "backend 'unsound' has no init function");
  EXPECT_EQ(refusal([](bp_backend& b) { b.destroy_options = [](const bp_backend*, bp_options*) {}; }),
            "backend 'unsound' has only one of construct_options and destroy_options");
  EXPECT_EQ(refusal([](bp_backend& b) { b.capability_count = 1; }),
            "the table of capabilities of backend 'unsound' is NULL");
  const std::string text = refusal([](bp_backend& b) {
    b.capabilities = capabilities;
    b.capability_count = 1;
  });
  EXPECT_EQ(text, "capability 0 of backend 'unsound' lists no dtypes, memory or reduce ops for operation 14");
}

}  // namespace
}  // namespace backplane::test
