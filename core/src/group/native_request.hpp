// SPDX-License-Identifier: Apache-2.0
//
// A request for an operation that the backend performs natively.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "group/request.hpp"

namespace backplane::core {

class NativeRequest final : public Request {
 public:
  NativeRequest(std::shared_ptr<Group> group, Operation operation, std::function<void()> unpack);
  // Submits the operation to its agent. True: done. False: in flight. Throws core::Error. Call once, before other
  // threads have the request.
  bool start();

  void wait_on_stream(void* stream) override;
  void cancel() override;
  bp_result result() override;
  Deadline watchdog_deadline() const override { return deadline_; }

 private:
  void advance(Deadline deadline) override;
  void request_notice() override;
  bool backend_notifies();
  // True: this thread alone drives the backend until stop_driving. False: another thread still drives it at the
  // deadline.
  bool start_driving(Deadline deadline);
  void stop_driving();
  void drive(Deadline deadline);
  // True: the work is not released before end_stream_wait. False: the operation has ended, or the backend has no
  // streams.
  bool begin_stream_wait();
  void end_stream_wait();
  void await_stream_waits();
  bool wait_on_stream_natively(void* stream);
  void end(int32_t status, const bp_error& err);
  void copy_result() const;

  bp_result received_ = {sizeof(bp_result), -1, 0, 0};  // recv: written by the backend
  bp_result* callers_result_ = nullptr;                 // recv: written when the request is settled, unless NULL
  std::mutex driver_mutex_;
  std::condition_variable driver_left_;
  bool driven_ = false;     // a thread is in the backend's work_wait; guarded by driver_mutex_, like the next two
  int stream_waits_ = 0;    // threads in the backend's wait_on_stream
  bool has_ended_ = false;  // no thread may enter wait_on_stream
  std::mutex work_mutex_;   // separates cancel from the release of the work; held briefly
  bp_work* work_ = nullptr;
};

}  // namespace backplane::core
