// SPDX-License-Identifier: Apache-2.0
//
// A layer: a process group that wraps another one, over any backend. It sees every operation that the core submits to
// the backend, and its result. Its description has kinds = BP_KIND_LAYER; users name it in BACKPLANE_LAYERS.
//
//     struct Counting final : sdk::Layer {
//       using Layer::Layer;
//       std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
//         ++started_;
//         return inner().submit(op);
//       }
//       std::atomic<uint64_t> started_ = 0;
//     };
//
// Layer::extension lists the extensions (abi/ext/) that pass through a layer: those without functions that take a work,
// and backplane.device/1 and backplane.notify/1. For the works of these two it calls Work::wait_on_stream and
// Work::on_end. A layer's own Work that holds the wrapped work forwards both as it forwards wait. If its operation ends
// later than the wrapped one, it delivers the notice itself or supports none. backplane.interrupt/1 does not pass: a
// layer may wait in submit without asking.
//
// A recv with bp_op.message consumes that message even if it fails. A layer that does not forward such a recv discards
// the message with inner().drop(op).
//
// The core implements missing collectives above the layers. A layer around a backend of sends and receives therefore
// sees sends and receives of bytes (BP_U8), with BP_TAG_INTERNAL in their tags and the collective's number in `seq`.
#pragma once

#include <memory>
#include <utility>

#include "backplane/abi/ext/calls.h"
#include "backplane/abi/ext/memory.h"
#include "backplane/abi/ext/native.h"
#include "backplane/abi/ext/probe.h"
#include "device.hpp"
#include "notify.hpp"
#include "process_group.hpp"

namespace backplane::sdk {

// Names for messages, as users write them; "?" for a value that these headers do not know.
constexpr const char* op_name(uint32_t kind) {
  constexpr const char* kNames[BP_OP_COUNT] = {
      "barrier",    "broadcast",   "reduce",     "all_reduce",  "gather",         "gatherv",
      "scatter",    "scatterv",    "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv",
      "all_to_all", "all_to_allv", "send",       "recv",        "scan",           "exscan"};
  return kind < BP_OP_COUNT ? kNames[kind] : "?";
}
constexpr const char* dtype_name(uint32_t dtype) {
  constexpr const char* kNames[BP_DTYPE_COUNT] = {"bool", "i8",   "u8",  "i16", "u16",    "i32",    "u32", "i64", "u64",
                                                  "f16",  "bf16", "f32", "f64", "f8e4m3", "f8e5m2", "c64", "c128"};
  return dtype < BP_DTYPE_COUNT ? kNames[dtype] : "?";
}
constexpr const char* status_name(int32_t status) {
  constexpr const char* kNames[] = {"ok",        "invalid",  "unsupported", "timeout", "cancelled",
                                    "peer_lost", "resource", "again",       "internal"};
  return status >= BP_OK && status <= BP_INTERNAL ? kNames[status] : "?";
}

// The group that a layer wraps (bp_init.inner) with C++ types. Copyable; valid until the layer is destroyed.
class Inner {
 public:
  // Throws BP_INVALID if there is none: the layer was started as if it were a backend.
  explicit Inner(const bp_agent* agent) : agent_(agent) {
    if (agent == nullptr || agent->api == nullptr) {
      throw Failure(BP_INVALID, "a layer needs a group to wrap; name it in BACKPLANE_LAYERS, not as the backend");
    }
    api_ = static_cast<const bp_process_group_api*>(agent->api);
    const auto* device = static_cast<const bp_device_api*>(extension(BP_EXT_DEVICE));
    if (device != nullptr && device->wait_on_stream != nullptr && device->copy != nullptr) device_ = device;
    const auto* notify = static_cast<const bp_notify_api*>(extension(BP_EXT_NOTIFY));
    if (notify != nullptr && notify->on_end != nullptr) notify_ = notify;
  }

  // The wrapped agent, with its native operations.
  const bp_agent& agent() const { return *agent_; }

  // As ProcessGroup::submit: returns nullptr if the operation is already done; throws Failure if it failed.
  std::unique_ptr<Work> submit(const bp_op& op) const {
    bp_error err;
    bp_error_init(&err);
    bp_work* work = nullptr;
    const int32_t status = api_->submit(agent_->self, &op, &work, &err);
    if (status != BP_OK) throw failure_of(status, err);
    if (work == nullptr) return nullptr;
    return std::make_unique<Forwarded>(*this, work);
  }
  void abort(const Failure& why) const noexcept {
    bp_error err;
    bp_error_init(&err);
    bp_error_set(&err, why.status(), why.native_code(), why.peer_rank(), why.what());
    api_->abort(agent_->self, &err);
  }
  const void* extension(std::string_view id) const { return api_->extension(agent_->self, std::string(id).c_str()); }
  // Its table of backplane.device/1, NULL if it has none.
  const bp_device_api* device() const { return device_; }
  // Its table of backplane.notify/1, NULL if it has none.
  const bp_notify_api* notify() const { return notify_; }
  // Discards the probed message, if any, of an operation that is not forwarded to the wrapped group.
  void drop(const bp_op& op) const noexcept {
    if (op.message == nullptr) return;
    const auto* probe = static_cast<const bp_probe_api*>(api_->extension(agent_->self, BP_EXT_PROBE));
    probe->drop(probe->ctx, op.message);
  }
  // Calls the function of the device's table.
  void copy(void* to, const void* from, uint64_t bytes) const {
    bp_error err;
    bp_error_init(&err);
    const int32_t status = device_->copy(device_->ctx, to, from, bytes, &err);
    if (status != BP_OK) throw failure_of(status, err);
  }

 private:
  // An operation of the wrapped group.
  class Forwarded final : public Work {
   public:
    Forwarded(const Inner& group, bp_work* work)
        : api_(*group.api_), self_(group.agent_->self), device_(group.device_), notify_(group.notify_), work_(work) {}
    ~Forwarded() override { api_.work_release(self_, work_); }
    Forwarded(const Forwarded&) = delete;
    Forwarded& operator=(const Forwarded&) = delete;

    bool wait(int64_t timeout_ns) override {
      bp_error err;
      bp_error_init(&err);
      const int32_t status =
          timeout_ns == 0 ? api_.work_test(self_, work_, &err) : api_.work_wait(self_, work_, timeout_ns, &err);
      if (status != BP_OK && status != BP_AGAIN) throw failure_of(status, err);
      return status == BP_OK;
    }
    void cancel() noexcept override { api_.work_cancel(self_, work_); }
    bool wait_on_stream(void* stream, int64_t timeout_ns) override {
      if (device_ == nullptr) return Work::wait_on_stream(stream, timeout_ns);
      bp_error err;
      bp_error_init(&err);
      const int32_t status = device_->wait_on_stream(device_->ctx, work_, stream, timeout_ns, &err);
      if (status != BP_OK && status != BP_AGAIN) throw failure_of(status, err);
      return status == BP_OK;
    }
    bool on_end(Notice notice) override {
      if (notify_ == nullptr) return false;
      bp_error err;
      bp_error_init(&err);
      const int32_t status = notify_->on_end(notify_->ctx, work_, notice.ended, notice.to, &err);
      if (status != BP_OK && status != BP_UNSUPPORTED) throw failure_of(status, err);
      return status == BP_OK;
    }

   private:
    const bp_process_group_api& api_;
    void* const self_;
    const bp_device_api* const device_;
    const bp_notify_api* const notify_;
    bp_work* const work_;
  };

  // The returned status takes precedence over the one in the report.
  static Failure failure_of(int32_t status, const bp_error& err) {
    return Failure(status, err.text, err.peer_rank, err.native_code);
  }

  const bp_agent* agent_;
  const bp_process_group_api* api_ = nullptr;
  const bp_device_api* device_ = nullptr;
  const bp_notify_api* notify_ = nullptr;
};

// Forwards everything; a layer overrides the functions that it changes. An override of abort must call inner()'s.
class Layer : public ProcessGroup {
 public:
  explicit Layer(const Context& context) : inner_(context.inner), device_(inner_) {}

  std::unique_ptr<Work> submit(const bp_op& op) override { return inner_.submit(op); }
  void abort(const Failure& why) noexcept override { inner_.abort(why); }
  const void* extension(std::string_view id) override {
    if (id == BP_EXT_DEVICE) return inner_.device() == nullptr ? nullptr : device_.table();
    if (id == BP_EXT_NOTIFY) return inner_.notify() == nullptr ? nullptr : notify_table();
    const bool takes_no_work = id == BP_EXT_MEMORY || id == BP_EXT_CALLS || id == BP_EXT_PROBE || id == BP_EXT_NATIVE;
    return takes_no_work ? inner_.extension(id) : nullptr;
  }

 protected:
  const Inner& inner() const { return inner_; }

 private:
  // The device table of this layer, for works of this layer.
  class Device final : public DeviceTable {
   public:
    explicit Device(const Inner& inner) : inner_(inner) {}
    void copy(void* to, const void* from, uint64_t bytes) override { inner_.copy(to, from, bytes); }

   private:
    const Inner& inner_;
  };

  const Inner inner_;
  const Device device_;
};

// The Work of a layer that observes how operations end: forwards to the wrapped work and calls ended(nullptr or the
// failure) once, in the thread that first sees the end. `ended` must not throw: a layer that turns a success into a
// failure stores the failure in its own Work, whose wait must return the same result each time.
template <typename Ended>
class ObservedWork final : public Work {
 public:
  ObservedWork(std::unique_ptr<Work> work, Ended ended) : work_(std::move(work)), ended_(std::move(ended)) {}

  bool wait(int64_t timeout_ns) override {
    try {
      if (!work_->wait(timeout_ns)) return false;
    } catch (const Failure& failure) {
      report(&failure);
      throw;
    }
    report(nullptr);
    return true;
  }
  void cancel() noexcept override { work_->cancel(); }
  bool wait_on_stream(void* stream, int64_t timeout_ns) override { return work_->wait_on_stream(stream, timeout_ns); }
  bool on_end(Notice notice) override { return work_->on_end(notice); }

 private:
  void report(const Failure* failure) {
    if (!std::exchange(reported_, true)) ended_(failure);
  }

  const std::unique_ptr<Work> work_;
  Ended ended_;
  bool reported_ = false;
};

}  // namespace backplane::sdk
