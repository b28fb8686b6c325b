// SPDX-License-Identifier: Apache-2.0
//
// The function table of an isolated backend, and which backends are isolated.
#include <cstdlib>
#include <exception>

#include "error.hpp"
#include "group/isolation.hpp"

namespace backplane::core {

struct Isolation::Table {
  static Isolation& of(void* self) { return *static_cast<Isolation*>(self); }
  static Work& of(bp_work* work) { return *reinterpret_cast<Work*>(work); }

  // An exception (out of threads or memory) means that the operation has not begun.
  static int32_t submit(void* self, const bp_op* op, bp_work** work, bp_error* err) {
    try {
      return of(self).submit(*op, work, err);
    } catch (const std::exception& e) {
      return bp_error_set(err, BP_RESOURCE, 0, -1, e.what());
    }
  }
  static int32_t work_test(void* self, bp_work* work, bp_error* err) { return of(self).wait(of(work), 0, err); }
  static int32_t work_wait(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
    return of(self).wait(of(work), timeout_ns, err);
  }
  static void work_cancel(void* self, bp_work* work) { of(self).cancel(of(work)); }
  static void work_release(void* self, bp_work* work) { of(self).release(of(work)); }
  static void abort(void* self, const bp_error* why) { of(self).abort(*why); }
  static void destroy(void* self) { of(self).destroy(); }
  static const void* extension(void*, const char*) { return nullptr; }
};

const bp_process_group_api& Isolation::api() const {
  static constexpr bp_process_group_api kApi = {sizeof(bp_process_group_api),
                                                0,
                                                Table::submit,
                                                Table::work_test,
                                                Table::work_wait,
                                                Table::work_cancel,
                                                Table::work_release,
                                                Table::abort,
                                                Table::destroy,
                                                Table::extension};
  return kApi;
}

IsolatedCalls isolated_calls(const bp_backend& backend) {
  const char* given = std::getenv("BACKPLANE_ISOLATE");
  const std::string text = given == nullptr || *given == '\0' ? "auto" : given;
  if (text == "always") return IsolatedCalls::kAll;
  if (text == "never") return IsolatedCalls::kNone;
  if (text != "auto") fail(BP_INVALID, "BACKPLANE_ISOLATE is '{}'; it must be auto, always or never", text);
  if ((backend.flags & BP_BACKEND_BOUNDED) == 0) return IsolatedCalls::kAll;
  return (backend.flags & BP_BACKEND_BLOCKING_INIT) != 0 ? IsolatedCalls::kInit : IsolatedCalls::kNone;
}

}  // namespace backplane::core
