/* The state of an agent, and the matching of messages and receives (acme.c). */
#ifndef ACME_MATCHING_H
#define ACME_MATCHING_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/un.h>
#include <time.h>

#include "backplane/abi/abi.h"

typedef struct acme_frame { /* before each message on the wire */
  uint64_t tag, bytes;
} acme_frame;

typedef struct acme_hello { /* first on each connection */
  uint64_t nonce;
  int32_t rank;
  uint32_t reserved;
} acme_hello;

typedef struct acme_address { /* in the store */
  uint64_t nonce;
  uint32_t size, reserved;
  struct sockaddr_un name;
} acme_address;

typedef struct acme_message {
  TAILQ_ENTRY(acme_message) link;
  struct bp_work* work; /* the send that waits for this message, if any; guarded by the lock */
  uint64_t done;        /* bytes of frame and data written or read so far */
  int32_t source;
  acme_frame frame;
  char data[];
} acme_message;

struct bp_work {
  TAILQ_ENTRY(bp_work) link;
  acme_message* message; /* send */
  int32_t peer;
  int done;
  uint64_t tag, capacity;
  void* data;
  bp_result* result;
  bp_error error; /* the outcome, once done */
};

TAILQ_HEAD(acme_messages, acme_message);
TAILQ_HEAD(acme_works, bp_work);

typedef struct acme_peer {
  /* guarded by the lock */
  struct acme_messages queue; /* messages to the peer that are not started */
  acme_message* writing;      /* the message being written; only the thread replaces and frees it */
  bp_error in, out;           /* status other than BP_OK: receiving from, or sending to, the peer has ended */
  /* used by the thread only */
  int fd;                /* connection to the peer */
  int wanted;            /* messages are waiting to be written */
  int opened, connected; /* this rank has opened its connection, or failed to; the peer has opened its */
} acme_peer;

typedef struct acme_conn { /* a connection from a peer; used by the thread only */
  int fd;
  int32_t source;        /* -1 before the hello */
  acme_message* message; /* whose data is being read; NULL: `frame` is */
  uint64_t have;
  union {
    acme_hello hello;
    acme_frame frame;
  } head;
} acme_conn;

typedef struct acme_group {
  const bp_host* host;
  int32_t rank, world, conns;
  int sndbuf, running, wake, listener;
  uint64_t nonce;
  pthread_t thread;
  acme_conn* conn; /* capacity: 2 * world */
  struct pollfd* fds;
  acme_peer* peer;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* guarded by the lock */
  int stop;
  bp_error aborted;           /* status other than BP_OK: aborted, with the reason */
  struct acme_works posted;   /* unmatched recvs */
  struct acme_messages inbox; /* unmatched messages */
} acme_group;

static void free_all(struct acme_messages* list) {
  for (acme_message* m; (m = TAILQ_FIRST(list)) != NULL; free(m)) TAILQ_REMOVE(list, m, link);
}

static acme_message* new_message(uint64_t bytes) {
  acme_message* m = bytes > INT64_MAX / 2 ? NULL : malloc(sizeof *m + bytes);
  if (m != NULL) memset(m, 0, sizeof *m), m->frame.bytes = bytes;
  return m;
}

static void wake(acme_group* t) { (void)eventfd_write(t->wake, 1); }

static int32_t copy_error(bp_error* err, const bp_error* from) { /* leaves *err unchanged if there is no error */
  return from->status == BP_OK ? BP_OK
                               : bp_error_set(err, from->status, from->native_code, from->peer_rank, from->text);
}

/* The functions up to the next line of dashes require the lock. */

static void finish(acme_group* t, bp_work* w, const bp_error* with) {
  if (with != NULL) (void)copy_error(&w->error, with);
  w->done = 1;
  (void)pthread_cond_broadcast(&t->changed);
}

static int match(const bp_work* w, const acme_message* m) {
  return w->tag == m->frame.tag && (w->peer == BP_ANY_SOURCE || w->peer == m->source);
}

static void consume(acme_group* t, bp_work* w, acme_message* m) {
  if (w->result != NULL) {
    w->result->source = m->source;
    w->result->bytes = m->frame.bytes;
    w->result->tag = m->frame.tag;
  }
  if (m->frame.bytes > w->capacity) {
    char text[160];
    (void)snprintf(text, sizeof text, "acme-id: a message of %llu bytes from rank %d does not fit a recv of %llu bytes",
                   (unsigned long long)m->frame.bytes, (int)m->source, (unsigned long long)w->capacity);
    (void)bp_error_set(&w->error, BP_INVALID, 0, m->source, text);
  } else if (m->frame.bytes > 0) {
    memcpy(w->data, m->data, m->frame.bytes);
  }
  finish(t, w, NULL);
  free(m);
}

static void deliver(acme_group* t, acme_message* m) {
  bp_work* w = TAILQ_FIRST(&t->posted);
  while (w != NULL && !match(w, m)) w = TAILQ_NEXT(w, link);
  if (w == NULL) {
    TAILQ_INSERT_TAIL(&t->inbox, m, link);
  } else {
    TAILQ_REMOVE(&t->posted, w, link);
    consume(t, w, m);
  }
}

/* The reason why no other rank can send to this rank; NULL: at least one can. */
static const bp_error* all_lost(acme_group* t) {
  const bp_error* why = NULL;
  for (int32_t i = 0; i < t->world; ++i) {
    if (i == t->rank) continue;
    if (t->peer[i].in.status == BP_OK) return NULL;
    why = &t->peer[i].in;
  }
  return why;
}

static void post(acme_group* t, bp_work* w) {
  acme_message* m = TAILQ_FIRST(&t->inbox);
  while (m != NULL && !match(w, m)) m = TAILQ_NEXT(m, link);
  const bp_error* lost = w->peer == BP_ANY_SOURCE ? all_lost(t) : &t->peer[w->peer].in;
  if (m != NULL) {
    TAILQ_REMOVE(&t->inbox, m, link);
    consume(t, w, m);
  } else if (lost != NULL && lost->status != BP_OK) {
    finish(t, w, lost);
  } else {
    TAILQ_INSERT_TAIL(&t->posted, w, link);
  }
}

/* Fails the recvs from `from` (BP_ANY_SOURCE: those from any source), or all. */
static void fail_recvs(acme_group* t, int32_t from, int all, const bp_error* why) {
  for (bp_work *w = TAILQ_FIRST(&t->posted), *next; w != NULL; w = next) {
    next = TAILQ_NEXT(w, link);
    if (!all && w->peer != from) continue;
    TAILQ_REMOVE(&t->posted, w, link);
    finish(t, w, why);
  }
}

static void fail_sends(acme_group* t, acme_peer* p, const bp_error* why) {
  acme_message* m;
  TAILQ_FOREACH(m, &p->queue, link) finish(t, m->work, why);
  free_all(&p->queue);
  if (p->writing != NULL && p->writing->work != NULL) {
    finish(t, p->writing->work, why);
    p->writing->work = NULL;
  }
}

static void withdraw(acme_group* t, bp_work* w, int32_t status, const char* text) {
  acme_peer* p = w->message == NULL ? NULL : &t->peer[w->peer];
  if (p == NULL) {
    TAILQ_REMOVE(&t->posted, w, link);
  } else if (p->writing == w->message) {
    w->message->work = NULL; /* the rest of the copy must follow, or the stream is corrupt */
  } else {
    TAILQ_REMOVE(&p->queue, w->message, link);
    free(w->message);
  }
  (void)bp_error_set(&w->error, status, 0, w->peer, text);
  finish(t, w, NULL);
}

static void wait_for(acme_group* t, const bp_work* w, int64_t timeout_ns) {
  struct timespec until;
  int expired = 0;
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  if (timeout_ns > 0) {
    until.tv_sec += timeout_ns / 1000000000;
    until.tv_nsec += timeout_ns % 1000000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec += 1, until.tv_nsec -= 1000000000;
  }
  while (!w->done && !expired) {
    if (timeout_ns < 0)
      (void)pthread_cond_wait(&t->changed, &t->lock);
    else
      expired = pthread_cond_timedwait(&t->changed, &t->lock, &until) == ETIMEDOUT;
  }
}

#endif
