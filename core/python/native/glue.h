/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions between Python and the C API. They fill in a bp_op in C, because setting its fields one by one from Python
 * takes several times as long as a small operation. Included once, by the extension's generated source.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backplane/backplane.h"

/* "rc1", empty in a release. */
static const char* py_prerelease(void) { return BACKPLANE_PRERELEASE; }

/* The error of the last call of this thread. */
static bp_error* py_error(void) {
  static __thread bp_error error;
  if (error.struct_size == 0) bp_error_init(&error);
  return &error;
}

static bp_error* py_fresh_error(void) {
  bp_error* const error = py_error();
  error->peer_rank = -1;
  error->native_code = 0;
  error->group[0] = '\0';
  return error;
}

static int32_t py_group_join(const char* backend, int32_t device, bp_store* store, int64_t timeout_ns,
                             int64_t operation_timeout_ns, bp_group** group) {
  bp_group_config config;
  bp_group_config_init(&config);
  config.backend = backend;
  config.device = device;
  config.store = store;
  config.timeout_ns = operation_timeout_ns;
  return bp_group_join(&config, timeout_ns, group, py_fresh_error());
}

static int32_t py_group_make(int32_t is_default, const char* backend, const char* init_method, const char* name,
                             int32_t rank, int32_t world_size, int32_t device, bp_store* store, int64_t timeout_ns,
                             bp_group** group) {
  bp_group_config config;
  bp_group_config_init(&config);
  config.backend = backend;
  config.init_method = init_method;
  config.name = name;
  config.rank = rank;
  config.world_size = world_size;
  config.device = device;
  config.store = store;
  config.timeout_ns = timeout_ns;
  return (is_default ? bp_init_process_group : bp_group_create)(&config, group, py_fresh_error());
}

static bp_buffer py_buffer(const void* data, uint64_t count) {
  const bp_buffer buffer = {(void*)(uintptr_t)data, count, BP_HOST, 0};
  return buffer;
}

/* Performs the operation, or submits it if `request` is not NULL. */
static int32_t py_perform(bp_group* group, const bp_op* op, bp_request** request) {
  bp_error* const error = py_fresh_error();
  return request == NULL ? bp_group_run(group, op, error) : bp_group_submit(group, op, request, error);
}

static bp_op py_collective(uint32_t kind, uint32_t dtype, uint32_t reduce_op, int32_t root, const void* input,
                           uint64_t input_count, void* output, uint64_t output_count, int64_t timeout_ns) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = dtype;
  op.reduce_op = reduce_op;
  op.root = root;
  op.input = py_buffer(input, input_count);
  op.output = py_buffer(output, output_count);
  op.timeout_ns = timeout_ns;
  return op;
}

static int32_t py_run(bp_group* group, uint32_t kind, uint32_t dtype, uint32_t reduce_op, int32_t root,
                      const void* input, uint64_t input_count, void* output, uint64_t output_count, int64_t timeout_ns,
                      bp_request** request) {
  const bp_op op = py_collective(kind, dtype, reduce_op, root, input, input_count, output, output_count, timeout_ns);
  return py_perform(group, &op, request);
}

/* all_reduce in place, performed, with the group's timeout: fewer arguments, each of which takes time. */
static int32_t py_all_reduce(bp_group* group, uint32_t dtype, uint32_t reduce_op, void* data, uint64_t count) {
  return py_run(group, BP_ALL_REDUCE, dtype, reduce_op, 0, data, count, data, count, BP_INHERIT_TIMEOUT, NULL);
}

/* The same for a tensor of torch, which tells its address as an integer. */
static int32_t py_all_reduce_at(bp_group* group, uint32_t dtype, uint32_t reduce_op, uint64_t address, uint64_t count) {
  return py_all_reduce(group, dtype, reduce_op, (void*)(uintptr_t)address, count);
}

/* An operation whose blocks differ in size. NULL: the operation has no such counts, or adjacent blocks. */
static int32_t py_run_blocks(bp_group* group, uint32_t kind, uint32_t dtype, uint32_t reduce_op, int32_t root,
                             const void* input, uint64_t input_count, const uint64_t* in_counts,
                             const uint64_t* in_displs, void* output, uint64_t output_count, const uint64_t* out_counts,
                             const uint64_t* out_displs, int64_t timeout_ns, bp_request** request) {
  bp_op op = py_collective(kind, dtype, reduce_op, root, input, input_count, output, output_count, timeout_ns);
  op.in_counts = in_counts;
  op.in_displs = in_displs;
  op.out_counts = out_counts;
  op.out_displs = out_displs;
  return py_perform(group, &op, request);
}

/* all_to_allv with adjacent blocks. */
static int32_t py_run_v(bp_group* group, uint32_t dtype, const void* input, uint64_t input_count,
                        const uint64_t* in_counts, void* output, uint64_t output_count, const uint64_t* out_counts,
                        int64_t timeout_ns, bp_request** request) {
  return py_run_blocks(group, BP_ALL_TO_ALLV, dtype, 0, 0, input, input_count, in_counts, NULL, output, output_count,
                       out_counts, NULL, timeout_ns, request);
}

static int32_t py_run_list(bp_group* group, uint32_t kind, uint32_t dtype, uint32_t reduce_op, int32_t root,
                           const void* input, uint64_t input_count, void* output, uint64_t output_count,
                           const bp_buffer* inputs, const bp_buffer* outputs, int64_t timeout_ns,
                           bp_request** request) {
  const bp_op op = py_collective(kind, dtype, reduce_op, root, input, input_count, output, output_count, timeout_ns);
  return bp_group_run_list(group, &op, inputs, outputs, request, py_fresh_error());
}

static bp_op py_message(uint32_t kind, uint32_t dtype, const void* data, uint64_t count, int32_t peer, uint64_t tag,
                        int64_t timeout_ns) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = dtype;
  op.peer = peer;
  op.tag = tag;
  if (kind == BP_SEND) op.input = py_buffer(data, count);
  if (kind == BP_RECV) op.output = py_buffer(data, count);
  op.timeout_ns = timeout_ns;
  return op;
}

static int32_t py_send(bp_group* group, uint32_t dtype, const void* data, uint64_t count, int32_t peer, uint64_t tag,
                       int64_t timeout_ns, bp_request** request) {
  const bp_op op = py_message(BP_SEND, dtype, data, count, peer, tag, timeout_ns);
  return py_perform(group, &op, request);
}

/* *result is set by a recv that is performed; a request has its own result. */
static int32_t py_recv(bp_group* group, uint32_t dtype, void* data, uint64_t count, int32_t peer, uint64_t tag,
                       int64_t timeout_ns, bp_result* result, bp_request** request) {
  bp_op op = py_message(BP_RECV, dtype, data, count, peer, tag, timeout_ns);
  if (request == NULL) {
    result->struct_size = sizeof *result;
    op.result = result;
  }
  return py_perform(group, &op, request);
}

static int32_t py_sendrecv(bp_group* group, uint32_t send_dtype, const void* send, uint64_t send_count, int32_t dst,
                           uint64_t send_tag, uint32_t recv_dtype, void* recv, uint64_t recv_count, int32_t src,
                           uint64_t recv_tag, int64_t timeout_ns, bp_result* result) {
  const bp_op sending = py_message(BP_SEND, send_dtype, send, send_count, dst, send_tag, timeout_ns);
  bp_op receiving = py_message(BP_RECV, recv_dtype, recv, recv_count, src, recv_tag, timeout_ns);
  result->struct_size = sizeof *result;
  receiving.result = result;
  return bp_group_sendrecv(group, &sending, &receiving, py_fresh_error());
}

static int32_t py_probe(bp_group* group, int32_t peer, uint64_t tag, int64_t timeout_ns, bp_message** message,
                        bp_result* result) {
  result->struct_size = sizeof *result;
  return bp_group_probe(group, peer, tag, timeout_ns, message, result, py_fresh_error());
}

/* Releases the message, also if it fails. */
static int32_t py_recv_message(bp_group* group, uint32_t dtype, void* data, uint64_t count, bp_message* message,
                               int64_t timeout_ns, bp_result* result) {
  bp_op op = py_message(BP_RECV, dtype, data, count, BP_ANY_SOURCE, 0, timeout_ns);
  op.message = message;
  result->struct_size = sizeof *result;
  op.result = result;
  return py_perform(group, &op, NULL);
}

/* One wait of asyncio for a request. Two owners: the caller, and the callback of the request. */
typedef struct py_waiter {
  pthread_mutex_t mutex;
  int descriptor; /* -1: closed */
  int owners;
} py_waiter;

static void py_waiter_leave(py_waiter* waiter, int is_ended) {
  const uint64_t one = 1;
  pthread_mutex_lock(&waiter->mutex);
  if (is_ended && waiter->descriptor >= 0) {
    const ssize_t written = write(waiter->descriptor, &one, sizeof one);
    (void)written; /* an eventfd that was just made takes it */
  }
  if (!is_ended) {
    close(waiter->descriptor);
    waiter->descriptor = -1;
  }
  const int is_last = --waiter->owners == 0;
  pthread_mutex_unlock(&waiter->mutex);
  if (!is_last) return;
  pthread_mutex_destroy(&waiter->mutex);
  free(waiter);
}

/* The callback of a request: uses no Python, because it runs on threads of the core. */
static void py_request_ended(void* ctx, int32_t status, const bp_error* error) {
  (void)status;
  (void)error;
  py_waiter_leave((py_waiter*)ctx, 1);
}

/* Its descriptor becomes readable when the request has ended. NULL: see py_error(). */
static py_waiter* py_waiter_create(bp_request* request) {
  bp_error* const error = py_fresh_error();
  py_waiter* const waiter = (py_waiter*)malloc(sizeof *waiter);
  if (waiter == NULL) {
    bp_error_set(error, BP_RESOURCE, ENOMEM, -1, "there is no memory to await an operation");
    return NULL;
  }
  waiter->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (waiter->descriptor < 0) {
    bp_error_set(error, BP_RESOURCE, errno, -1, "cannot make a descriptor for an awaited operation; raise `ulimit -n`");
    free(waiter);
    return NULL;
  }
  pthread_mutex_init(&waiter->mutex, NULL);
  waiter->owners = 2;
  if (bp_request_on_done(request, py_request_ended, waiter, error) == BP_OK) return waiter;
  waiter->owners = 1; /* no callback was registered */
  py_waiter_leave(waiter, 0);
  return NULL;
}

static int32_t py_waiter_descriptor(const py_waiter* waiter) { return waiter->descriptor; }

/* Closes the descriptor, also of a request that is in flight. */
static void py_waiter_release(py_waiter* waiter) { py_waiter_leave(waiter, 0); }

/* Python handles signals on its main thread only; other threads have nothing to ask. */
static pthread_t py_main_thread;
static int32_t py_handle_signals(void);

/* Both are used on the main thread only. */
static int32_t py_has_interrupted;
static int32_t py_handling; /* calls that wait for signal handlers */

static int32_t py_is_main_thread(void) { return pthread_equal(pthread_self(), py_main_thread) != 0; }

static int32_t py_interrupted(void* ctx) {
  (void)ctx;
  if (!py_is_main_thread()) return 0;
  ++py_handling;
  const int32_t has_raised = py_handle_signals();
  --py_handling;
  if (has_raised) py_has_interrupted = 1;
  return has_raised;
}

/* Whether a signal handler runs in a blocked call of this thread. */
static int32_t py_is_in_handler(void) { return py_is_main_thread() && py_handling > 0; }

/* Whether a call of the main thread was interrupted since this was last asked. */
static int32_t py_take_interruption(void) {
  const int32_t has_interrupted = py_has_interrupted;
  py_has_interrupted = 0;
  return has_interrupted;
}

/* `main_thread`: the ident that Python's threading has for it, which is its pthread_t. 0: no hook. */
static void py_interrupt_hook(uint64_t main_thread) {
  py_main_thread = (pthread_t)main_thread;
  bp_set_interrupt_hook(main_thread != 0 ? py_interrupted : NULL, NULL);
}
