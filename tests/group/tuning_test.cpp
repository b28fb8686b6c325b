// SPDX-License-Identifier: Apache-2.0
//
// A group of `auto` whose backends serve the sizes at which they were measured to be fastest.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"
#include "programs/noop_backend.hpp"
#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

// A backend that only counts its operations by kind.
class Counting : private bp_backend {
 public:
  explicit Counting(const char* name) : bp_backend(noop_.descriptor()), api_(bench::NoopBackend::table()) {
    bp_backend::id = name;
    bp_backend::flags |= BP_BACKEND_AUTONOMOUS;
    bp_backend::init = [](const bp_backend* backend, const bp_init* request, bp_agent* agent, bp_error*) {
      auto* const self = const_cast<Counting*>(static_cast<const Counting*>(backend));
      agent->kind = BP_KIND_PROCESS_GROUP;
      agent->api = &self->api_;
      agent->self = self;
      agent->rank = request->rank;
      agent->world_size = request->world_size;
      return int32_t{BP_OK};
    };
    api_.submit = [](void* self, const bp_op* op, bp_work**, bp_error*) {
      static_cast<Counting*>(self)->calls_[op->kind].fetch_add(1);
      return int32_t{BP_OK};
    };
  }
  const bp_backend& descriptor() const { return *this; }
  int count(uint32_t kind) const { return calls_[kind].load(); }

 private:
  inline static const bench::NoopBackend noop_;
  bp_process_group_api api_;
  std::array<std::atomic<int>, BP_OP_COUNT> calls_ = {};
};

struct ReleaseRegistry {
  void operator()(bp_registry* registry) const { bp_registry_release(registry); }
};

class TuningTest : public testing::Test {
 protected:
  TuningTest() {
    bp_registry* made = nullptr;
    if (bp_registry_create(&made, nullptr) != BP_OK) throw std::runtime_error("bp_registry_create failed");
    registry_.reset(made);
    for (const Counting* each : {&quick_, &broad_}) {
      bp_register_backend(made, &each->descriptor(), nullptr, nullptr);
    }
    std::ofstream(directory_.path() / "tuning") << R"({"format": "backplane-tuning/1", "measured": [
      {"ranks": 2, "operation": "all_reduce", "bytes": 4, "us": {"shm": 900, "gloo": 900, "zmq": 900, "quick": 1, "broad": 9}},
      {"ranks": 2, "operation": "all_reduce", "bytes": 65536, "us": {"quick": 90, "broad": 9}},
      {"ranks": 2, "operation": "all_reduce", "bytes": 1048576, "us": {"quick": 90, "broad": 90}},
      {"ranks": 2, "operation": "gather", "bytes": 4, "us": {"quick": 90, "broad": 9}},
      {"ranks": 2, "operation": "broadcast", "bytes": 4, "us": {"quick": 1, "broad": 9}},
      {"ranks": 2, "operation": "scatter", "bytes": 4, "us": {"shm": 900, "gloo": 900, "zmq": 900, "quick": 1, "broad": 9}}]})";
  }

  ProcessGroup join(int rank, const std::string& backend) {
    bp_group_config config;
    bp_group_config_init(&config);
    config.rank = rank;
    config.world_size = 2;
    config.device = -1;
    config.backend = backend.c_str();
    config.store = store_.get();
    config.registry = registry_.get();
    config.timeout_ns = INT64_C(60'000'000'000);
    bp_group* group = nullptr;
    detail::call(bp_group_create, &config, &group);
    return ProcessGroup(group);
  }

  const Counting quick_{"quick"};
  const Counting broad_{"broad"};
  std::unique_ptr<bp_registry, ReleaseRegistry> registry_;
  const Store store_ = Store::inproc();
  const ScopedDirectory directory_;
  const ScopedVariable table_{"BACKPLANE_TUNING_FILE", (directory_.path() / "tuning").string()};
};

void reduce_and_gather(ProcessGroup& group) {
  for (const size_t count : {1, 16'383, 16'384, 262'143, 262'144}) {
    std::vector<float> data(count);
    group.all_reduce(data);
  }
  std::vector<float> gathered(2);
  group.gather(as_buffer(gathered[0]), gathered, 0);
  group.barrier();
}

TEST_F(TuningTest, EachBackendServesItsFastestSizes) {
  on_ranks(2, [this](int rank) {
    ProcessGroup group = join(rank, "auto");
    EXPECT_EQ(group.backend(), "quick");
    reduce_and_gather(group);
  });
  EXPECT_EQ(quick_.count(BP_ALL_REDUCE), 2 * 3);
  EXPECT_EQ(broad_.count(BP_ALL_REDUCE), 2 * 2);
  EXPECT_EQ(quick_.count(BP_GATHER), 0);
  EXPECT_EQ(broad_.count(BP_GATHER), 2);
  EXPECT_EQ(quick_.count(BP_BARRIER), 2);
  EXPECT_EQ(broad_.count(BP_BARRIER), 0);
}

TEST_F(TuningTest, SubgroupsDoTheSame) {
  on_ranks(2, [this](int rank) {
    ProcessGroup group = join(rank, "auto");
    ProcessGroup child = group.new_group({1, 0});
    reduce_and_gather(child);
  });
  EXPECT_EQ(quick_.count(BP_ALL_REDUCE), 2 * 3);
  EXPECT_EQ(broad_.count(BP_ALL_REDUCE), 2 * 2);
}

TEST_F(TuningTest, ANamedBackendServesEverything) {
  on_ranks(2, [this](int rank) {
    ProcessGroup group = join(rank, "quick");
    reduce_and_gather(group);
  });
  EXPECT_EQ(quick_.count(BP_ALL_REDUCE), 2 * 5);
  EXPECT_EQ(broad_.count(BP_ALL_REDUCE), 0);
}

}  // namespace
}  // namespace backplane::test
