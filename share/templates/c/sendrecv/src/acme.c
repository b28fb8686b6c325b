/* acme-id, a backend for Backplane in C: send and recv between the ranks of one host over AF_UNIX stream sockets.
 *
 * Each rank listens on an abstract address, which it publishes in the store with a nonce. A connection carries messages
 * in one direction, from the rank that opened it. It is opened as soon as the other rank listens, so each rank notices
 * when another one ends. One thread per agent performs all input and output; a message that arrives before its recv is
 * kept in memory. A send is done once the kernel has all of it, so nothing is left to flush on destroy.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"

#define ACME_VERSION "1.0"
/* BOUNDED: no call blocks beyond its deadline. */
#define ACME_FLAGS \
  (BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED)

/* --------------------------------------------------- The table -----------------------------------------------------
 */

static int32_t acme_submit(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  acme_group* t = self;
  const int sends = op->kind == BP_SEND;
  if (!sends && op->kind != BP_RECV)
    return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "acme-id: only send and recv are native");
  const bp_buffer* buffer = sends ? &op->input : &op->output;
  const uint64_t bytes = buffer->count * bp_dtype_size(op->dtype);
  bp_work* w = calloc(1, sizeof *w);
  acme_message* m = sends ? new_message(bytes) : NULL;
  if (w == NULL || (sends && m == NULL)) {
    free(w), free(m);
    return bp_error_set(err, BP_RESOURCE, ENOMEM, -1, "acme-id: no memory for the operation");
  }
  bp_error_init(&w->error);
  w->message = m;
  w->peer = op->peer;
  w->tag = op->tag;
  w->data = buffer->data;
  w->capacity = bytes;
  w->result = op->result;
  if (sends) {
    m->work = w;
    m->source = t->rank;
    m->frame.tag = op->tag;
    if (bytes > 0) memcpy(m->data, buffer->data, bytes);
  }
  (void)pthread_mutex_lock(&t->lock);
  const bp_error* refused = t->aborted.status != BP_OK ? &t->aborted : sends ? &t->peer[op->peer].out : NULL;
  if (refused != NULL && refused->status != BP_OK) {
    free(m);
    finish(t, w, refused);
  } else if (!sends) {
    post(t, w);
  } else if (op->peer == t->rank) {
    deliver(t, m);
    finish(t, w, NULL);
  } else {
    TAILQ_INSERT_TAIL(&t->peer[op->peer].queue, m, link);
    wake(t);
  }
  if ((op->flags & BP_OP_SYNC) != 0 && !w->done) {
    wait_for(t, w, op->timeout_ns);
    if (!w->done) withdraw(t, w, BP_TIMEOUT, sends ? "acme-id: send timed out" : "acme-id: recv timed out");
  }
  const int done = w->done;
  if (!done) *work = w;
  (void)pthread_mutex_unlock(&t->lock);
  if (!done) return BP_OK;
  const int32_t status = copy_error(err, &w->error);
  free(w);
  return status;
}

static int32_t acme_work_wait(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  acme_group* t = self;
  (void)pthread_mutex_lock(&t->lock);
  if (!work->done && timeout_ns != 0) wait_for(t, work, timeout_ns);
  const int done = work->done;
  (void)pthread_mutex_unlock(&t->lock);
  return done ? copy_error(err, &work->error) : BP_AGAIN;
}

static int32_t acme_work_test(void* self, bp_work* work, bp_error* err) { return acme_work_wait(self, work, 0, err); }

static void acme_work_cancel(void* self, bp_work* work) {
  acme_group* t = self;
  (void)pthread_mutex_lock(&t->lock);
  if (!work->done) withdraw(t, work, BP_CANCELLED, "acme-id: cancelled");
  (void)pthread_mutex_unlock(&t->lock);
}

static void acme_work_release(void* self, bp_work* work) {
  (void)self;
  free(work);
}

static void acme_abort(void* self, const bp_error* why) {
  acme_group* t = self;
  (void)pthread_mutex_lock(&t->lock);
  if (t->aborted.status == BP_OK) {
    if (why == NULL || copy_error(&t->aborted, why) == BP_OK) {
      (void)bp_error_set(&t->aborted, BP_CANCELLED, 0, -1, "acme-id: aborted");
    }
    fail_recvs(t, BP_ANY_SOURCE, 1, &t->aborted);
    for (int32_t i = 0; i < t->world; ++i) fail_sends(t, &t->peer[i], &t->aborted);
    wake(t);
  }
  (void)pthread_mutex_unlock(&t->lock);
}

static void acme_destroy(void* self) {
  acme_group* t = self;
  (void)pthread_mutex_lock(&t->lock);
  t->stop = 1;
  (void)pthread_mutex_unlock(&t->lock);
  wake(t);
  if (t->running) (void)pthread_join(t->thread, NULL);
  close_all(t);
  if (t->wake >= 0) (void)close(t->wake);
  free_all(&t->inbox);
  for (int32_t i = 0; i < t->world; ++i) free_all(&t->peer[i].queue), free(t->peer[i].writing);
  (void)pthread_cond_destroy(&t->changed);
  (void)pthread_mutex_destroy(&t->lock);
  free(t->fds), free(t->conn), free(t->peer), free(t);
}

static const void* acme_extension(void* self, const char* id) {
  (void)self, (void)id;
  return NULL;
}

static const bp_process_group_api api = {
    sizeof api,        0,          acme_submit,  acme_work_test, acme_work_wait, acme_work_cancel,
    acme_work_release, acme_abort, acme_destroy, acme_extension};

/* ------------------------------------------------- The descriptor --------------------------------------------------
 */

static int32_t start(acme_group* t, bp_error* err) {
  acme_address mine;
  socklen_t size = sizeof mine.name;
  sigset_t all, before;
  char key[32];
  memset(&mine, 0, sizeof mine);
  mine.name.sun_family = AF_UNIX;
  t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  t->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (t->wake < 0 || t->listener < 0 || getrandom(&t->nonce, sizeof t->nonce, 0) != (ssize_t)sizeof t->nonce ||
      bind(t->listener, (const struct sockaddr*)&mine.name, sizeof(sa_family_t)) != 0 || /* the kernel chooses a name */
      getsockname(t->listener, (struct sockaddr*)&mine.name, &size) != 0 || listen(t->listener, t->world) != 0) {
    return bp_error_set(err, BP_RESOURCE, errno, -1, "acme-id: cannot listen on an AF_UNIX socket");
  }
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* threads of a plugin block all signals */
  const int code = pthread_create(&t->thread, NULL, progress, t);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code != 0) return bp_error_set(err, BP_RESOURCE, code, -1, "acme-id: cannot start a thread");
  t->running = 1;
  mine.nonce = t->nonce;
  mine.size = size;
  (void)snprintf(key, sizeof key, "acme.%d", (int)t->rank);
  return t->host->store_set(t->host->ctx, key, &mine, sizeof mine, err);
}

static int32_t acme_init(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  (void)self;
  if (init->world_size < 1 || init->rank < 0 || init->rank >= init->world_size) {
    return bp_error_set(err, BP_INVALID, 0, -1, "acme-id: the rank must be at least 0 and below the world size");
  }
  const size_t world = (size_t)init->world_size;
  acme_group* t = calloc(1, sizeof *t);
  acme_peer* peer = calloc(world, sizeof *peer);
  acme_conn* conn = calloc(2 * world, sizeof *conn);
  struct pollfd* fds = calloc(2 + 3 * world, sizeof *fds);
  if (t == NULL || peer == NULL || conn == NULL || fds == NULL) {
    free(t), free(peer), free(conn), free(fds);
    return bp_error_set(err, BP_RESOURCE, ENOMEM, -1, "acme-id: no memory for the group");
  }
  pthread_condattr_t clock;
  (void)pthread_condattr_init(&clock);
  (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  (void)pthread_mutex_init(&t->lock, NULL);
  (void)pthread_cond_init(&t->changed, &clock);
  (void)pthread_condattr_destroy(&clock);
  t->host = init->host;
  t->rank = init->rank;
  t->world = init->world_size;
  t->peer = peer, t->conn = conn, t->fds = fds;
  t->wake = t->listener = -1;
  t->sndbuf = init->value_count > 0 ? (int)strtol(init->values[0].value, NULL, 10) : 0;
  bp_error_init(&t->aborted);
  TAILQ_INIT(&t->posted);
  TAILQ_INIT(&t->inbox);
  for (size_t i = 0; i < world; ++i) {
    TAILQ_INIT(&peer[i].queue);
    bp_error_init(&peer[i].in), bp_error_init(&peer[i].out);
    peer[i].fd = -1;
  }
  peer[init->rank].opened = 1; /* messages to itself need no connection */
  const int32_t status = start(t, err);
  if (status != BP_OK) {
    acme_destroy(t);
    return status;
  }
  agent->kind = BP_KIND_PROCESS_GROUP;
  agent->api = &api;
  agent->self = t;
  agent->rank = t->rank;
  agent->world_size = t->world;
  agent->capabilities = NULL;
  agent->capability_count = 0;
  return BP_OK;
}

static const bp_option sndbuf = {sizeof sndbuf,
                                 BP_OPTION_BYTES,
                                 0,
                                 0,
                                 "sndbuf",
                                 "0",
                                 "SO_SNDBUF of each connection; 0: the system's default",
                                 NULL,
                                 0,
                                 1 << 30};
static const bp_capability can_send = {sizeof can_send, BP_SEND, BP_ALL_DTYPES, 0, BP_BIT(BP_HOST)};
static const bp_capability can_recv = {sizeof can_recv, BP_RECV, BP_ALL_DTYPES, 0, BP_BIT(BP_HOST)};
static const bp_option* const options[] = {&sndbuf};
static const bp_capability* const capabilities[] = {&can_send, &can_recv};
static const bp_backend backend = {sizeof backend,
                                   BP_KIND_PROCESS_GROUP,
                                   ACME_FLAGS,
                                   1,
                                   "acme-id",
                                   ACME_VERSION,
                                   "send and recv over AF_UNIX sockets",
                                   options,
                                   capabilities,
                                   2,
                                   0,
                                   NULL,
                                   NULL,
                                   NULL,
                                   acme_init,
                                   NULL};
static const bp_backend* const backends[] = {&backend};

static const struct {
  bp_note_header header;
  bp_note_backend backends[1];
} note __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {
    BP_NOTE_HEADER_INIT(1, 0, ""),
    {{"acme-id", ACME_VERSION, BP_KIND_PROCESS_GROUP, ACME_FLAGS, BP_BIT(BP_SEND) | BP_BIT(BP_RECV), 0}}};

BP_EXPORT const bp_plugin bp_plugin_v1 = {
    sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "acme-id's author", backends, 1, 0};
