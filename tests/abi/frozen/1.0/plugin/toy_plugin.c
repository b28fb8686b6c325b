/* SPDX-License-Identifier: Apache-2.0
 *
 * A toy backend, written from the headers of core/abi/include alone: send and recv between the ranks of one host over
 * AF_UNIX stream sockets. Each rank listens on an abstract address, which it publishes in the store together with a
 * nonce. A connection carries messages one way, from the rank that opened it, and is opened by the first send. One
 * thread per agent does all input and output; what arrives before its recv waits in memory. A send is done once the
 * kernel has all of it, so that nothing is left to flush at the end.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
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

#include "toy_matching.h"

#define TOY_VERSION "1.0"
#define TOY_FLAGS (BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS)
#define TOY_RETRY_MS 10
#define TOY_TURNS 64 /* reads or writes on one connection before the others have their turn */

/* ------------------------------------------- The thread, without the lock ------------------------------------------
 */

static void lose(toy* t, int32_t rank, int incoming, int32_t status, int64_t code, const char* what) {
  toy_peer* p = &t->peer[rank];
  bp_error* of = incoming ? &p->in : &p->out;
  char text[160];
  (void)snprintf(text, sizeof text, "toy: %s rank %d (errno %d)", what, (int)rank, (int)code);
  (void)pthread_mutex_lock(&t->lock);
  if (of->status == BP_OK) (void)bp_error_set(of, status, code, rank, text);
  if (incoming)
    fail_recvs(t, rank, of);
  else
    fail_sends(t, p, of), free(p->writing), p->writing = NULL;
  (void)pthread_mutex_unlock(&t->lock);
  if (incoming) return;
  if (p->fd >= 0) (void)close(p->fd);
  p->fd = -1;
  p->wanted = 0;
}

static void open_to(toy* t, int32_t rank) { /* leaves fd at -1 and `wanted` set if it is to be tried again */
  toy_address to;
  toy_hello hello = {0, t->rank, 0};
  uint64_t size = 0;
  bp_error err;
  char key[32];
  bp_error_init(&err);
  (void)snprintf(key, sizeof key, "toy.%d", (int)rank);
  const int32_t status = t->host->store_get(t->host->ctx, key, &to, sizeof to, &size, 0, &err);
  if (status == BP_TIMEOUT || status == BP_CANCELLED) return; /* not there yet; or the end is near */
  if (status != BP_OK || size != sizeof to || to.size > sizeof to.name) {
    lose(t, rank, 0, status != BP_OK ? status : BP_INTERNAL, EADDRNOTAVAIL, "the store has no good address of");
    return;
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    lose(t, rank, 0, BP_RESOURCE, errno, "no socket for");
    return;
  }
  if (t->sndbuf > 0) (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &t->sndbuf, sizeof t->sndbuf);
  hello.nonce = to.nonce;
  t->peer[rank].fd = fd;
  if (connect(fd, (const struct sockaddr*)&to.name, to.size) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      lose(t, rank, 0, BP_PEER_LOST, errno, "not on this host, or gone, is");
      return;
    }
    (void)close(fd); /* its backlog is full */
    t->peer[rank].fd = -1;
  } else if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
    lose(t, rank, 0, BP_PEER_LOST, errno, "no answer from");
  }
}

static void write_to(toy* t, int32_t rank) {
  toy_peer* p = &t->peer[rank];
  for (int turn = 0; turn < TOY_TURNS; ++turn) {
    (void)pthread_mutex_lock(&t->lock);
    if (p->writing == NULL && p->queue.first != NULL) {
      p->writing = (toy_message*)p->queue.first;
      (void)take_out(&p->queue, p->queue.first);
    }
    toy_message* m = p->writing;
    (void)pthread_mutex_unlock(&t->lock);
    if (m == NULL) return;
    const uint64_t total = sizeof m->frame + m->frame.bytes;
    const char* frame = (const char*)m + offsetof(toy_message, frame);
    const ssize_t sent = send(p->fd, frame + m->done, total - m->done, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) lose(t, rank, 0, BP_PEER_LOST, errno, "lost the connection to");
      return;
    }
    m->done += (uint64_t)sent;
    if (m->done < total) continue;
    (void)pthread_mutex_lock(&t->lock);
    if (m->work != NULL) finish(t, m->work, NULL);
    p->writing = NULL;
    (void)pthread_mutex_unlock(&t->lock);
    free(m);
  }
}

static int read_from(toy* t, toy_conn* c) { /* 0, or the errno that ends the connection */
  for (int turn = 0; turn < TOY_TURNS; ++turn) {
    const uint64_t end = c->message != NULL ? c->message->frame.bytes : sizeof c->head;
    char* to = c->message != NULL ? c->message->data : (char*)&c->head;
    const ssize_t got = recv(c->fd, to + c->have, end - c->have, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : errno;
    if (got == 0) return ECONNRESET;
    c->have += (uint64_t)got;
    if (c->have < end) continue;
    if (c->message == NULL && c->source < 0) {
      const toy_hello* hello = &c->head.hello;
      if (hello->nonce != t->nonce || hello->rank < 0 || hello->rank >= t->world) return EPROTO;
      if (t->peer[hello->rank].connected) return EPROTO;
      c->source = hello->rank;
      t->peer[c->source].connected = 1;
      c->have = 0;
    } else if (c->message == NULL) {
      c->message = new_message(c->head.frame.bytes);
      if (c->message == NULL) return ENOMEM;
      c->message->frame = c->head.frame;
      c->message->source = c->source;
      c->have = 0;
    }
    if (c->message == NULL || c->have < c->message->frame.bytes) continue;
    (void)pthread_mutex_lock(&t->lock);
    deliver(t, c->message);
    (void)pthread_mutex_unlock(&t->lock);
    c->message = NULL;
    c->have = 0;
  }
  return 0;
}

static void close_all(toy* t) {
  for (int32_t i = 0; i < t->conns; ++i) (void)close(t->conn[i].fd), free(t->conn[i].message);
  t->conns = 0;
  for (int32_t i = 0; i < t->world; ++i) {
    if (t->peer[i].fd >= 0) (void)close(t->peer[i].fd);
    t->peer[i].fd = -1;
  }
  if (t->listener >= 0) (void)close(t->listener);
  t->listener = -1;
}

static void* progress(void* self) {
  toy* t = self;
  int starved = 0; /* no descriptor was left for accept */
  for (;;) {
    int timeout = starved ? TOY_RETRY_MS : -1;
    (void)pthread_mutex_lock(&t->lock);
    const int stop = t->stop, aborted = t->aborted.status != BP_OK;
    for (int32_t i = 0; i < t->world; ++i) {
      t->peer[i].wanted = t->peer[i].writing != NULL || t->peer[i].queue.first != NULL;
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (stop) return NULL;
    if (aborted) close_all(t); /* so that the others learn of it */
    struct pollfd *fds = t->fds, *in = fds + 2, *out = in + t->conns;
    fds[0] = (struct pollfd){t->wake, POLLIN, 0};
    fds[1] = (struct pollfd){starved || t->conns == 2 * t->world ? -1 : t->listener, POLLIN, 0};
    for (int32_t i = 0; i < t->conns; ++i) in[i] = (struct pollfd){t->conn[i].fd, POLLIN, 0};
    for (int32_t i = 0; i < t->world; ++i) {
      toy_peer* p = &t->peer[i];
      if (!aborted && p->wanted && p->fd < 0) open_to(t, i);
      if (!aborted && p->wanted && p->fd < 0) timeout = TOY_RETRY_MS;
      out[i] = (struct pollfd){p->fd, p->wanted ? POLLOUT : 0, 0};
    }
    if (poll(fds, (nfds_t)(2 + t->conns + t->world), timeout) < 0) continue; /* EINTR, ENOMEM */
    eventfd_t count;
    if (fds[0].revents != 0) (void)eventfd_read(t->wake, &count);
    if (aborted) continue;
    const int32_t polled = t->conns;
    starved = 0;
    while (fds[1].revents != 0 && t->conns < 2 * t->world) {
      const int fd = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) starved = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (fd < 0) break;
      t->conn[t->conns++] = (toy_conn){.fd = fd, .source = -1};
    }
    for (int32_t i = t->conns - 1; i >= 0; --i) { /* downwards: the last takes the place of a closed one */
      toy_conn* c = &t->conn[i];
      const int code = i >= polled || in[i].revents != 0 ? read_from(t, c) : 0;
      if (code == 0) continue;
      if (c->source >= 0) lose(t, c->source, 1, code == ENOMEM ? BP_RESOURCE : BP_PEER_LOST, code, "nothing more from");
      (void)close(c->fd), free(c->message);
      *c = t->conn[--t->conns];
    }
    for (int32_t i = 0; i < t->world; ++i) {
      if ((out[i].revents & (POLLHUP | POLLERR)) != 0) {
        lose(t, i, 0, BP_PEER_LOST, EPIPE, "lost the connection to");
        /* What it sent before it left is accepted and begun to be read above; else nothing will come. */
        if (!t->peer[i].connected) lose(t, i, 1, BP_PEER_LOST, EPIPE, "nothing will come from");
      } else if (out[i].revents != 0) {
        write_to(t, i);
      }
    }
  }
}

/* --------------------------------------------------- The table -----------------------------------------------------
 */

static int32_t toy_submit(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  toy* t = self;
  const int sends = op->kind == BP_SEND;
  if (!sends && op->kind != BP_RECV) return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "toy: only send and recv");
  const bp_buffer* buffer = sends ? &op->input : &op->output;
  const uint64_t bytes = buffer->count * bp_dtype_size(op->dtype);
  bp_work* w = calloc(1, sizeof *w);
  toy_message* m = sends ? new_message(bytes) : NULL;
  if (w == NULL || (sends && m == NULL)) {
    free(w), free(m);
    return bp_error_set(err, BP_RESOURCE, ENOMEM, -1, "toy: no memory for the operation");
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
    append(&t->peer[op->peer].queue, &m->node);
    wake(t);
  }
  if ((op->flags & BP_OP_SYNC) != 0 && !w->done) {
    wait_for(t, w, op->timeout_ns);
    if (!w->done) withdraw(t, w, BP_TIMEOUT, sends ? "toy: send timed out" : "toy: recv timed out");
  }
  const int done = w->done;
  if (!done) *work = w;
  (void)pthread_mutex_unlock(&t->lock);
  if (!done) return BP_OK;
  const int32_t status = tell(err, &w->error);
  free(w);
  return status;
}

static int32_t toy_work_wait(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  toy* t = self;
  (void)pthread_mutex_lock(&t->lock);
  if (!work->done && timeout_ns != 0) wait_for(t, work, timeout_ns);
  const int done = work->done;
  (void)pthread_mutex_unlock(&t->lock);
  return done ? tell(err, &work->error) : BP_AGAIN;
}

static int32_t toy_work_test(void* self, bp_work* work, bp_error* err) { return toy_work_wait(self, work, 0, err); }

static void toy_work_cancel(void* self, bp_work* work) {
  toy* t = self;
  (void)pthread_mutex_lock(&t->lock);
  if (!work->done) withdraw(t, work, BP_CANCELLED, "toy: cancelled");
  (void)pthread_mutex_unlock(&t->lock);
}

static void toy_work_release(void* self, bp_work* work) {
  (void)self;
  free(work);
}

static void toy_abort(void* self, const bp_error* why) {
  toy* t = self;
  (void)pthread_mutex_lock(&t->lock);
  if (t->aborted.status == BP_OK) {
    if (why == NULL || tell(&t->aborted, why) == BP_OK) {
      (void)bp_error_set(&t->aborted, BP_CANCELLED, 0, -1, "toy: aborted");
    }
    fail_recvs(t, BP_ANY_SOURCE, &t->aborted);
    for (int32_t i = 0; i < t->world; ++i) fail_sends(t, &t->peer[i], &t->aborted);
    wake(t);
  }
  (void)pthread_mutex_unlock(&t->lock);
}

static void toy_destroy(void* self) {
  toy* t = self;
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

static const void* toy_extension(void* self, const char* id) {
  (void)self, (void)id;
  return NULL;
}

static const bp_process_group_api api = {
    sizeof api,       0,         toy_submit,  toy_work_test, toy_work_wait, toy_work_cancel,
    toy_work_release, toy_abort, toy_destroy, toy_extension};

/* ------------------------------------------------- The descriptor --------------------------------------------------
 */

static int32_t start(toy* t, bp_error* err) {
  toy_address mine;
  socklen_t size = sizeof mine.name;
  sigset_t all, before;
  char key[32];
  memset(&mine, 0, sizeof mine);
  mine.name.sun_family = AF_UNIX;
  t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  t->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (t->wake < 0 || t->listener < 0 || getrandom(&t->nonce, sizeof t->nonce, 0) != (ssize_t)sizeof t->nonce ||
      bind(t->listener, (const struct sockaddr*)&mine.name, sizeof(sa_family_t)) != 0 || /* the kernel picks a name */
      getsockname(t->listener, (struct sockaddr*)&mine.name, &size) != 0 || listen(t->listener, t->world) != 0) {
    return bp_error_set(err, BP_RESOURCE, errno, -1, "toy: cannot listen on an AF_UNIX socket");
  }
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of the program */
  const int code = pthread_create(&t->thread, NULL, progress, t);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code != 0) return bp_error_set(err, BP_RESOURCE, code, -1, "toy: cannot start a thread");
  t->running = 1;
  mine.nonce = t->nonce;
  mine.size = size;
  (void)snprintf(key, sizeof key, "toy.%d", (int)t->rank);
  return t->host->store_set(t->host->ctx, key, &mine, sizeof mine, err);
}

static int32_t toy_init(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  (void)self;
  const size_t world = (size_t)init->world_size;
  toy* t = calloc(1, sizeof *t);
  toy_peer* peer = calloc(world, sizeof *peer);
  toy_conn* conn = calloc(2 * world, sizeof *conn);
  struct pollfd* fds = calloc(2 + 3 * world, sizeof *fds);
  if (t == NULL || peer == NULL || conn == NULL || fds == NULL) {
    free(t), free(peer), free(conn), free(fds);
    return bp_error_set(err, BP_RESOURCE, ENOMEM, -1, "toy: no memory for the group");
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
  for (size_t i = 0; i < world; ++i) bp_error_init(&peer[i].in), bp_error_init(&peer[i].out), peer[i].fd = -1;
  const int32_t status = start(t, err);
  if (status != BP_OK) {
    toy_destroy(t);
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
static const bp_backend backend = {
    sizeof backend, BP_KIND_PROCESS_GROUP, TOY_FLAGS, 1, "toy", TOY_VERSION, "send and recv over AF_UNIX sockets",
    options,        capabilities,          2,         0, NULL,  NULL,        NULL,
    toy_init};
static const bp_backend* const backends[] = {&backend};

static const struct {
  bp_note_header header;
  bp_note_backend backends[1];
} note __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {
    BP_NOTE_HEADER_INIT(1, 0),
    {{"toy", TOY_VERSION, BP_KIND_PROCESS_GROUP, TOY_FLAGS, BP_BIT(BP_SEND) | BP_BIT(BP_RECV), 0}}};

BP_EXPORT const bp_plugin bp_plugin_v1 = {
    sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "the tests of Backplane", backends, 1, 0};
