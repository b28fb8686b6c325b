// SPDX-License-Identifier: Apache-2.0
//
// Work, and the other types that operations of ProcessGroup take and return.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backplane/detail/memory.hpp"
#include "backplane/error.hpp"
#include "backplane/types.hpp"

namespace backplane {

// Options of one operation. All fields may be left out.
struct CallOptions {
  bool async_op = false;              // true: return at once; the caller must wait for the Work
  Timeout timeout = kDefaultTimeout;  // of this operation
  void* stream = nullptr;             // cudaStream_t that orders the operation on device buffers; nullptr: the device's
                                      // default stream
};

// As CallOptions::stream: no ordering. The buffers are ready, and the program waits for the Work.
inline void* const kNoStream = BP_NO_STREAM;  // NOLINT(performance-no-int-to-ptr): no pointer has it

// A received message: the sender's rank in the group, the size in bytes, and the tag.
struct Received {
  int source = -1;
  uint64_t bytes = 0;
  uint64_t tag = 0;
};

// An operation. A synchronous call returns one that is done. Copies share it. Destroying all copies leaves the
// operation running: its buffers stay busy until it is done or the group is destroyed.
class Work {
 public:
  Work() = default;

  // Does not block. Throws the operation's failure, the same each time.
  bool is_completed() { return !request_ || detail::call(bp_request_test, request_.get()) == BP_OK; }
  // Blocks until the operation is done, at most until its own timeout. Throws the operation's failure.
  void wait() { wait_for(kNoTimeout); }
  // Blocks for at most `timeout`. Returns false if the operation is not done by then; it continues. Throws the
  // operation's failure.
  bool wait_for(Timeout timeout) {
    return !request_ || detail::call(bp_request_wait, request_.get(), timeout.count()) == BP_OK;
  }
  // Makes `stream` (cudaStream_t, of the buffers' device) wait for the operation: work that is enqueued to it later
  // runs after the operation. Blocks until the operation is enqueued; a message, until its peer has the other end
  // ready; with a backend without streams, until the operation is done. wait reports later failures. Call wait before
  // the buffers are freed.
  void wait_on_stream(void* stream) {
    if (request_) detail::call(bp_request_wait_on_stream, request_.get(), stream);
  }
  // Requests that the operation end with Status::kCancelled. Does not block. Cancelling a collective breaks the group.
  void cancel() {
    if (request_) bp_request_cancel(request_.get());
  }
  // Calls `ended` once when the operation has ended, with its failure or nullptr: at once if it has, otherwise on any
  // thread, also after all copies of this are destroyed, and before the end of the group returns at the latest. `ended`
  // must neither throw, nor wait for operations, nor end a group (Status::kInvalid).
  void on_done(std::function<void(const Error* failure)> ended) {
    if (!request_) return ended(nullptr);
    auto own = std::make_unique<std::function<void(const Error*)>>(std::move(ended));
    detail::call(bp_request_on_done, request_.get(), &Work::tell, static_cast<void*>(own.get()));
    static_cast<void>(own.release());
  }
  // The message of a recv that is done.
  Received received() const {
    bp_result result = inline_result_;
    if (request_) bp_request_result(request_.get(), &result);
    return {result.source, result.bytes, result.tag};
  }

 private:
  friend class ProcessGroup;
  friend std::optional<size_t> wait_any(const std::vector<Work>& works, Timeout timeout);
  static void tell(void* ctx, int32_t status, const bp_error* error) {
    const std::unique_ptr<std::function<void(const Error*)>> ended(
        static_cast<std::function<void(const Error*)>*>(ctx));
    if (status == BP_OK) return (*ended)(nullptr);
    const Error failure(*error);
    (*ended)(&failure);
  }
  std::shared_ptr<bp_request> request_;  // empty: done
  bp_result inline_result_ = {sizeof(bp_result), -1, 0, 0};
};

// The lowest index of an operation that has ended. Blocks until there is one, for at most `timeout`; nullopt: there is
// none. Does not throw the operation's failure; its wait does.
inline std::optional<size_t> wait_any(const std::vector<Work>& works, Timeout timeout = kNoTimeout) {
  std::vector<bp_request*> requests;
  for (size_t i = 0; i < works.size(); ++i) {
    if (!works[i].request_) return i;  // done
    requests.push_back(works[i].request_.get());
  }
  uint64_t index = requests.size();
  bp_error err;
  bp_error_init(&err);
  const int32_t status = bp_request_wait_any(requests.data(), requests.size(), timeout.count(), &index, &err);
  if (index < requests.size()) return index;
  if (status != BP_AGAIN) throw Error(err);
  return std::nullopt;
}

// A message that ProcessGroup::probe took. Destroying it drops the message.
class Message {
 public:
  Received info() const { return info_; }

 private:
  friend class ProcessGroup;
  Message(bp_message* message, Received info) : message_(message, bp_message_release), info_(info) {}
  bp_message* take() { return message_.release(); }

  std::unique_ptr<bp_message, decltype(&bp_message_release)> message_;
  Received info_;
};

// Memory of the program that ProcessGroup::register_memory prepared, until destroyed.
class Registration {
 public:
  // True if the backend registered it.
  bool native() const { return bp_memory_native(handle_.get()) != 0; }

 private:
  friend class ProcessGroup;
  explicit Registration(detail::MemoryHandle handle) : handle_(std::move(handle)) {}
  detail::MemoryHandle handle_;
};

}  // namespace backplane
