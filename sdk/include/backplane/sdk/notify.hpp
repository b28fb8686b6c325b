// SPDX-License-Identifier: Apache-2.0
//
// "backplane.notify/1" with C++ types, for groups whose works override Work::on_end, as those of Completion do.
//
//     const void* extension(std::string_view id) override { return id == BP_EXT_NOTIFY ? notify_table() : nullptr; }
#pragma once

#include "backplane/abi/ext/notify.h"
#include "process_group.hpp"

namespace backplane::sdk {

// The value for the group's extension(). Static.
inline const bp_notify_api* notify_table() {
  static constexpr bp_notify_api kTable = {
      sizeof(bp_notify_api), 0, nullptr,
      [](void*, bp_work* work, void (*ended)(void* to), void* to, bp_error* err) noexcept {
        return guarded(err, [work, ended, to, err]() -> int32_t {
          if (detail::work_of(work).on_end({ended, to})) return BP_OK;
          return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "this operation does not report its end");
        });
      }};
  return &kTable;
}

}  // namespace backplane::sdk
