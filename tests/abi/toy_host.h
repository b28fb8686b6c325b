/* SPDX-License-Identifier: Apache-2.0
 *
 * The host table of toy_driver.c over a store in memory, and its checks.
 */
#ifndef TOY_HOST_H
#define TOY_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backplane/abi/abi.h"

#define MS INT64_C(1000000)

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      (void)fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                       \
    }                                                                                 \
  } while (0)
#define OK(call)                                                                                               \
  do {                                                                                                         \
    bp_error err_;                                                                                             \
    bp_error_init(&err_);                                                                                      \
    const int32_t status_ = (call);                                                                            \
    if (status_ != BP_OK) {                                                                                    \
      (void)fprintf(stderr, "%s:%d: %s: status %d: %s\n", __FILE__, __LINE__, #call, (int)status_, err_.text); \
      _exit(1);                                                                                                \
    }                                                                                                          \
  } while (0)
#define ERR (&err_) /* inside OK(...) */

typedef struct entry {
  struct entry* next;
  char key[64];
  uint64_t size;
  char value[];
} entry;

typedef struct store {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  entry* entries;
} store;

typedef struct host_ctx {
  store* at;
  atomic_int ending;
} host_ctx;

static entry** find(store* s, const char* key) {
  entry** at = &s->entries;
  while (*at != NULL && strcmp((*at)->key, key) != 0) at = &(*at)->next;
  return at;
}

static struct timespec later(int64_t ns) {
  struct timespec until;
  CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
  until.tv_sec += ns / 1000000000;
  until.tv_nsec += ns % 1000000000;
  if (until.tv_nsec >= 1000000000) until.tv_sec += 1, until.tv_nsec -= 1000000000;
  return until;
}

static void host_log(void* ctx, uint32_t level, const char* text) {
  (void)ctx;
  (void)fprintf(stderr, "log %u: %s\n", level, text);
}

static int32_t host_abort_requested(void* ctx) { return atomic_load(&((host_ctx*)ctx)->ending); }

static void put(store* s, const char* key, const void* value, uint64_t size) {
  entry** at = find(s, key);
  entry* old = *at;
  entry* e = malloc(sizeof *e + size);
  CHECK(e != NULL && strlen(key) < sizeof e->key);
  (void)strcpy(e->key, key);
  e->size = size;
  if (size > 0) memcpy(e->value, value, size);
  e->next = old != NULL ? old->next : NULL;
  *at = e;
  free(old);
  CHECK(pthread_cond_broadcast(&s->changed) == 0);
}

static int32_t copy_out(const entry* e, void* buffer, uint64_t capacity, uint64_t* size, bp_error* err) {
  *size = e != NULL ? e->size : 0;
  if (*size > capacity) return bp_error_set(err, BP_RESOURCE, 0, -1, "the buffer is too small");
  if (*size > 0) memcpy(buffer, e->value, *size);
  return BP_OK;
}

static int32_t host_set(void* ctx, const char* key, const void* value, uint64_t size, bp_error* err) {
  store* s = ((host_ctx*)ctx)->at;
  (void)err;
  pthread_mutex_lock(&s->lock);
  put(s, key, value, size);
  pthread_mutex_unlock(&s->lock);
  return BP_OK;
}

/* Waits until all keys exist; the lock is held. */
static int32_t await(host_ctx* h, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
  const struct timespec end = later(timeout_ns < 0 ? 0 : timeout_ns);
  for (uint64_t i = 0; i < count;) {
    if (*find(h->at, keys[i]) != NULL) {
      ++i;
      continue;
    }
    if (atomic_load(&h->ending)) return bp_error_set(err, BP_CANCELLED, 0, -1, "the group ends");
    const struct timespec soon = later(50 * MS), *until = &soon;
    if (timeout_ns >= 0) {
      const struct timespec now = later(0);
      if (now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec)) {
        return bp_error_set(err, BP_TIMEOUT, 0, -1, "no such key in time");
      }
      if (end.tv_sec < soon.tv_sec || (end.tv_sec == soon.tv_sec && end.tv_nsec < soon.tv_nsec)) until = &end;
    }
    (void)pthread_cond_timedwait(&h->at->changed, &h->at->lock, until);
  }
  return BP_OK;
}

static int32_t host_get(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                        bp_error* err) {
  host_ctx* h = ctx;
  pthread_mutex_lock(&h->at->lock);
  int32_t status = await(h, &key, 1, timeout_ns, err);
  if (status == BP_OK) status = copy_out(*find(h->at, key), buffer, capacity, size, err);
  pthread_mutex_unlock(&h->at->lock);
  return status;
}

static int32_t host_wait(void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
  host_ctx* h = ctx;
  pthread_mutex_lock(&h->at->lock);
  const int32_t status = await(h, keys, count, timeout_ns, err);
  pthread_mutex_unlock(&h->at->lock);
  return status;
}

static int32_t host_add(void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error* err) {
  store* s = ((host_ctx*)ctx)->at;
  char text[32] = "";
  (void)err;
  pthread_mutex_lock(&s->lock);
  const entry* e = *find(s, key);
  if (e != NULL && e->size < sizeof text) memcpy(text, e->value, e->size);
  *sum = strtoll(text, NULL, 10) + delta;
  put(s, key, text, (uint64_t)snprintf(text, sizeof text, "%lld", (long long)*sum));
  pthread_mutex_unlock(&s->lock);
  return BP_OK;
}

static int32_t host_compare_set(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                                const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                                uint64_t* size, bp_error* err) {
  store* s = ((host_ctx*)ctx)->at;
  pthread_mutex_lock(&s->lock);
  const entry* e = *find(s, key);
  const int same = e != NULL && e->size == expected_size && memcmp(e->value, expected, expected_size) == 0;
  if (same || (e == NULL && expected_size == 0)) put(s, key, desired, desired_size);
  const int32_t status = copy_out(*find(s, key), buffer, capacity, size, err);
  pthread_mutex_unlock(&s->lock);
  return status;
}

static int32_t host_delete(void* ctx, const char* key, int32_t* existed, bp_error* err) {
  store* s = ((host_ctx*)ctx)->at;
  (void)err;
  pthread_mutex_lock(&s->lock);
  entry **at = find(s, key), *e = *at;
  if (existed != NULL) *existed = e != NULL;
  if (e != NULL) *at = e->next, free(e);
  pthread_mutex_unlock(&s->lock);
  return BP_OK;
}

static void host_report_failure(void* ctx, const bp_error* why) {
  (void)ctx;
  (void)fprintf(stderr, "the plugin reports a failure: %s\n", why->text);
  _exit(1);
}

static const void* host_extension(void* ctx, const char* id) {
  (void)ctx, (void)id;
  return NULL;
}

#endif
