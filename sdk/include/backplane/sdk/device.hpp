// SPDX-License-Identifier: Apache-2.0
//
// "backplane.device/1" with C++ types, for groups whose operations run in streams of a device.
//
//     const void* extension(std::string_view id) override { return id == BP_EXT_DEVICE ? device_.table() : nullptr; }
//
// where device_ is a DeviceTable that the group owns, and the works that submit returns override wait_on_stream.
#pragma once

#include "backplane/abi/ext/device.h"
#include "process_group.hpp"

namespace backplane::sdk {

class DeviceTable {
 public:
  DeviceTable() : table_{sizeof(bp_device_api), 0, this, wait_on_stream, copy_any} {}
  virtual ~DeviceTable() = default;
  DeviceTable(const DeviceTable&) = delete;
  DeviceTable& operator=(const DeviceTable&) = delete;

  // Copies between device and host memory, or within either. Blocks until the copy is done. Throws. Any thread.
  virtual void copy(void* to, const void* from, uint64_t bytes) = 0;

  // The value for the group's extension(). Valid as long as this object.
  const bp_device_api* table() const { return &table_; }

 private:
  static int32_t wait_on_stream(void*, bp_work* work, void* stream, int64_t timeout_ns, bp_error* err) noexcept {
    return guarded(err, [work, stream, timeout_ns] {
      return detail::work_of(work).wait_on_stream(stream, timeout_ns) ? BP_OK : BP_AGAIN;
    });
  }
  static int32_t copy_any(void* ctx, void* to, const void* from, uint64_t bytes, bp_error* err) noexcept {
    return guarded(err, [ctx, to, from, bytes] {
      static_cast<DeviceTable*>(ctx)->copy(to, from, bytes);
      return BP_OK;
    });
  }

  const bp_device_api table_;
};

}  // namespace backplane::sdk
