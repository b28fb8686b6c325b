/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that does what no plugin may do to those who check it: one way per build, as with -DMISBEHAVING_CRASH. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backplane/abi/abi.h"

#define WILD ((void*)0x5a5a5a5a5a50)

static const struct {
  bp_note_header header;
  bp_note_backend backends[1];
} note __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {
    BP_NOTE_HEADER_INIT(1, 0, ""),
    {{"misbehaving", "1.0", BP_KIND_PROCESS_GROUP, BP_BACKEND_TAGS, BP_BIT(BP_SEND) | BP_BIT(BP_RECV), 0}}};

#if defined(MISBEHAVING_FLOOD) || defined(MISBEHAVING_SCRIBBLE)
static void say(int fd, const char* bytes, size_t size) {
  if (write(fd, bytes, size) < 0) return; /* a full pipe, or no descriptor at all */
}
#endif

__attribute__((constructor)) static void misbehave(void) {
#if defined(MISBEHAVING_CRASH)
  signal(SIGSEGV, SIG_DFL); /* sanitizers turn it into an exit */
  raise(SIGSEGV);
#elif defined(MISBEHAVING_HANG)
  for (;;) pause();
#elif defined(MISBEHAVING_EXIT)
  _exit(0);
#elif defined(MISBEHAVING_KILLGROUP)
  kill(-getpgid(getppid()), SIGKILL);
#elif defined(MISBEHAVING_KILLPARENT)
  kill(getppid(), SIGKILL);
#elif defined(MISBEHAVING_STOPPARENT)
  kill(getppid(), SIGSTOP);
#elif defined(MISBEHAVING_CLOSE)
  for (int fd = 0; fd < 1024; ++fd) close(fd);
#elif defined(MISBEHAVING_FLOOD)
  static char text[65536];
  memset(text, 'x', sizeof text);
  for (;;) say(1, text, sizeof text);
#elif defined(MISBEHAVING_SCRIBBLE)
  char noise[512];
  unsigned state = 1;
  for (size_t i = 0; i < sizeof noise; ++i) noise[i] = (char)((state = state * 1103515245U + 12345U) >> 16);
  for (int fd = 0; fd < 256; ++fd) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    say(fd, noise, sizeof noise);
  }
#endif
}

static int32_t init(const bp_backend* self, const bp_init* request, bp_agent* agent, bp_error* err) {
  (void)self, (void)request, (void)agent;
#if defined(MISBEHAVING_INITHANGS)
  for (;;) pause();
#endif
  return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "this is a fixture");
}

static const bp_capability send_op = {
    .struct_size = sizeof send_op, .op = BP_SEND, .dtypes = BP_BIT(BP_U8), .memory = BP_BIT(BP_HOST)};
static const bp_capability recv_op = {
    .struct_size = sizeof recv_op, .op = BP_RECV, .dtypes = BP_BIT(BP_U8), .memory = BP_BIT(BP_HOST)};
static const bp_capability* const capabilities[] = {&send_op, &recv_op};
static const bp_backend backend = {.struct_size = sizeof backend,
                                   .kinds = BP_KIND_PROCESS_GROUP,
                                   .flags = BP_BACKEND_TAGS,
#if defined(MISBEHAVING_WILD)
                                   .option_count = 3,
                                   .id = WILD,
                                   .version = WILD,
                                   .summary = WILD,
                                   .options = WILD,
                                   .capabilities = WILD,
#else
                                   .id = "misbehaving",
                                   .version = "1.0",
                                   .summary = "a fixture",
                                   .capabilities = capabilities,
#endif
                                   .capability_count = 2,
                                   .init = init};
static const bp_backend* const backends[] = {&backend};
BP_EXPORT const bp_plugin bp_plugin_v1 = {sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "the tests", backends, 1, 0};
#if defined(MISBEHAVING_WILD)
const void* const unused[] = {capabilities};
#endif
