// SPDX-License-Identifier: Apache-2.0
//
// A backend whose operations complete immediately, to measure the overhead of the core.
#pragma once

#include <array>
#include <cstdint>

#include "backplane/backplane.h"

namespace backplane::bench {

class NoopBackend {
 public:
  NoopBackend() {
    for (uint32_t op = 0; op < BP_OP_COUNT; ++op) {
      capabilities_[op] = {sizeof(bp_capability), op, ~UINT64_C(0), ~UINT64_C(0), BP_BIT(BP_HOST)};
      pointers_[op] = &capabilities_[op];
    }
    descriptor_.struct_size = sizeof(bp_backend);
    descriptor_.kinds = BP_KIND_PROCESS_GROUP;
    descriptor_.flags = BP_BACKEND_BOUNDED;
    descriptor_.id = "noop";
    descriptor_.version = "1.0";
    descriptor_.summary = "does nothing";
    descriptor_.capabilities = pointers_.data();
    descriptor_.capability_count = BP_OP_COUNT;
    descriptor_.init = init;
  }
  NoopBackend(const NoopBackend&) = delete;
  NoopBackend& operator=(const NoopBackend&) = delete;

  const bp_backend& descriptor() const { return descriptor_; }

  static const bp_process_group_api& table() {
    static const bp_process_group_api api = {
        .struct_size = sizeof(bp_process_group_api),
        .reserved = 0,
        .submit =
            [](void*, const bp_op*, bp_work**, bp_error*) {
              ++calls;
              return int32_t{BP_OK};
            },
        .work_test = [](void*, bp_work*, bp_error*) { return int32_t{BP_OK}; },
        .work_wait = [](void*, bp_work*, int64_t, bp_error*) { return int32_t{BP_OK}; },
        .work_cancel = [](void*, bp_work*) {},
        .work_release = [](void*, bp_work*) {},
        .abort = [](void*, const bp_error*) {},
        .destroy = [](void*) {},
        .extension = [](void*, const char*) -> const void* { return nullptr; }};
    return api;
  }

  inline static uint64_t calls = 0;  // of submit

 private:
  static int32_t init(const bp_backend*, const bp_init* request, bp_agent* agent, bp_error*) {
    agent->kind = BP_KIND_PROCESS_GROUP;
    agent->api = &table();
    agent->self = nullptr;
    agent->rank = request->rank;
    agent->world_size = request->world_size;
    return BP_OK;
  }

  std::array<bp_capability, BP_OP_COUNT> capabilities_ = {};
  std::array<const bp_capability*, BP_OP_COUNT> pointers_ = {};
  bp_backend descriptor_ = {};
};

}  // namespace backplane::bench
