// SPDX-License-Identifier: Apache-2.0
//
// Services of the core for plugins other than operations: the parent of a subgroup, failure reports, registered memory,
// native handles, one world per process, tags of few bits.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <set>

#include "backplane/abi/ext/memory.h"
#include "backplane/abi/ext/native.h"
#include "support/environment.hpp"
#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

// A backend that records its arguments. Its operations are done at once, and its messages reach no rank.
class RecordingBackend {
 public:
  struct Agent {
    const bp_host* host;
    int32_t rank;
    bool has_parent;
    void* parent;
    std::vector<int32_t> parent_ranks;
  };

  static int32_t init(const bp_backend*, const bp_init* request, bp_agent* agent, bp_error*) {
    auto* const self = new Agent{request->host, request->rank, request->parent != nullptr, nullptr, {}};
    if (request->parent != nullptr) {
      self->parent = request->parent->self;
      self->parent_ranks.assign(request->parent_ranks, request->parent_ranks + request->world_size);
    }
    {
      const std::lock_guard lock(mutex);
      agents.push_back(self);
    }
    static const bp_process_group_api api = {sizeof api,
                                             0,
                                             submit,
                                             [](void*, bp_work*, bp_error*) { return int32_t{BP_OK}; },
                                             [](void*, bp_work*, int64_t, bp_error*) { return int32_t{BP_OK}; },
                                             [](void*, bp_work*) {},
                                             [](void*, bp_work*) {},
                                             [](void*, const bp_error* why) { aborted = why->status; },
                                             destroy,
                                             extension};
    agent->kind = BP_KIND_PROCESS_GROUP;
    agent->api = &api;
    agent->self = self;
    agent->rank = request->rank;
    agent->world_size = request->world_size;
    return BP_OK;
  }
  static int32_t submit(void*, const bp_op* op, bp_work**, bp_error*) {
    last_tag = op->tag;
    if (op->result != nullptr) op->result->bytes = op->output.count * bp_dtype_size(op->dtype);
    return BP_OK;
  }
  static void destroy(void* self) {
    const std::lock_guard lock(mutex);
    std::erase(agents, self);
    delete static_cast<Agent*>(self);
  }
  static const void* extension(void*, const char* id) {
    static const bp_native_api native = {sizeof native, 0, "int", &registered};
    static const bp_memory_api memory = {
        sizeof memory,
        0,
        nullptr,
        [](void*, uint64_t, uint32_t, int32_t, bp_allocation**, void**, bp_error*) { return int32_t{BP_UNSUPPORTED}; },
        [](bp_allocation*) { --registered; },
        [](void*, void* data, uint64_t bytes, uint32_t, int32_t, bp_allocation** allocation, bp_error* err) {
          if (bytes > 100) return bp_error_set(err, BP_RESOURCE, 0, -1, "too much");
          ++registered;
          *allocation = static_cast<bp_allocation*>(data);
          return int32_t{BP_OK};
        }};
    if (std::strcmp(id, BP_EXT_NATIVE) == 0) return &native;
    return std::strcmp(id, BP_EXT_MEMORY) == 0 ? &memory : nullptr;
  }

  static Agent* agent_of(int32_t rank) {
    const std::lock_guard lock(mutex);
    for (void* each : agents) {
      if (static_cast<Agent*>(each)->rank == rank) return static_cast<Agent*>(each);
    }
    return nullptr;
  }

  static inline std::mutex mutex;
  static inline std::vector<void*> agents;  // not destroyed
  static inline std::atomic<int32_t> aborted = BP_OK;
  static inline std::atomic<uint64_t> last_tag = 0;
  static inline int registered = 0;
};

const bp_backend& descriptor(const char* id, uint32_t flags, uint32_t tag_bits) {
  static std::map<std::string, bp_backend> all;
  static const bp_capability barrier = {sizeof barrier, BP_BARRIER, 0, 0, 0};
  static const bp_capability send = {sizeof send, BP_SEND, BP_ALL_DTYPES, 0, BP_BIT(BP_HOST)};
  static const bp_capability recv = {sizeof recv, BP_RECV, BP_ALL_DTYPES, 0, BP_BIT(BP_HOST)};
  static const std::array<const bp_capability*, 3> capabilities = {&barrier, &send, &recv};
  bp_backend& backend = all[id];
  if (backend.struct_size != 0) return backend;
  backend = {};
  backend.struct_size = sizeof backend;
  backend.kinds = BP_KIND_PROCESS_GROUP;
  backend.flags = flags | BP_BACKEND_BOUNDED;
  backend.id = id;
  backend.version = "1.0";
  backend.summary = "records its arguments";
  backend.capabilities = capabilities.data();
  backend.capability_count = capabilities.size();
  backend.tag_bits = tag_bits;
  backend.finalize = [](const bp_backend* self) { std::cerr << self->id << " is finalized" << std::endl; };
  backend.init = RecordingBackend::init;
  detail::call(bp_register_backend, static_cast<bp_registry*>(nullptr), static_cast<const bp_backend*>(&backend),
               static_cast<const bp_backend_type**>(nullptr));
  return backend;
}

ProcessGroup start(const char* id, const Store& store, int rank, int world_size) {
  return ProcessGroup::create(group_options(id, store, rank, world_size));
}

TEST(PluginServices, ASubgroupsInitGetsItsParent) {
  const ScopedVariable direct("BACKPLANE_ISOLATE", "never");
  descriptor("recording", 0, 0);
  const Store store = Store::inproc();
  std::atomic<int> looked = 0;
  on_ranks(3, [&store, &looked](int rank) {
    ProcessGroup group = start("recording", store, rank, 3);
    RecordingBackend::Agent* const parent = RecordingBackend::agent_of(rank);
    ASSERT_NE(parent, nullptr);
    EXPECT_FALSE(parent->has_parent);
    ++looked;
    ASSERT_TRUE(eventually([&looked] { return looked == 3; }));  // before new agents with other ranks exist
    ProcessGroup child = group.new_group({2, 0});
    if (rank == 1) return;
    const std::lock_guard lock(RecordingBackend::mutex);
    size_t found = 0;
    for (void* each : RecordingBackend::agents) {
      const auto* agent = static_cast<RecordingBackend::Agent*>(each);
      if (agent->parent != parent) continue;
      ++found;
      EXPECT_EQ(agent->parent_ranks, (std::vector<int32_t>{2, 0}));
    }
    EXPECT_EQ(found, 1U);
  });
}

// An init that hangs may still use the parent's agent.
TEST(PluginServices, TheParentOfADetachedInitIsKept) {
  static std::atomic<bool> is_let_go = false;
  static std::atomic<void*> seen = nullptr;
  bp_backend& backend = const_cast<bp_backend&>(descriptor("lingering", BP_BACKEND_BLOCKING_INIT, 0));
  backend.init = [](const bp_backend* self, const bp_init* request, bp_agent* agent, bp_error* err) -> int32_t {
    if (request->parent == nullptr) return RecordingBackend::init(self, request, agent, err);
    while (!is_let_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    seen = static_cast<RecordingBackend::Agent*>(request->parent->self)->parent = request->parent->self;
    return bp_error_set(err, BP_RESOURCE, 0, -1, "too late");
  };
  ProcessGroup group = start("lingering", Store::inproc(), 0, 1);
  RecordingBackend::Agent* const parent = RecordingBackend::agent_of(0);
  EXPECT_EQ(failure_of([&] { group.new_group({0}, "", std::chrono::milliseconds(100)); }), Status::kTimeout);
  RecordingBackend::aborted = BP_OK;
  group.destroy();
  EXPECT_EQ(RecordingBackend::agent_of(0), parent) << "it was destroyed";
  EXPECT_EQ(RecordingBackend::aborted, BP_CANCELLED);
  is_let_go = true;
  EXPECT_TRUE(eventually([parent] { return seen == parent; }));
  const std::lock_guard lock(RecordingBackend::mutex);
  std::erase(RecordingBackend::agents, parent);  // it is never destroyed; other tests search for theirs
}

TEST(PluginServices, AReportedFailureBreaksTheGroup) {
  descriptor("recording", 0, 0);
  ProcessGroup group = start("recording", Store::inproc(), 0, 1);
  EXPECT_EQ(bp_group_status(group.get(), nullptr), BP_OK);
  const bp_host* const host = RecordingBackend::agent_of(0)->host;
  bp_error why;
  bp_error_init(&why);
  bp_error_set(&why, BP_RESOURCE, 5, -1, "the cable was cut");
  host->report_failure(host->ctx, &why);
  bp_error_set(&why, BP_INTERNAL, 6, -1, "a second report");
  host->report_failure(host->ctx, &why);
  bp_error err;
  bp_error_init(&err);
  ASSERT_TRUE(eventually([&] { return bp_group_status(group.get(), &err) != BP_OK; }));
  EXPECT_EQ(err.status, BP_RESOURCE);
  EXPECT_EQ(err.native_code, 5);
  EXPECT_NE(std::string(err.text).find("the cable was cut"), std::string::npos) << err.text;
  EXPECT_TRUE(eventually([] { return RecordingBackend::aborted == BP_RESOURCE; }));
  std::string text;
  EXPECT_EQ(failure_of([&group] { group.barrier(); }, &text), Status::kResource);
}

TEST(PluginServices, MemoryOfTheProgramIsRegistered) {
  descriptor("recording", 0, 0);
  ProcessGroup group = start("recording", Store::inproc(), 0, 1);
  std::array<char, 200> bytes = {};
  const auto add = [&](uint64_t size) {
    bp_memory* memory = nullptr;
    detail::call(bp_group_register, group.get(), static_cast<void*>(bytes.data()), size, uint32_t{BP_HOST}, 0, &memory);
    EXPECT_EQ(bp_memory_data(memory), bytes.data());
    return memory;
  };
  bp_memory* const taken = add(100);
  EXPECT_EQ(RecordingBackend::registered, 1);
  EXPECT_EQ(bp_memory_native(taken), 1);
  bp_memory* const refused = add(101);  // ordinary memory
  EXPECT_EQ(bp_memory_native(refused), 0);
  bp_memory_release(refused);
  EXPECT_EQ(RecordingBackend::registered, 1);
  bp_memory_release(taken);
  EXPECT_EQ(RecordingBackend::registered, 0);
  in_group("inproc", 1, [&bytes](ProcessGroup& plain) {
    bp_memory* memory = nullptr;
    detail::call(bp_group_register, plain.get(), static_cast<void*>(bytes.data()), uint64_t{100}, uint32_t{BP_HOST}, 0,
                 &memory);
    EXPECT_EQ(bp_memory_native(memory), 0);
    bp_memory_release(memory);
  });
}

TEST(PluginServices, ExtensionsOfTheBackendAreReturned) {
  descriptor("recording", 0, 0);
  ProcessGroup group = start("recording", Store::inproc(), 0, 1);
  const auto* native = static_cast<const bp_native_api*>(bp_group_extension(group.get(), BP_HOST, BP_EXT_NATIVE));
  ASSERT_NE(native, nullptr);
  EXPECT_STREQ(native->type, "int");
  EXPECT_EQ(native->handle, &RecordingBackend::registered);
  EXPECT_EQ(bp_group_extension(group.get(), BP_HOST, "acme.nothing/1"), nullptr);
  EXPECT_EQ(bp_group_extension(group.get(), 17, BP_EXT_NATIVE), nullptr);
  group.destroy();
  EXPECT_EQ(bp_group_extension(group.get(), BP_HOST, BP_EXT_NATIVE), nullptr);
}

TEST(PluginServices, OneWorldPerProcess) {
  descriptor("oneworld", BP_BACKEND_ONE_WORLD, 0);
  std::string text;
  {
    ProcessGroup group = start("oneworld", Store::inproc(), 0, 1);
    EXPECT_EQ(failure_of([] { start("oneworld", Store::inproc(), 0, 1); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("a group of it exists"), std::string::npos) << text;
    group.new_group({0}).barrier();
    group.abort("enough");
    group.shrink().barrier();  // made from an aborted group
  }
  start("oneworld", Store::inproc(), 0, 1).barrier();  // the same world
  const Store store = Store::inproc();
  std::thread other([&store] {  // would be rank 1 of 2
    GroupOptions options = group_options("oneworld", store, 1, 2, std::chrono::seconds(20));
    EXPECT_EQ(failure_of([&options] { ProcessGroup::create(options); }), Status::kInvalid);
  });
  EXPECT_NE(failure_of([&store] { start("oneworld", store, 0, 2); }, &text), Status::kTimeout) << text;
  other.join();
}

// In separate processes, which end.
TEST(PluginServicesDeathTest, TheLibraryIsFinalizedOnceWhenTheProcessEnds) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto ends = [](bool destroys, bool leaves_by_exit) {
    descriptor("ending", 0, 0);
    bp_group* const kept = bp_group_retain(start("ending", Store::inproc(), 0, 1).get());
    start("ending", Store::inproc(), 0, 1);
    if (destroys) bp_group_release(kept);
    leaves_by_exit ? std::exit(0) : std::_Exit(0);
  };
  EXPECT_EXIT(ends(true, true), testing::ExitedWithCode(0), "^ending is finalized\n$");
  EXPECT_EXIT(ends(false, true), testing::ExitedWithCode(0), "^ending is finalized\n$");
  EXPECT_EXIT(ends(true, false), testing::ExitedWithCode(0), "^$");
}

// All groups together delay the end by grace::kExit.
TEST(PluginServicesDeathTest, GroupsThatDoNotEndDoNotKeepTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto exit_with_stuck_groups = [] {
    descriptor("ending", 0, 0);
    static auto* const kept = new std::vector<bp_group*>;  // reachable for leak checkers
    for (int i = 0; i < 20; ++i) kept->push_back(bp_group_retain(start("ending", Store::inproc(), 0, 1).get()));
    RecordingBackend::mutex.lock();  // destroy waits for it
    std::exit(0);
  };
  EXPECT_EXIT(exit_with_stuck_groups(), testing::ExitedWithCode(0), "ending is not finalized: 20 of its groups");
}

TEST(PluginServices, TagsOfFewBits) {
  descriptor("fewbits", BP_BACKEND_TAGS, 20);
  ProcessGroup group = start("fewbits", Store::inproc(), 0, 1);
  const std::vector<uint8_t> byte(1);
  group.send(byte, 0, (1U << 19) - 1);
  EXPECT_EQ(RecordingBackend::last_tag, (1U << 19) - 1);
  std::string text;
  EXPECT_EQ(failure_of([&] { group.send(byte, 0, 1U << 19); }, &text), Status::kUnsupported);
  EXPECT_NE(text.find("2^19"), std::string::npos) << text;
  // Internal tags use the highest of those bits, and no higher bit.
  detail::call(bp_group_send_object, group.get(), static_cast<const void*>("x"), uint64_t{1}, 0, 7U,
               int64_t{BP_INHERIT_TIMEOUT});
  EXPECT_EQ(RecordingBackend::last_tag.load() >> 19, 1U);
}

// Ranks that differ in the reduction do not receive each other's data.
TEST(PluginServices, TagsOfFewBitsDistinguishCollectives) {
  const ScopedVariable fingerprint("BACKPLANE_FINGERPRINT", "off");
  descriptor("somebits", BP_BACKEND_TAGS, 20);
  std::set<uint64_t> tags;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
    const Store store = Store::inproc();
    on_ranks(2, [&store, op](int rank) {
      ProcessGroup group = start("somebits", store, rank, 2);
      std::vector<int> data(4);
      group.all_reduce(data, op);
    });
    EXPECT_EQ(RecordingBackend::last_tag.load() >> 19, 1U);
    tags.insert(RecordingBackend::last_tag);
  }
  EXPECT_EQ(tags.size(), 3U);
}

}  // namespace
}  // namespace backplane::test
