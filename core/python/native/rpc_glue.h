/* SPDX-License-Identifier: Apache-2.0
 *
 * Remote procedure calls between Python and the C API. Included once, by the extension's generated source.
 *
 * Functions of Python run on threads of the worker, which take the GIL. No thread may ask for it once the interpreter
 * ends: all callbacks pass a gate, which is closed before.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backplane/rpc.h"

static int32_t py_rpc_run(uint64_t function, const bp_rpc_payload* arguments, uint64_t* value, bp_error* err);
static int32_t py_rpc_encode(uint64_t value, bp_rpc_content* content, bp_error* err);
static void py_rpc_destroy(uint64_t value);
static void py_rpc_notify(uint64_t future);

/* ---- The gate */

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t left;
  uint64_t inside; /* callbacks that run */
  int32_t is_closed;
} py_gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

static int32_t py_gate_enter(void) {
  pthread_mutex_lock(&py_gate.mutex);
  const int32_t is_open = !py_gate.is_closed;
  if (is_open) ++py_gate.inside;
  pthread_mutex_unlock(&py_gate.mutex);
  return is_open;
}

static void py_gate_leave(void) {
  pthread_mutex_lock(&py_gate.mutex);
  if (--py_gate.inside == 0) pthread_cond_broadcast(&py_gate.left);
  pthread_mutex_unlock(&py_gate.mutex);
}

/* For the child of a fork, in which no callback runs. */
static void py_gate_open(void) {
  pthread_mutex_init(&py_gate.mutex, NULL);
  pthread_cond_init(&py_gate.left, NULL);
  py_gate.inside = 0;
  py_gate.is_closed = 0;
}

/* Lets no further callback run, and waits for those that do. */
static void py_gate_close(void) {
  pthread_mutex_lock(&py_gate.mutex);
  py_gate.is_closed = 1;
  while (py_gate.inside != 0) pthread_cond_wait(&py_gate.left, &py_gate.mutex);
  pthread_mutex_unlock(&py_gate.mutex);
}

static int32_t py_refuse_at_end(bp_error* err) {
  return bp_error_set(err, BP_CANCELLED, 0, -1, "the Python interpreter of the worker is ending");
}

/* ---- Contents */

static bp_rpc_content py_content(const void* payload, uint64_t size, const bp_buffer* buffers, uint32_t buffer_count,
                                 bp_rref* const* refs, uint64_t ref_count) {
  bp_rpc_content content;
  memset(&content, 0, sizeof content);
  content.struct_size = sizeof content;
  content.payload = payload;
  content.payload_size = size;
  content.buffers = buffers;
  content.buffer_count = buffer_count;
  content.refs = refs;
  content.ref_count = ref_count;
  return content;
}

static uint64_t py_aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Copies payload, buffers and the list of references into one block, which the content owns. */
static int32_t py_content_fill(bp_rpc_content* content, const void* payload, uint64_t size, const bp_buffer* buffers,
                               uint32_t buffer_count, bp_rref* const* refs, uint64_t ref_count, bp_error* err) {
  const uint64_t list_bytes = py_aligned(buffer_count * sizeof *buffers);
  const uint64_t ref_bytes = py_aligned(ref_count * sizeof *refs);
  uint64_t bytes = list_bytes + ref_bytes + py_aligned(size);
  for (uint32_t i = 0; i < buffer_count; ++i) bytes += py_aligned(buffers[i].count);
  char* const block = aligned_alloc(64, bytes == 0 ? 64 : bytes);
  if (block == NULL) return bp_error_set(err, BP_RESOURCE, ENOMEM, -1, "there is no memory for the values to be sent");
  bp_buffer* const list = (bp_buffer*)(void*)block;
  char* place = block + list_bytes;
  if (ref_count > 0) memcpy(place, refs, ref_count * sizeof *refs);
  content->refs = (bp_rref* const*)(void*)place;
  content->ref_count = ref_count;
  place += ref_bytes;
  if (size > 0) memcpy(place, payload, size);
  content->payload = place;
  content->payload_size = size;
  place += py_aligned(size);
  for (uint32_t i = 0; i < buffer_count; ++i) {
    if (buffers[i].count > 0) memcpy(place, buffers[i].data, buffers[i].count);
    list[i] = py_buffer(place, buffers[i].count);
    place += py_aligned(buffers[i].count);
  }
  content->buffers = list;
  content->buffer_count = buffer_count;
  content->release = free;
  content->owner = block;
  return BP_OK;
}

/* The content of a call. The C API copies the rest; arrays are copied here, so that the program may change them. */
static int32_t py_call_content(bp_rpc_content* content, const void* payload, uint64_t size, const bp_buffer* buffers,
                               uint32_t buffer_count, bp_rref* const* refs, uint64_t ref_count, bp_error* err) {
  *content = py_content(payload, size, buffers, buffer_count, refs, ref_count);
  if (buffer_count == 0) return BP_OK;
  return py_content_fill(content, payload, size, buffers, buffer_count, refs, ref_count, err);
}

/* NULL: there is no such buffer, or it is in the memory of a device. */
static const void* py_payload_host_buffer(const bp_rpc_payload* payload, uint32_t index, uint64_t* size) {
  bp_buffer buffer = {0};
  *size = 0;
  if (index >= bp_rpc_payload_buffers(payload)) return NULL;
  bp_rpc_payload_buffer(payload, index, &buffer);
  if (buffer.memory != BP_HOST) return NULL;
  *size = buffer.count;
  return buffer.count > 0 ? buffer.data : "";
}

/* ---- Functions and values. A value is a number, under which Python keeps the object. */

static void py_value_destroy(void* object) {
  if (!py_gate_enter()) return;
  py_rpc_destroy((uintptr_t)object);
  py_gate_leave();
}

static int32_t py_value_encode(void* object, bp_rpc_content* content, bp_error* err) {
  if (!py_gate_enter()) return py_refuse_at_end(err);
  const int32_t status = py_rpc_encode((uintptr_t)object, content, err);
  py_gate_leave();
  return status;
}

static bp_rpc_value py_value(uint64_t value) {
  const bp_rpc_value made = {sizeof made, 0, (void*)(uintptr_t)value, py_value_destroy, py_value_encode};
  return made;
}

static int32_t py_function(void* ctx, const bp_rpc_payload* arguments, bp_rpc_value* result, bp_error* err) {
  if (!py_gate_enter()) return py_refuse_at_end(err);
  uint64_t value = 0;
  const int32_t status = py_rpc_run((uintptr_t)ctx, arguments, &value, err);
  py_gate_leave();
  if (status == BP_OK) *result = py_value(value);
  return status;
}

static int32_t py_rpc_register(const char* name, uint64_t function) {
  return bp_rpc_register(name, py_function, (void*)(uintptr_t)function, py_fresh_error());
}

static int32_t py_rpc_init(const char* name, const char* backend, const char* init_method, const char* group,
                           int32_t rank, int32_t world_size, bp_store* store, const bp_backend_options* options,
                           int64_t timeout_ns, int64_t rpc_timeout_ns, bp_rpc** rpc) {
  bp_rpc_config config;
  bp_rpc_config_init(&config);
  config.is_default = 1;
  config.name = name;
  config.backend = backend;
  config.init_method = init_method;
  config.group = group;
  config.rank = rank;
  config.world_size = world_size;
  config.store = store;
  config.options = options;
  config.timeout_ns = timeout_ns;
  config.rpc_timeout_ns = rpc_timeout_ns;
  return bp_rpc_init(&config, rpc, py_fresh_error());
}

/* ---- Calls */

/* A call and its end. Python's future has one reference, the call in flight another. */
typedef struct py_call {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int32_t references;
  int32_t has_ended;
  uint64_t id;
  bp_rpc_payload* result;
  bp_rpc* rpc;     /* of Python's future, which lives until it is notified */
  uint64_t future; /* to notify; 0: none */
  bp_error error;
} py_call;

static py_call* py_call_create(void) {
  py_call* const call = calloc(1, sizeof *call);
  if (call == NULL) {
    bp_error_set(py_error(), BP_RESOURCE, ENOMEM, -1, "there is no memory for a call");
    return NULL;
  }
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&call->changed, &clock);
  pthread_condattr_destroy(&clock);
  pthread_mutex_init(&call->mutex, NULL);
  bp_error_init(&call->error);
  call->references = 2;
  return call;
}

static void py_call_release(py_call* call) {
  pthread_mutex_lock(&call->mutex);
  const int32_t left = --call->references;
  pthread_mutex_unlock(&call->mutex);
  if (left > 0) return;
  if (call->result != NULL) bp_rpc_payload_release(call->result);
  pthread_cond_destroy(&call->changed);
  pthread_mutex_destroy(&call->mutex);
  free(call);
}

static void py_notify(void* ctx) {
  if (!py_gate_enter()) return;
  py_rpc_notify((uintptr_t)ctx);
  py_gate_leave();
}

static void py_call_ended(void* ctx, bp_rpc_payload* result, const bp_error* err) {
  py_call* const call = ctx;
  pthread_mutex_lock(&call->mutex);
  call->result = result;
  if (err != NULL) call->error = *err;
  call->has_ended = 1;
  bp_rpc* const rpc = call->rpc;
  const uint64_t future = call->future;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->mutex);
  py_call_release(call);
  if (future != 0) bp_rpc_run(rpc, py_notify, (void*)(uintptr_t)future);
}

/* The call that `status` says has begun. */
static int32_t py_call_begun(int32_t status, py_call* made, py_call** call) {
  if (status == BP_OK) {
    *call = made;
    return BP_OK;
  }
  py_call_release(made);
  py_call_release(made);
  return status;
}

static int32_t py_rpc_call(bp_rpc* rpc, int32_t to, const char* function, const void* payload, uint64_t size,
                           const bp_buffer* buffers, uint32_t buffer_count, bp_rref* const* refs, uint64_t ref_count,
                           int64_t timeout_ns, py_call** call) {
  bp_error* const error = py_fresh_error();
  bp_rpc_content content;
  py_call* const made = py_call_create();
  if (made == NULL) return BP_RESOURCE;
  int32_t status = py_call_content(&content, payload, size, buffers, buffer_count, refs, ref_count, error);
  if (status == BP_OK) {
    status = bp_rpc_call(rpc, to, function, &content, timeout_ns, py_call_ended, made, &made->id, error);
  }
  return py_call_begun(status, made, call);
}

static int32_t py_rpc_remote(bp_rpc* rpc, int32_t to, const char* function, const void* payload, uint64_t size,
                             const bp_buffer* buffers, uint32_t buffer_count, bp_rref* const* refs, uint64_t ref_count,
                             int64_t timeout_ns, bp_rref** ref) {
  bp_error* const error = py_fresh_error();
  bp_rpc_content content;
  const int32_t status = py_call_content(&content, payload, size, buffers, buffer_count, refs, ref_count, error);
  return status != BP_OK ? status : bp_rpc_remote(rpc, to, function, &content, timeout_ns, ref, error);
}

static int32_t py_rref_create(bp_rpc* rpc, uint64_t value, bp_rref** ref) {
  const bp_rpc_value made = py_value(value);
  return bp_rref_create(rpc, &made, ref, py_fresh_error());
}

static int32_t py_rref_fetch(bp_rref* ref, int64_t timeout_ns, py_call** call) {
  py_call* const made = py_call_create();
  if (made == NULL) return BP_RESOURCE;
  const int32_t status = bp_rref_fetch(ref, timeout_ns, py_call_ended, made, &made->id, py_fresh_error());
  return py_call_begun(status, made, call);
}

static int32_t py_rref_local(bp_rref* ref, int64_t timeout_ns, uint64_t* value) {
  void* object = NULL;
  bp_rpc_wait_begin();
  const int32_t status = bp_rref_local(ref, timeout_ns, &object, py_fresh_error());
  bp_rpc_wait_end();
  *value = (uintptr_t)object;
  return status;
}

static int32_t py_call_has_ended(void* ctx) {
  py_call* const call = ctx;
  pthread_mutex_lock(&call->mutex);
  const int32_t has_ended = call->has_ended;
  pthread_mutex_unlock(&call->mutex);
  return has_ended;
}

static int64_t py_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Waits for the end. timeout_ns: BP_NO_TIMEOUT: until the call's own deadline. BP_AGAIN: it is still in flight.
 * BP_CANCELLED: a signal handler interrupted the wait, see py_error(). */
static int32_t py_call_wait(py_call* call, int64_t timeout_ns) {
  const int64_t kLook = 50000000; /* ns between looks for signals */
  const int64_t begin = py_now();
  const int64_t end = timeout_ns < 0 || timeout_ns > INT64_MAX - begin ? INT64_MAX : begin + timeout_ns;
  int32_t status = BP_OK;
  bp_rpc_wait_begin();
  if (timeout_ns == 0 || !bp_rpc_wait_briefly(py_call_has_ended, call)) {
    pthread_mutex_lock(&call->mutex);
    while (!call->has_ended) {
      const int64_t now = py_now();
      if (now >= end) {
        status = BP_AGAIN;
        break;
      }
      const int64_t look = end - now < kLook ? end : now + kLook;
      const struct timespec at = {(time_t)(look / 1000000000), (long)(look % 1000000000)};
      if (pthread_cond_timedwait(&call->changed, &call->mutex, &at) == 0) continue;
      pthread_mutex_unlock(&call->mutex);
      const int32_t is_interrupted = bp_interrupted();
      pthread_mutex_lock(&call->mutex);
      if (is_interrupted && !call->has_ended) {
        status = bp_error_set(py_fresh_error(), BP_CANCELLED, 0, -1, "interrupted by the program");
        break;
      }
    }
    pthread_mutex_unlock(&call->mutex);
  }
  bp_rpc_wait_end();
  return status;
}

/* The status of a call that has ended, whose error it copies to py_error(); BP_AGAIN: it is in flight. */
static int32_t py_call_status(py_call* call) {
  if (!py_call_has_ended(call)) return BP_AGAIN;
  if (call->error.status != BP_OK) *py_error() = call->error;
  return call->error.status;
}

/* The result of a call that has succeeded. Once. */
static bp_rpc_payload* py_call_take(py_call* call) {
  bp_rpc_payload* const result = call->result;
  call->result = NULL;
  return result;
}

/* Has `future` notified of the end, unless the call has ended: 0 then. */
static int32_t py_call_notify(py_call* call, bp_rpc* rpc, uint64_t future) {
  pthread_mutex_lock(&call->mutex);
  const int32_t is_in_flight = !call->has_ended;
  if (is_in_flight) {
    call->rpc = rpc;
    call->future = future;
  }
  pthread_mutex_unlock(&call->mutex);
  return is_in_flight;
}

static void py_call_cancel(py_call* call, bp_rpc* rpc) { bp_rpc_cancel(rpc, call->id); }
