/* The state of an agent, and the matching of messages and receives (acme.c). */
#ifndef ACME_MATCHING_H
#define ACME_MATCHING_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <time.h>

#include "backplane/abi/abi.h"

typedef struct acme_node {
  struct acme_node* next;
} acme_node;

typedef struct acme_list {
  acme_node *first, *last;
} acme_list;

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
  acme_node node;
  struct bp_work* work; /* the send that waits for this message, if any; guarded by the lock */
  uint64_t done;        /* bytes of frame and data written or read so far */
  int32_t source;
  acme_frame frame;
  char data[];
} acme_message;

struct bp_work {
  acme_node node;
  acme_message* message; /* send */
  int32_t peer;
  int done;
  uint64_t tag, capacity;
  void* data;
  bp_result* result;
  bp_error error; /* the outcome, once done */
};

typedef struct acme_peer {
  /* guarded by the lock */
  acme_list queue;       /* messages to the peer that are not started */
  acme_message* writing; /* the message being written; only the thread replaces and frees it */
  bp_error in, out;      /* status other than BP_OK: receiving from, or sending to, the peer has ended */
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
  bp_error aborted;        /* status other than BP_OK: aborted, with the reason */
  acme_list posted, inbox; /* unmatched recvs, unmatched messages */
} acme_group;

static void append(acme_list* list, acme_node* node) {
  node->next = NULL;
  if (list->first == NULL)
    list->first = node;
  else
    list->last->next = node;
  list->last = node;
}

static int take_out(acme_list* list, acme_node* node) {
  for (acme_node *at = list->first, *before = NULL; at != NULL; before = at, at = at->next) {
    if (at != node) continue;
    if (before == NULL)
      list->first = at->next;
    else
      before->next = at->next;
    if (list->last == at) list->last = before;
    return 1;
  }
  return 0;
}

static void free_all(acme_list* list) {
  for (acme_node *at = list->first, *next; at != NULL; at = next) next = at->next, free(at);
  list->first = list->last = NULL;
}

static acme_message* new_message(uint64_t bytes) {
  acme_message* m = bytes > INT64_MAX / 2 ? NULL : malloc(sizeof *m + bytes);
  if (m != NULL) memset(m, 0, sizeof *m), m->frame.bytes = bytes;
  return m;
}

static void wake(acme_group* t) { (void)eventfd_write(t->wake, 1); }

static int32_t tell(bp_error* err, const bp_error* from) { /* leaves *err unchanged if there is no error */
  return from->status == BP_OK ? BP_OK
                               : bp_error_set(err, from->status, from->native_code, from->peer_rank, from->text);
}

/* The functions up to the next line of dashes require the lock. */

static void finish(acme_group* t, bp_work* w, const bp_error* with) {
  if (with != NULL) (void)tell(&w->error, with);
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
  for (acme_node* at = t->posted.first; at != NULL; at = at->next) {
    bp_work* w = (bp_work*)at;
    if (!match(w, m)) continue;
    (void)take_out(&t->posted, at);
    consume(t, w, m);
    return;
  }
  append(&t->inbox, &m->node);
}

/* Why no other rank can send to this rank; NULL: at least one can. */
static const bp_error* deserted(acme_group* t) {
  const bp_error* why = NULL;
  for (int32_t i = 0; i < t->world; ++i) {
    if (i == t->rank) continue;
    if (t->peer[i].in.status == BP_OK) return NULL;
    why = &t->peer[i].in;
  }
  return why;
}

static void post(acme_group* t, bp_work* w) {
  for (acme_node* at = t->inbox.first; at != NULL; at = at->next) {
    acme_message* m = (acme_message*)at;
    if (!match(w, m)) continue;
    (void)take_out(&t->inbox, at);
    consume(t, w, m);
    return;
  }
  const bp_error* alone = w->peer == BP_ANY_SOURCE ? deserted(t) : &t->peer[w->peer].in;
  if (alone != NULL && alone->status != BP_OK)
    finish(t, w, alone);
  else
    append(&t->posted, &w->node);
}

/* Fails the recvs from `from` (BP_ANY_SOURCE: those from any source), or all. */
static void fail_recvs(acme_group* t, int32_t from, int all, const bp_error* why) {
  for (acme_node *at = t->posted.first, *next; at != NULL; at = next) {
    next = at->next;
    if (!all && ((bp_work*)at)->peer != from) continue;
    (void)take_out(&t->posted, at);
    finish(t, (bp_work*)at, why);
  }
}

static void fail_sends(acme_group* t, acme_peer* p, const bp_error* why) {
  for (acme_node* at = p->queue.first; at != NULL; at = at->next) finish(t, ((acme_message*)at)->work, why);
  free_all(&p->queue);
  if (p->writing != NULL && p->writing->work != NULL) {
    finish(t, p->writing->work, why);
    p->writing->work = NULL;
  }
}

static void withdraw(acme_group* t, bp_work* w, int32_t status, const char* text) {
  if (w->message == NULL)
    (void)take_out(&t->posted, &w->node);
  else if (take_out(&t->peer[w->peer].queue, &w->message->node))
    free(w->message);
  else
    w->message->work = NULL; /* started: the rest of the copy must follow, or the stream is corrupt */
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
