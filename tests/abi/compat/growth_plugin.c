/* SPDX-License-Identifier: Apache-2.0
 *
 * The worked example of share/doc/abi.md: a plugin that is built with the headers of a pretended ABI 1.1, uses its new
 * field bp_host.now_ns where there is one, and lives without it under a core of 1.0. It can be probed and nothing else.
 */
#include <stdio.h>
#include <time.h>

#include "backplane/abi/abi.h"

/* [worked example] */
static int64_t now_ns(const bp_host* host) {
  struct timespec now;
  if (BP_HAS(host, now_ns)) return host->now_ns(host->ctx); /* a core of 1.1 or later */
  (void)clock_gettime(CLOCK_MONOTONIC, &now);               /* a core of 1.0: do what 1.0 did */
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
/* [end] */

static int32_t probe(const bp_backend* self, const bp_host* host, bp_error* err) {
  char text[80];
  (void)self, (void)err;
  (void)snprintf(text, sizeof text, "growth: %s %s", BP_HAS(host, now_ns) ? "the core's clock" : "a clock of its own",
                 now_ns(host) == 4711 ? "shows 4711" : "runs");
  host->log(host->ctx, BP_LOG_INFO, text);
  return BP_OK;
}

static int32_t init(const bp_backend* self, const bp_init* request, bp_agent* agent, bp_error* err) {
  (void)self, (void)request, (void)agent;
  return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "growth: there is nothing but the probe");
}

static const struct {
  bp_note_header header;
  bp_note_backend backends[1];
} note __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {
    BP_NOTE_HEADER_INIT(1, 0, ""), {{"growth", "1.0", BP_KIND_PROCESS_GROUP, 0, 0, 0}}};

static const bp_backend backend = {.struct_size = sizeof backend,
                                   .kinds = BP_KIND_PROCESS_GROUP,
                                   .id = "growth",
                                   .version = "1.0",
                                   .summary = "a worked example",
                                   .probe = probe,
                                   .init = init};
static const bp_backend* const backends[] = {&backend};
BP_EXPORT const bp_plugin bp_plugin_v1 = {.struct_size = sizeof(bp_plugin),
                                          .magic = BP_MAGIC,
                                          .built_minor = BP_ABI_MINOR,
                                          .vendor = "the tests",
                                          .backends = backends,
                                          .backend_count = 1};
