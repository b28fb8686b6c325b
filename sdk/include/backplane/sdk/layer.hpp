// SPDX-License-Identifier: Apache-2.0
//
// A layer: a process group that wraps another one. It sees every operation that the core hands to a backend, and how it
// ends, over every backend alike. Its description has kinds = BP_KIND_LAYER; users name it in BACKPLANE_LAYERS.
//
//     struct Counting final : sdk::Layer {
//       using Layer::Layer;
//       std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
//         ++started_;
//         return inner().submit(op);
//       }
//       std::atomic<uint64_t> started_ = 0;
//     };
#pragma once

#include <memory>
#include <utility>

#include "process_group.hpp"

namespace backplane::sdk {

// The group that a layer wraps (bp_init.inner) with C++ types. Copyable; valid until the layer is destroyed.
class Inner {
 public:
  explicit Inner(const bp_agent* agent) : agent_(agent), api_(static_cast<const bp_process_group_api*>(agent->api)) {}

  // What it does natively.
  const bp_agent& agent() const { return *agent_; }

  // As ProcessGroup::submit: nullptr says that the operation is done already; a Failure that it failed.
  std::unique_ptr<Work> submit(const bp_op& op) const {
    bp_error err;
    bp_error_init(&err);
    bp_work* work = nullptr;
    if (api_->submit(agent_->self, &op, &work, &err) != BP_OK) throw Failure(err);
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

 private:
  // An operation of the wrapped group.
  class Forwarded final : public Work {
   public:
    Forwarded(const Inner& inner, bp_work* work) : inner_(inner), work_(work) {}
    ~Forwarded() override { inner_.api_->work_release(inner_.agent_->self, work_); }
    Forwarded(const Forwarded&) = delete;
    Forwarded& operator=(const Forwarded&) = delete;

    bool wait(int64_t timeout_ns) override {
      bp_error err;
      bp_error_init(&err);
      const bp_process_group_api& api = *inner_.api_;
      const int32_t status = timeout_ns == 0 ? api.work_test(inner_.agent_->self, work_, &err)
                                             : api.work_wait(inner_.agent_->self, work_, timeout_ns, &err);
      if (status != BP_OK && status != BP_AGAIN) throw Failure(err);
      return status == BP_OK;
    }
    void cancel() noexcept override { inner_.api_->work_cancel(inner_.agent_->self, work_); }

   private:
    const Inner inner_;
    bp_work* const work_;
  };

  const bp_agent* agent_;
  const bp_process_group_api* api_;
};

// Forwards everything; a layer overrides what it is about. abort must reach inner(), whatever else it does.
class Layer : public ProcessGroup {
 public:
  explicit Layer(const Context& context) : inner_(context.inner) {}

  std::unique_ptr<Work> submit(const bp_op& op) override { return inner_.submit(op); }
  void abort(const Failure& why) noexcept override { inner_.abort(why); }
  const void* extension(std::string_view id) override { return inner_.extension(id); }

 protected:
  const Inner& inner() const { return inner_; }

 private:
  const Inner inner_;
};

// The Work of a layer that wants to know how operations end: forwards to the wrapped work and calls
// ended(nullptr or the failure) once, in the thread that first sees the end.
template <typename Ended>
class ObservedWork final : public Work {
 public:
  ObservedWork(std::unique_ptr<Work> work, Ended ended) : work_(std::move(work)), ended_(std::move(ended)) {}

  bool wait(int64_t timeout_ns) override {
    try {
      if (!work_->wait(timeout_ns)) return false;
    } catch (const Failure& failure) {
      tell(&failure);
      throw;
    }
    tell(nullptr);
    return true;
  }
  void cancel() noexcept override { work_->cancel(); }

 private:
  void tell(const Failure* failure) {
    if (!std::exchange(told_, true)) ended_(failure);
  }

  const std::unique_ptr<Work> work_;
  Ended ended_;
  bool told_ = false;
};

}  // namespace backplane::sdk
