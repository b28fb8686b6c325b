/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank of toy_driver.c, and its operations.
 */
#ifndef TOY_RANK_H
#define TOY_RANK_H

#include "toy_host.h"

#define WORLD 3
#define LONG_WAIT (20000 * MS)

typedef struct rank_ctx {
  const bp_backend* backend;
  const bp_key_value* values;
  store* at;
  pthread_barrier_t* all;
  int32_t rank;
  host_ctx host;
  bp_agent agent;
  const bp_process_group_api* api;
} rank_ctx;

static void meet(rank_ctx* r) { (void)pthread_barrier_wait(r->all); }

static bp_op make(uint32_t kind, int32_t peer, uint64_t tag, void* data, uint64_t count) {
  bp_op op;
  memset(&op, 0, sizeof op);
  op.struct_size = sizeof op;
  op.kind = kind;
  op.dtype = BP_U8;
  op.peer = peer;
  op.tag = tag;
  op.timeout_ns = LONG_WAIT;
  bp_buffer* buffer = kind == BP_SEND ? &op.input : &op.output;
  buffer->data = data;
  buffer->count = count;
  return op;
}

static bp_work* submit(rank_ctx* r, const bp_op* op) {
  bp_work* work = NULL;
  OK(r->api->submit(r->agent.self, op, &work, ERR));
  return work;
}

static void complete(rank_ctx* r, bp_work* work) {
  if (work == NULL) return;
  OK(r->api->work_wait(r->agent.self, work, LONG_WAIT, ERR));
  OK(r->api->work_test(r->agent.self, work, ERR));
  r->api->work_release(r->agent.self, work);
}

/* The status an operation ends with, wherever it says so; `err` is initialised. */
static int32_t outcome(rank_ctx* r, const bp_op* op, bp_error* err) {
  bp_work* work = NULL;
  bp_error_init(err);
  int32_t status = r->api->submit(r->agent.self, op, &work, err);
  if (status != BP_OK) CHECK(work == NULL);
  if (work == NULL) return status;
  const int keeps_time = (op->flags & BP_OP_SYNC) != 0; /* ignored by this backend: then that is the caller's part */
  status = r->api->work_wait(r->agent.self, work, keeps_time ? op->timeout_ns : LONG_WAIT, err);
  if (status == BP_AGAIN && keeps_time) {
    r->api->work_cancel(r->agent.self, work);
    CHECK(r->api->work_wait(r->agent.self, work, LONG_WAIT, err) == BP_CANCELLED);
    r->api->work_release(r->agent.self, work);
    return bp_error_set(err, BP_TIMEOUT, 0, -1, "timed out");
  }
  CHECK(status == r->api->work_test(r->agent.self, work, NULL));
  r->api->work_release(r->agent.self, work);
  return status;
}

static void put_it(rank_ctx* r, int32_t peer, uint64_t tag, void* data, uint64_t count, uint64_t flags) {
  bp_op op = make(BP_SEND, peer, tag, data, count);
  op.flags = flags;
  complete(r, submit(r, &op));
}

static bp_result get_it(rank_ctx* r, int32_t peer, uint64_t tag, void* data, uint64_t count, uint64_t flags) {
  bp_result result = {sizeof result, -7, 77, 0};
  bp_op op = make(BP_RECV, peer, tag, data, count);
  op.flags = flags;
  op.result = &result;
  complete(r, submit(r, &op));
  return result;
}

static int64_t now_ns(void) {
  struct timespec now;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void nap(int64_t ns) {
  const struct timespec time = {0, ns};
  (void)nanosleep(&time, NULL);
}

#endif
