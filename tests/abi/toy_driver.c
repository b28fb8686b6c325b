/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives a backend's process group through the bare ABI: dlopens the plugin, gives each of three threads a rank and a
 * host table over one store in memory, and checks what the headers promise.
 *
 *     toy_driver ./backplane_toy.so [backend id]
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include "toy_rank.h"

static void ping_pong(rank_ctx* r) {
  if (r->rank > 1) return;
  for (int i = 0; i < 400; ++i) {
    double x = i;
    const int32_t peer = 1 - r->rank;
    for (int turn = 0; turn < 2; ++turn) {
      bp_result result = {sizeof result, -7, 77, 0};
      bp_op op = make(turn == r->rank ? BP_SEND : BP_RECV, peer, 5, &x, 1);
      op.dtype = BP_F64;
      op.flags = i % 2 ? BP_OP_SYNC : 0;
      op.result = op.kind == BP_RECV ? &result : NULL;
      if (op.kind == BP_RECV) x = -1;
      complete(r, submit(r, &op));
      CHECK(x == i && (op.kind == BP_SEND || (result.source == peer && result.bytes == sizeof x)));
    }
  }
}

static void tags(rank_ctx* r) {
  uint8_t x[6] = {10, 11, 12, 13, 14, 15};
  const uint64_t tag[6] = {1, 2, 2, 3, UINT64_C(1) << 40 | 1, BP_TAG_INTERNAL | 1};
  const int order[6] = {5, 3, 1, 4, 2, 0};
  if (r->rank == 0) {
    for (int i = 0; i < 6; ++i) put_it(r, 1, tag[i], &x[i], 1, 0);
  } else if (r->rank == 1) {
    for (int i = 0; i < 6; ++i) {
      uint8_t got = 0;
      (void)get_it(r, 0, tag[order[i]], &got, 1, 0);
      CHECK(got == 10 + order[i]);
    }
  }
}

static void any_source(rank_ctx* r) {
  int seen[WORLD] = {0, 0, 0};
  int32_t x = r->rank;
  put_it(r, 0, 9, &x, sizeof x, BP_OP_SYNC); /* rank 0 to itself, too */
  for (int i = 0; r->rank == 0 && i < WORLD; ++i) {
    int32_t got = -1;
    const bp_result result = get_it(r, BP_ANY_SOURCE, 9, &got, sizeof got, 0);
    CHECK(result.source == got && got >= 0 && got < WORLD && seen[got]++ == 0);
  }
}

static void large(rank_ctx* r) {
  const uint64_t size = 24 << 20;
  uint8_t *mine = malloc(size), *theirs = malloc(size);
  CHECK(mine != NULL && theirs != NULL);
  for (uint64_t i = 0; i < size; ++i) mine[i] = (uint8_t)(i * 31 + (uint64_t)r->rank);
  for (int sync = 0; sync < 2; ++sync) { /* around the ring, so in both directions at once */
    const int32_t to = (r->rank + 1) % WORLD, from = (r->rank + WORLD - 1) % WORLD;
    memset(theirs, 0, size);
    bp_op send = make(BP_SEND, to, 4, mine, size), recv = make(BP_RECV, from, 4, theirs, size);
    bp_op back = make(BP_SEND, from, 6, mine, size);
    bp_work* got = submit(r, &recv);
    send.flags = sync ? BP_OP_SYNC : 0;
    bp_work *there = submit(r, &send), *again = submit(r, &back);
    complete(r, got);
    for (uint64_t i = 0; i < size; ++i) CHECK(theirs[i] == (uint8_t)(i * 31 + (uint64_t)from));
    CHECK(get_it(r, to, 6, theirs, size, BP_OP_SYNC).bytes == size);
    for (uint64_t i = 0; i < size; ++i) CHECK(theirs[i] == (uint8_t)(i * 31 + (uint64_t)to));
    complete(r, there);
    complete(r, again);
  }
  free(mine), free(theirs);
}

static void sizes(rank_ctx* r) {
  char text[16] = "0123456789";
  if (r->rank == 0) {
    put_it(r, 1, 1, text, 10, 0);
    put_it(r, 1, 1, text, 4, 0);
    put_it(r, 1, 1, NULL, 0, 0);
    put_it(r, 1, 2, text, 10, 0);
  } else if (r->rank == 1) {
    bp_error err;
    bp_op op = make(BP_RECV, 0, 1, text, 9);
    CHECK(outcome(r, &op, &err) == BP_INVALID && err.status == BP_INVALID && err.text[0] != '\0');
    memset(text, 'x', sizeof text);
    bp_result result = get_it(r, 0, 1, text, 10, 0); /* the long message is gone, the next is unharmed and short */
    CHECK(result.bytes == 4 && result.source == 0 && memcmp(text, "0123xxxxxx", 10) == 0);
    CHECK(get_it(r, 0, 1, NULL, 0, 0).bytes == 0);
    op = make(BP_RECV, 0, 2, NULL, 0);
    op.flags = BP_OP_SYNC;
    CHECK(outcome(r, &op, &err) == BP_INVALID);
  } else { /* to itself; the recv first */
    bp_result result = {sizeof result, -7, 77, 0};
    bp_op recv = make(BP_RECV, r->rank, 3, text, 16);
    recv.result = &result;
    bp_work* work = submit(r, &recv);
    put_it(r, r->rank, 3, "abc", 3, BP_OP_SYNC);
    complete(r, work);
    CHECK(result.source == r->rank && result.bytes == 3 && memcmp(text, "abc3", 4) == 0);
  }
}

static void timeouts(rank_ctx* r) {
  char x = 1;
  if (r->rank == 1) {
    bp_error err;
    bp_op op = make(BP_RECV, 0, 1, &x, 1);
    op.flags = BP_OP_SYNC;
    op.timeout_ns = 60 * MS;
    int64_t start = now_ns();
    CHECK(outcome(r, &op, &err) == BP_TIMEOUT && err.status == BP_TIMEOUT);
    CHECK(now_ns() - start >= 50 * MS && now_ns() - start < 5000 * MS);
    op.timeout_ns = 0;
    CHECK(outcome(r, &op, &err) == BP_TIMEOUT);
    op.flags = 0;
    op.timeout_ns = BP_NO_TIMEOUT;
    bp_work* work = submit(r, &op);
    start = now_ns();
    CHECK(r->api->work_wait(r->agent.self, work, 60 * MS, NULL) == BP_AGAIN);
    CHECK(now_ns() - start >= 50 * MS && now_ns() - start < 5000 * MS);
    CHECK(r->api->work_test(r->agent.self, work, NULL) == BP_AGAIN);
    CHECK(r->api->work_wait(r->agent.self, work, 0, NULL) == BP_AGAIN);
    meet(r);
    complete(r, work);
    CHECK(x == 42);
  } else {
    meet(r);
    x = 42;
    if (r->rank == 0) put_it(r, 1, 1, &x, 1, 0);
  }
}

static void cancel(rank_ctx* r) {
  char x = 0;
  if (r->rank == 1) {
    bp_op op = make(BP_RECV, BP_ANY_SOURCE, 1, &x, 1);
    bp_work* work = submit(r, &op);
    r->api->work_cancel(r->agent.self, work);
    for (int i = 0; i < 2; ++i) CHECK(r->api->work_wait(r->agent.self, work, LONG_WAIT, NULL) == BP_CANCELLED);
    r->api->work_release(r->agent.self, work);
    meet(r);
    (void)get_it(r, 0, 1, &x, 1, 0); /* the cancelled one took nothing */
    CHECK(x == 7);
  } else {
    meet(r);
    x = 7;
    if (r->rank == 0) put_it(r, 1, 1, &x, 1, 0);
  }
}

typedef struct lane {
  rank_ctx* r;
  uint64_t tag;
} lane;

static void* run_lane(void* arg) {
  lane* l = arg;
  for (uint64_t i = 0; i < 200; ++i) {
    uint64_t x = l->tag * 1000 + i;
    const uint64_t flags = i % 3 ? BP_OP_SYNC : 0;
    if (l->r->rank == 0) put_it(l->r, 1, l->tag, &x, sizeof x, flags), x = 0;
    if (l->r->rank == 1) (void)get_it(l->r, 0, l->tag, &x, sizeof x, flags);
    CHECK(l->r->rank == 0 || x == l->tag * 1000 + i);
  }
  return NULL;
}

static void threads(rank_ctx* r) {
  pthread_t thread[4];
  lane lanes[4];
  for (int i = 0; i < 4; ++i) {
    lanes[i] = (lane){r, (uint64_t)i};
    CHECK(pthread_create(&thread[i], NULL, run_lane, &lanes[i]) == 0);
  }
  for (int i = 0; i < 4; ++i) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void* abort_soon(void* arg) {
  rank_ctx* r = arg;
  bp_error why;
  nap(80 * MS);
  bp_error_init(&why);
  (void)bp_error_set(&why, BP_PEER_LOST, 0, 2, "the watchdog saw rank 2 die");
  atomic_store(&r->host.ending, 1);
  r->api->abort(r->agent.self, &why);
  return NULL;
}

static void aborts(rank_ctx* r) {
  char x = 0;
  bp_error err;
  pthread_t thread;
  bp_op op = make(BP_RECV, 2, 999, &x, 1);
  bp_work* work = submit(r, &op);
  CHECK(work != NULL && pthread_create(&thread, NULL, abort_soon, r) == 0);
  op.flags = BP_OP_SYNC;
  op.timeout_ns = BP_NO_TIMEOUT;
  /* Rank 2's own abort may be seen first by the others, as the end of its connection: the same status. */
  CHECK(outcome(r, &op, &err) == BP_PEER_LOST && err.peer_rank == 2 && err.text[0] != '\0');
  CHECK(r->rank != 2 || strstr(err.text, "the watchdog saw rank 2 die") != NULL);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(r->api->work_test(r->agent.self, work, &err) == BP_PEER_LOST);
  r->api->work_release(r->agent.self, work);
  op = make(BP_SEND, r->rank, 1, &x, 1);
  CHECK(outcome(r, &op, &err) == BP_PEER_LOST && strstr(err.text, "the watchdog saw rank 2 die") != NULL);
  bp_error_init(&err);
  err.status = BP_CANCELLED;
  r->api->abort(r->agent.self, &err); /* does nothing */
  CHECK(outcome(r, &op, &err) == BP_PEER_LOST);
}

/* The last message stays although its sender ends at once; after it, the sender is lost. */
static void last_words(rank_ctx* r) {
  char x = (char)r->rank;
  bp_error err;
  if (r->rank != 0) return;
  for (int32_t i = 1; i < WORLD; ++i) {
    CHECK(get_it(r, i, 2, &x, 1, 0).source == i);
    CHECK(x == i);
  }
  bp_op op = make(BP_RECV, 1, 2, &x, 1);
  CHECK(outcome(r, &op, &err) == BP_PEER_LOST && err.peer_rank == 1);
}

static void begin(rank_ctx* r) {
  static const int32_t global_ranks[WORLD] = {0, 1, 2};
  r->host.at = r->at;
  atomic_store(&r->host.ending, 0);
  const bp_host table = {sizeof table, BP_ABI_MINOR,   &r->host,           host_log,  host_abort_requested,
                         host_set,     host_get,       host_add,           host_wait, host_compare_set,
                         host_delete,  host_extension, host_report_failure};
  bp_host* host = malloc(sizeof *host);
  CHECK(host != NULL);
  memcpy(host, &table, sizeof table);
  bp_init init;
  memset(&init, 0, sizeof init);
  init.struct_size = sizeof init;
  init.rank = r->rank;
  init.world_size = WORLD;
  init.device = -1;
  init.name = "test";
  init.host = host;
  init.values = r->values;
  init.value_count = r->backend->option_count;
  init.timeout_ns = LONG_WAIT;
  init.global_ranks = global_ranks;
  memset(&r->agent, 0, sizeof r->agent);
  r->agent.struct_size = sizeof r->agent;
  OK(r->backend->init(r->backend, &init, &r->agent, ERR));
  CHECK(r->agent.kind == BP_KIND_PROCESS_GROUP && r->agent.rank == r->rank && r->agent.world_size == WORLD);
  r->api = r->agent.api;
  CHECK(r->api->extension(r->agent.self, "acme.nothing/1") == NULL);
  r->agent.capabilities = (const bp_capability* const*)(const void*)host; /* only to find it again */
}

static void end(rank_ctx* r) {
  atomic_store(&r->host.ending, 1);
  r->api->destroy(r->agent.self);
  free((void*)(uintptr_t)r->agent.capabilities);
}

static void* run_rank(void* arg) {
  static void (*const tests[])(rank_ctx*) = {ping_pong, tags,   any_source, large, sizes,
                                             timeouts,  cancel, threads,    aborts};
  rank_ctx* r = arg;
  begin(r);
  for (size_t i = 0; i < sizeof tests / sizeof *tests; ++i) {
    meet(r);
    tests[i](r);
  }
  meet(r);
  end(r);
  return NULL;
}

static void* run_last_words(void* arg) {
  rank_ctx* r = arg;
  char x = (char)r->rank;
  if (r->rank == 0) nap(100 * MS); /* the others begin, and look for it, before it is there */
  begin(r);
  if (r->rank != 0) put_it(r, 0, 2, &x, 1, BP_OP_SYNC);
  last_words(r);
  end(r);
  return NULL;
}

static void run(const bp_backend* backend, const bp_key_value* values, void* (*body)(void*)) {
  store s = {.entries = NULL};
  pthread_barrier_t all;
  pthread_t thread[WORLD];
  rank_ctx ranks[WORLD];
  CHECK(pthread_mutex_init(&s.lock, NULL) == 0 && pthread_cond_init(&s.changed, NULL) == 0);
  CHECK(pthread_barrier_init(&all, NULL, WORLD) == 0);
  memset(ranks, 0, sizeof ranks);
  for (int32_t i = 0; i < WORLD; ++i) {
    ranks[i].backend = backend;
    ranks[i].values = values;
    ranks[i].at = &s;
    ranks[i].all = &all;
    ranks[i].rank = i;
    CHECK(pthread_create(&thread[i], NULL, body, &ranks[i]) == 0);
  }
  for (int i = 0; i < WORLD; ++i) CHECK(pthread_join(thread[i], NULL) == 0);
  while (s.entries != NULL) {
    entry* e = s.entries;
    s.entries = e->next;
    free(e);
  }
  (void)pthread_barrier_destroy(&all);
  (void)pthread_cond_destroy(&s.changed);
  (void)pthread_mutex_destroy(&s.lock);
}

/* ------------------------------------------------------- Main ----------------------------------------------------- */

static int count_in(const char* directory) {
  int count = 0;
  DIR* dir = opendir(directory);
  CHECK(dir != NULL);
  while (readdir(dir) != NULL) ++count;
  (void)closedir(dir);
  return count;
}

static void check_symbols(const char* path) {
  char command[4200], line[512];
  int count = 0;
  CHECK(strchr(path, '\'') == NULL);
  CHECK(snprintf(command, sizeof command, "nm -D --defined-only '%s'", path) < (int)sizeof command);
  FILE* out = popen(command, "r");
  CHECK(out != NULL);
  while (fgets(line, sizeof line, out) != NULL) {
    if (strstr(line, " __odr_asan.") != NULL) continue; /* gcc -fsanitize=address */
    ++count;
    CHECK(strstr(line, " " BP_PLUGIN_SYMBOL "\n") != NULL);
  }
  CHECK(pclose(out) == 0 && count == 1);
}

int main(int argc, char** argv) {
  const bp_backend* backend = NULL;
  if (argc < 2) {
    (void)fprintf(stderr, "usage: %s PLUGIN.so [BACKEND]\n", argv[0]);
    return 2;
  }
  check_symbols(argv[1]);
  const int tasks = count_in("/proc/self/task");
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) (void)fprintf(stderr, "%s\n", dlerror());
  CHECK(library != NULL && count_in("/proc/self/task") == tasks);
  const bp_plugin* plugin = dlsym(library, BP_PLUGIN_SYMBOL);
  CHECK(plugin != NULL && plugin->magic == BP_MAGIC && BP_HAS(plugin, backend_count));
  CHECK(plugin->need_minor <= BP_ABI_MINOR && plugin->backend_count >= 1);
  for (uint32_t i = 0; i < plugin->backend_count; ++i) {
    if (argc < 3 || strcmp(plugin->backends[i]->id, argv[2]) == 0) backend = plugin->backends[i];
  }
  CHECK(backend != NULL && BP_HAS(backend, init) && backend->option_count <= 1);
  CHECK((backend->flags & BP_BACKEND_THREADS) != 0);

  const bp_option* option = backend->option_count > 0 ? backend->options[0] : NULL;
  const char* const settings[] = {option != NULL ? option->default_value : "", "4096", "1048576"};
  const size_t count = option != NULL && option->type == BP_OPTION_BYTES ? 3 : 1; /* the others fit only sizes */
  const int descriptors = count_in("/proc/self/fd");
  for (size_t i = 0; i < count; ++i) {
    const bp_key_value value = {option != NULL ? option->key : "", settings[i]};
    run(backend, &value, run_rank);
    run(backend, &value, run_last_words);
    (void)printf("%s?%s=%s: ok\n", backend->id, value.key, value.value);
  }
  CHECK(count_in("/proc/self/fd") == descriptors);
  int left = 0; /* a joined thread may stand in /proc for a moment longer */
  for (int i = 0; i < 100 && (left = count_in("/proc/self/task") - tasks) > 0; ++i) nap(10 * MS);
  CHECK(left <= 1); /* a sanitizer's own */
  return 0;
}
