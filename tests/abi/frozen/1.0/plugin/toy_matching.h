/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a toy agent, and where its messages meet their receives (toy_plugin.c).
 */
#ifndef TOY_MATCHING_H
#define TOY_MATCHING_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backplane/abi/abi.h"

typedef struct toy_node {
  struct toy_node* next;
} toy_node;

typedef struct toy_list {
  toy_node *first, *last;
} toy_list;

typedef struct toy_frame { /* before each message on the wire */
  uint64_t tag, bytes;
} toy_frame;

typedef struct toy_hello { /* first on each connection */
  uint64_t nonce;
  int32_t rank;
  uint32_t reserved;
} toy_hello;

typedef struct toy_address { /* in the store */
  uint64_t nonce;
  uint32_t size, reserved;
  struct sockaddr_un name;
} toy_address;

typedef struct toy_message {
  toy_node node;
  struct bp_work* work; /* the send that waits for it, if any; under the lock */
  uint64_t done;        /* bytes of frame and data that are written or read */
  int32_t source;
  toy_frame frame;
  char data[];
} toy_message;

struct bp_work {
  toy_node node;
  toy_message* message; /* send */
  int32_t peer;
  int done;
  uint64_t tag, capacity;
  void* data;
  bp_result* result;
  bp_error error; /* the outcome, once done */
};

typedef struct toy_peer {
  /* under the lock */
  toy_list queue;       /* messages to it that are not begun */
  toy_message* writing; /* the one that is; only the thread replaces and frees it */
  bp_error in, out;     /* status other than BP_OK: nothing comes from it, or goes to it, any more */
  /* of the thread */
  int fd;                /* to it */
  int wanted, connected; /* there is something to write; it has opened its connection to this rank */
} toy_peer;

typedef struct toy_conn { /* from a peer; of the thread */
  int fd;
  int32_t source;       /* -1 before the hello */
  toy_message* message; /* whose data is being read; NULL: `frame` is */
  uint64_t have;
  union {
    toy_hello hello;
    toy_frame frame;
  } head;
} toy_conn;

typedef struct toy {
  const bp_host* host;
  int32_t rank, world, conns;
  int sndbuf, running, wake, listener;
  uint64_t nonce;
  pthread_t thread;
  toy_conn* conn; /* room for 2 * world */
  struct pollfd* fds;
  toy_peer* peer;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* under the lock */
  int stop;
  bp_error aborted;       /* status other than BP_OK: why */
  toy_list posted, inbox; /* recvs without a message, messages without a recv */
} toy;

static void append(toy_list* list, toy_node* node) {
  node->next = NULL;
  if (list->first == NULL)
    list->first = node;
  else
    list->last->next = node;
  list->last = node;
}

static int take_out(toy_list* list, toy_node* node) {
  for (toy_node *at = list->first, *before = NULL; at != NULL; before = at, at = at->next) {
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

static void free_all(toy_list* list) {
  for (toy_node *at = list->first, *next; at != NULL; at = next) next = at->next, free(at);
  list->first = list->last = NULL;
}

static toy_message* new_message(uint64_t bytes) {
  toy_message* m = bytes > INT64_MAX / 2 ? NULL : malloc(sizeof *m + bytes);
  if (m != NULL) memset(m, 0, sizeof *m), m->frame.bytes = bytes;
  return m;
}

static void wake(toy* t) { (void)eventfd_write(t->wake, 1); }

static int32_t tell(bp_error* err, const bp_error* from) { /* the caller's report is untouched unless there is one */
  return from->status == BP_OK ? BP_OK
                               : bp_error_set(err, from->status, from->native_code, from->peer_rank, from->text);
}

/* From here to the next line of dashes: under the lock. */

static void finish(toy* t, bp_work* w, const bp_error* with) {
  if (with != NULL) (void)tell(&w->error, with);
  w->done = 1;
  (void)pthread_cond_broadcast(&t->changed);
}

static int match(const bp_work* w, const toy_message* m) {
  return w->tag == m->frame.tag && (w->peer == BP_ANY_SOURCE || w->peer == m->source);
}

static void consume(toy* t, bp_work* w, toy_message* m) {
  if (w->result != NULL) w->result->source = m->source, w->result->bytes = m->frame.bytes;
  if (m->frame.bytes > w->capacity) {
    char text[160];
    (void)snprintf(text, sizeof text, "toy: a message of %llu bytes from rank %d does not fit a recv of %llu bytes",
                   (unsigned long long)m->frame.bytes, (int)m->source, (unsigned long long)w->capacity);
    (void)bp_error_set(&w->error, BP_INVALID, 0, m->source, text);
  } else if (m->frame.bytes > 0) {
    memcpy(w->data, m->data, m->frame.bytes);
  }
  finish(t, w, NULL);
  free(m);
}

static void deliver(toy* t, toy_message* m) {
  for (toy_node* at = t->posted.first; at != NULL; at = at->next) {
    bp_work* w = (bp_work*)at;
    if (!match(w, m)) continue;
    (void)take_out(&t->posted, at);
    consume(t, w, m);
    return;
  }
  append(&t->inbox, &m->node);
}

static void post(toy* t, bp_work* w) {
  for (toy_node* at = t->inbox.first; at != NULL; at = at->next) {
    toy_message* m = (toy_message*)at;
    if (!match(w, m)) continue;
    (void)take_out(&t->inbox, at);
    consume(t, w, m);
    return;
  }
  if (w->peer != BP_ANY_SOURCE && t->peer[w->peer].in.status != BP_OK)
    finish(t, w, &t->peer[w->peer].in);
  else
    append(&t->posted, &w->node);
}

static void fail_recvs(toy* t, int32_t from, const bp_error* why) { /* those from anyone only if `from` is that, too */
  for (toy_node *at = t->posted.first, *next; at != NULL; at = next) {
    next = at->next;
    if (from != BP_ANY_SOURCE && ((bp_work*)at)->peer != from) continue;
    (void)take_out(&t->posted, at);
    finish(t, (bp_work*)at, why);
  }
}

static void fail_sends(toy* t, toy_peer* p, const bp_error* why) {
  for (toy_node* at = p->queue.first; at != NULL; at = at->next) finish(t, ((toy_message*)at)->work, why);
  free_all(&p->queue);
  if (p->writing != NULL && p->writing->work != NULL) {
    finish(t, p->writing->work, why);
    p->writing->work = NULL;
  }
}

static void withdraw(toy* t, bp_work* w, int32_t status, const char* text) {
  if (w->message == NULL)
    (void)take_out(&t->posted, &w->node);
  else if (take_out(&t->peer[w->peer].queue, &w->message->node))
    free(w->message);
  else
    w->message->work = NULL; /* begun: the rest of the copy must follow, or the stream is broken */
  (void)bp_error_set(&w->error, status, 0, w->peer, text);
  finish(t, w, NULL);
}

static void wait_for(toy* t, const bp_work* w, int64_t timeout_ns) {
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
