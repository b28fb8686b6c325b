// SPDX-License-Identifier: Apache-2.0
//
// The C API of operations: synchronous ones, requests, objects.
#include <algorithm>
#include <cstring>

#include "capi/handles.hpp"
#include "group/buffer_list.hpp"
#include "group/objects.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {
namespace {

// The operation to perform: the program's, with the backend's message instead of its handle, which is released.
class UnwrappedOp {
 public:
  UnwrappedOp(const Group& group, const bp_op* op) : op_(op) {
    if (!BP_HAS(op, message) || op->message == nullptr) return;
    if (op->kind != BP_RECV) fail(BP_INVALID, "`message` is for a recv, not for {}", op_name(op->kind));
    const std::unique_ptr<bp_message> handle(&live(op->message, "message"));
    taken_ = std::make_unique<bp_op>();
    std::memcpy(taken_.get(), op, std::min<size_t>(op->struct_size, sizeof *taken_));
    taken_->struct_size = sizeof *taken_;
    taken_->message = handle->message;
    taken_->peer = handle->found.source;
    taken_->tag = handle->found.tag;
    op_ = taken_.get();
    if (handle->group.get() == &group) return;
    drop(*handle->group, taken_->message);
    fail(BP_INVALID, "`message` belongs to another group");
  }
  const bp_op* op() const { return op_; }

 private:
  const bp_op* op_;
  std::unique_ptr<bp_op> taken_;
};

// Only run and submit accept a probed message.
void refuse_message(const bp_op& op) {
  if (BP_HAS(&op, message) && op.message != nullptr)
    fail(BP_INVALID, "`message` is for bp_group_run and bp_group_submit");
}

void copy_result(const bp_result& from, bp_result* to) {
  to->source = from.source;
  to->bytes = from.bytes;
  if (BP_HAS(to, tag)) to->tag = from.tag;
}

int32_t status_of(const Error* error, bp_error* report) {
  bp_error_init(report);
  if (error == nullptr) return BP_OK;
  return bp_error_set(report, error->status(), error->native_code(), error->peer_rank(), error->what());
}

// For functions that return BP_AGAIN for false.
template <typename Body>
int32_t request_call(const bp_request* request, bp_error* err, Body&& body) {
  bool is_done = false;
  const int32_t status = api_call(err, [&] { is_done = body(); });
  if (status != BP_OK && err != nullptr && is_live(request)) name_group(err, request->request->group_name());
  return status == BP_OK && !is_done ? BP_AGAIN : status;
}

}  // namespace

}  // namespace backplane::core

using namespace backplane::core;  // NOLINT: the C API is outside the namespace

extern "C" {

int32_t bp_group_run(bp_group* group, const bp_op* op, bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    target.operations().run(*UnwrappedOp(target, &required(op, "op")).op());
  });
}
int32_t bp_group_submit(bp_group* group, const bp_op* op, bp_request** request, bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    required(request, "request");
    const UnwrappedOp unwrapped(target, &required(op, "op"));
    const bp_op* const only = unwrapped.op();
    *request = new_handle<bp_request>(target.operations().submit(&only, 1).front());
  });
}
int32_t bp_group_submit_batch(bp_group* group, const bp_op* const* ops, uint64_t count, bp_request** requests,
                              bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    const auto [begin, end] = list_of(ops, count, "ops");
    std::for_each(begin, end, [](const bp_op* op) { refuse_message(required(op, "op")); });
    if (count > 0) required(requests, "requests");
    const auto started = target.operations().submit(ops, count);
    for (uint64_t i = 0; i < count; ++i) requests[i] = new_handle<bp_request>(started[i]);
  });
}
int32_t bp_group_sendrecv(bp_group* group, const bp_op* send, const bp_op* recv, bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    const bp_op* const both[] = {&required(recv, "recv"), &required(send, "send")};
    if (recv->kind != BP_RECV || send->kind != BP_SEND) fail(BP_INVALID, "sendrecv takes a send and a recv");
    refuse_message(*recv);
    refuse_message(*send);
    const auto started = target.operations().submit(both, 2);
    const std::shared_ptr<Request>& received = started[0];
    const std::shared_ptr<Request>& sent = started[1];
    try {
      received->wait(Deadline::never());
    } catch (const Error&) {
      sent->cancel();  // the buffers are free when this returns
      guarded(nullptr, [&sent] { sent->wait(Deadline::never()); });
      throw;
    }
    sent->wait(Deadline::never());
  });
}
int32_t bp_group_run_list(bp_group* group, const bp_op* op, const bp_buffer* inputs, const bp_buffer* outputs,
                          bp_request** request, bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    if (request == nullptr) CallbackScope::refuse("wait for an operation");
    target.state().check_active();
    bp_op whole = {};
    take_known(required(op, "op"), sizeof whole, "bp_op", &whole);
    refuse_message(whole);
    const PackedOp packed = pack_lists(whole, target.config().rank, target.config().world_size, inputs, outputs);
    const bp_op* const only = &packed.op;
    const std::shared_ptr<Request> started = target.operations().submit(&only, 1, packed.unpack).front();
    if (request == nullptr) {
      started->wait(Deadline::never());
    } else {
      *request = new_handle<bp_request>(started);
    }
  });
}
int32_t bp_group_probe(bp_group* group, int32_t peer, uint64_t tag, int64_t timeout_ns, bp_message** message,
                       bp_result* result, bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    required(result, "result");
    bp_result found = {sizeof(bp_result), -1, 0, 0};
    store_result(message, "message", [&] {
      const Deadline deadline = Deadline::after(timeout_or(timeout_ns, target.config().timeout_ns));
      bp_message* const taken = probe(target, peer, tag, deadline, &found);
      return new_handle<bp_message>(group->group, taken, found);
    });
    copy_result(found, result);
  });
}
void bp_message_release(bp_message* message) {
  if (!is_live(message)) return;
  const std::unique_ptr<bp_message> handle(message);
  guarded(nullptr, [&handle] { drop(*handle->group, handle->message); });
}

int32_t bp_request_test(bp_request* request, bp_error* err) {
  return request_call(request, err, [=] { return live(request, "request").request->test(); });
}
int32_t bp_request_wait(bp_request* request, int64_t timeout_ns, bp_error* err) {
  return request_call(request, err, [=] {
    Request& target = *live(request, "request").request;
    const bool is_done = target.wait(Deadline::after(CallbackScope::active() ? 0 : timeout_ns));
    if (!is_done && timeout_ns != 0) CallbackScope::refuse("wait for an operation that is in flight");
    return is_done;
  });
}
int32_t bp_request_wait_any(bp_request* const* requests, uint64_t count, int64_t timeout_ns, uint64_t* index,
                            bp_error* err) {
  std::shared_ptr<Request> ended;
  bool is_over = false;
  const int32_t status = api_call(err, [&] {
    required(index, "index");
    *index = count;
    const auto [begin, end] = list_of(requests, count, "requests");
    if (count == 0) fail(BP_INVALID, "wait_any needs at least one request");
    std::vector<std::shared_ptr<Request>> all;
    std::for_each(begin, end, [&all](bp_request* each) { all.push_back(live(each, "request").request); });
    *index = wait_any(all, Deadline::after(CallbackScope::active() ? 0 : timeout_ns));
    if (*index == count && timeout_ns != 0) CallbackScope::refuse("wait for operations that are in flight");
    if (*index == count) return;
    ended = all[*index];
    is_over = ended->test();
  });
  if (status != BP_OK && ended) name_group(err, ended->group_name());
  return status == BP_OK && !is_over ? BP_AGAIN : status;
}
int32_t bp_request_on_done(bp_request* request, void (*ended)(void* ctx, int32_t status, const bp_error* error),
                           void* ctx, bp_error* err) {
  return api_call(err, [=] {
    if (ended == nullptr) fail(BP_INVALID, "`ended` must not be NULL");
    const std::shared_ptr<Request> target = live(request, "request").request;
    target->on_end([ended, ctx, group = target->group_name()](const Error* error) {
      bp_error report;
      const int32_t status = status_of(error, &report);
      if (status != BP_OK) name_group(&report, group);
      const CallbackScope scope;
      ended(ctx, status, &report);
    });
  });
}
int32_t bp_request_wait_on_stream(bp_request* request, void* stream, bp_error* err) {
  return api_call(err, [=] {
    Request& target = *live(request, "request").request;
    if (CallbackScope::active() && !target.test()) CallbackScope::refuse("wait for an operation that is in flight");
    target.wait_on_stream(stream);
  });
}
void bp_request_result(bp_request* request, bp_result* result) {
  if (result == nullptr) return;
  const bp_result received = is_live(request) ? request->request->result() : bp_result{sizeof(bp_result), -1, 0, 0};
  copy_result(received, result);
}
void bp_request_cancel(bp_request* request) {
  guarded(nullptr, [request] { live(request, "request").request->cancel(); });
}
void bp_request_release(bp_request* request) { release(request); }

int32_t bp_group_exchange_objects(bp_group* group, uint32_t kind, int32_t root, const void* const* in,
                                  const uint64_t* in_sizes, uint64_t in_count, int64_t timeout_ns, bp_objects** out,
                                  bp_error* err) {
  return group_call(group, err, [=] {
    required(out, "out");
    Group& target = group_of(group);
    list_of(in, in_count, "in");
    list_of(in_sizes, in_count, "in_sizes");
    std::vector<std::string_view> objects;
    for (uint64_t i = 0; i < in_count; ++i) {
      if (in_sizes[i] > 0) required(static_cast<const char*>(in[i]), "in[i]");
      objects.push_back(in_sizes[i] == 0 ? std::string_view()
                                         : std::string_view(static_cast<const char*>(in[i]), in_sizes[i]));
    }
    *out = new_handle<bp_objects>(exchange_objects(target, kind, root, objects, timeout_ns));
  });
}
int32_t bp_group_send_object(bp_group* group, const void* object, uint64_t size, int32_t peer, uint32_t tag,
                             int64_t timeout_ns, bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    if (size > 0) required(static_cast<const char*>(object), "object");
    const auto* bytes = static_cast<const char*>(object);
    send_object(target, size == 0 ? std::string_view() : std::string_view(bytes, size), peer, tag, timeout_ns);
  });
}
int32_t bp_group_recv_object(bp_group* group, int32_t peer, uint32_t tag, int64_t timeout_ns, bp_objects** out,
                             int32_t* source, bp_error* err) {
  return group_call(group, err, [=] {
    Group& target = group_of(group);
    required(out, "out");
    ReceivedObject object = receive_object(target, peer, tag, timeout_ns);
    if (source != nullptr) *source = object.source;
    std::vector<std::string> only;
    only.push_back(std::move(object.bytes));
    *out = new_handle<bp_objects>(std::move(only));
  });
}
uint64_t bp_objects_count(const bp_objects* objects) { return is_live(objects) ? objects->objects.size() : 0; }
const void* bp_objects_get(const bp_objects* objects, uint64_t i, uint64_t* size) {
  const bool is_there = i < bp_objects_count(objects);
  if (size != nullptr) *size = is_there ? objects->objects[i].size() : 0;
  return is_there ? objects->objects[i].data() : nullptr;
}
void bp_objects_release(bp_objects* objects) { release(objects); }

}  // extern "C"
