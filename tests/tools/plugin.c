/* SPDX-License-Identifier: Apache-2.0
 *
 * A valid plugin whose constructor crashes, hangs, exits or prints. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backplane/abi/abi.h"

static const struct {
  bp_note_header header;
  bp_note_backend backends[1];
} note __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {
    BP_NOTE_HEADER_INIT(1, 0, ""),
    {{FIXTURE_ID, "1.0", BP_KIND_PROCESS_GROUP, BP_BACKEND_TAGS, BP_BIT(BP_SEND) | BP_BIT(BP_RECV), 0}}};

__attribute__((constructor)) static void fault(void) {
#if defined(FIXTURE_CRASH)
  signal(SIGSEGV, SIG_DFL); /* sanitizers would convert it to an exit */
  raise(SIGSEGV);
#elif defined(FIXTURE_HANG)
  for (;;) pause();
#elif defined(FIXTURE_EXIT)
  _exit(0);
#else
  const char* path = getenv("BACKPLANE_TEST_TRACE");
  FILE* file = path == NULL ? NULL : fopen(path, "w");
  puts("noise of a plugin"); /* on stdout, where JSON goes */
  fflush(stdout);
  if (file != NULL) fclose(file);
#endif
}

static int32_t init(const bp_backend* self, const bp_init* request, bp_agent* agent, bp_error* err) {
  (void)self, (void)request, (void)agent;
  return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "this is a fixture");
}

#if defined(FIXTURE_REMARK)
static void* remark(void* arg) {
  const bp_host* const host = arg;
  host->log(host->ctx, BP_LOG_INFO, "a remark of a thread");
  return NULL;
}
#endif

static int32_t probe(const bp_backend* self, const bp_host* host, bp_error* err) {
  (void)self, (void)host;
#if defined(FIXTURE_REMARK)
  host->log(host->ctx, BP_LOG_INFO, "a remark");
  host->log(host->ctx, BP_LOG_WARN, "a warning");
  pthread_t thread;
  if (pthread_create(&thread, NULL, remark, (void*)host) == 0) {
    pthread_join(thread, NULL);
    return BP_OK;
  }
#endif
  return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "libmissing.so was not found");
}

static const bp_option threads = {sizeof threads, BP_OPTION_INT, 0, 0, "threads", "2", "threads of its own", 0, 1, 64};
static const bp_option* const options[] = {&threads};
static const bp_capability send_op = {
    .struct_size = sizeof send_op, .op = BP_SEND, .dtypes = BP_BIT(BP_U8), .memory = BP_BIT(BP_HOST)};
static const bp_capability recv_op = {
    .struct_size = sizeof recv_op, .op = BP_RECV, .dtypes = BP_BIT(BP_U8), .memory = BP_BIT(BP_HOST)};
static const bp_capability* const capabilities[] = {&send_op, &recv_op};
static const bp_backend backend = {.struct_size = sizeof backend,
                                   .kinds = BP_KIND_PROCESS_GROUP,
                                   .flags = BP_BACKEND_TAGS,
                                   .option_count = 1,
                                   .id = FIXTURE_ID,
                                   .version = "1.0",
                                   .summary = "a fixture",
                                   .options = options,
                                   .capabilities = capabilities,
                                   .capability_count = 2,
                                   .probe = probe,
                                   .init = init};
static const bp_backend* const backends[] = {&backend};
BP_EXPORT const bp_plugin bp_plugin_v1 = {sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "the tests", backends, 1, 0};
