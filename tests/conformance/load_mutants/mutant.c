/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that is right but does nothing, and, by one -D switch each, one that breaks one rule on files, notes and
 * descriptors. CMakeLists.txt lists them under the name of the case that must catch them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "backplane/abi/abi.h"

/* What the descriptor holds, unless a switch says otherwise. */
#ifndef MAGIC
#define MAGIC BP_MAGIC
#endif
#ifndef BUILT
#define BUILT BP_ABI_MINOR
#endif
#ifndef NEED
#define NEED 0
#endif
#ifndef PLUGIN_SIZE
#define PLUGIN_SIZE sizeof(bp_plugin)
#endif
#ifndef VENDOR
#define VENDOR "the tests of Backplane"
#endif
#ifndef TABLE
#define TABLE backends
#endif
#ifndef ENTRY
#define ENTRY &backend
#endif
#ifndef BACKEND_SIZE
#define BACKEND_SIZE sizeof(bp_backend)
#endif
#ifndef KINDS
#define KINDS BP_KIND_PROCESS_GROUP
#endif
#ifndef FLAGS
#define FLAGS BP_BACKEND_TAGS
#endif
#ifndef ID
#define ID "mutant"
#endif
#ifndef VERSION
#define VERSION "1.0"
#endif
#ifndef SUMMARY
#define SUMMARY "a plugin that does nothing"
#endif
#ifndef RESERVED
#define RESERVED 0
#endif
#ifndef TAG_BITS
#define TAG_BITS 0
#endif
#ifndef CONSTRUCT
#define CONSTRUCT NULL
#endif
#ifndef INIT
#define INIT init
#endif
#ifndef CAPABILITY_SIZE
#define CAPABILITY_SIZE sizeof(bp_capability)
#endif
#ifndef FIRST_OP
#define FIRST_OP BP_SEND
#endif
#ifndef SECOND_OP
#define SECOND_OP BP_RECV
#endif
#ifndef DTYPES
#define DTYPES BP_ALL_DTYPES
#endif
#ifndef REDUCE_OPS
#define REDUCE_OPS 0
#endif
#ifndef MEMORY
#define MEMORY BP_BIT(BP_HOST)
#endif
#ifndef OPTION_SIZE
#define OPTION_SIZE sizeof(bp_option)
#endif
#ifndef OPTION_RESERVED
#define OPTION_RESERVED 0
#endif
/* The note, likewise. */
#ifndef NOTE_BUILT
#define NOTE_BUILT BUILT
#endif
#ifndef NOTE_ID
#define NOTE_ID ID
#endif
#ifndef NOTE_VERSION
#define NOTE_VERSION VERSION
#endif
#ifndef NOTE_KINDS
#define NOTE_KINDS KINDS
#endif
#ifndef NOTE_FLAGS
#define NOTE_FLAGS FLAGS
#endif
#ifndef NOTE_OPS
#define NOTE_OPS BP_BIT(BP_SEND) | BP_BIT(BP_RECV)
#endif
#ifndef NOTE_NEEDS
#define NOTE_NEEDS ""
#endif
#ifndef NOTE_COUNT
#define NOTE_COUNT 1
#endif

typedef struct mutant_note {
  bp_note_header header;
  bp_note_backend backends[NOTE_COUNT];
} mutant_note;
#define NOTE(name)                                                                                             \
  static const mutant_note name __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {                \
      {sizeof BP_NOTE_NAME, sizeof(mutant_note) - offsetof(bp_note_header, magic), BP_NOTE_TYPE, BP_NOTE_NAME, \
       BP_MAGIC, BP_ABI_MAJOR, NOTE_BUILT, NEED, NOTE_COUNT, sizeof(bp_note_backend), NOTE_NEEDS},             \
      {{NOTE_ID, NOTE_VERSION, NOTE_KINDS, NOTE_FLAGS, NOTE_OPS, 0}}}
#ifndef NO_NOTE
NOTE(note);
#endif
#ifdef SECOND_NOTE
NOTE(second_note);
#endif

/* What loading does. */
#ifdef AT_LOAD
static void* sleep_on(void* unused) {
  (void)unused;
  for (;;) (void)pause();
  return NULL;
}
static void on_signal(int number) { (void)number; }
static void ignore(long result) { (void)result; }
__attribute__((constructor)) static void at_load(void) {
  pthread_t thread;
  const struct rlimit limit = {100, 100};
  (void)thread, (void)limit, (void)sleep_on, (void)on_signal;
  AT_LOAD;
  ignore(0);
}
#endif

#ifdef UNRESOLVED
extern int32_t symbol_that_nobody_defines(void);
#endif
#ifdef WANTS_CORE
extern const char* bp_version(void) __attribute__((weak));
#endif
#ifdef LINKS_OURS
extern int32_t backplane_stub(void);
#endif
#ifdef ANOTHER_EXPORT
BP_EXPORT int32_t another_export(void);
BP_EXPORT int32_t another_export(void) { return 1; }
#endif
#ifdef UNIQUE
__asm__(
    ".pushsection .data.unique,\"aw\"\n.globl unique_thing\n.type unique_thing, @gnu_unique_object\n"
    ".size unique_thing, 4\nunique_thing: .long 1\n.popsection");
#endif

static int32_t init(const bp_backend* self, const bp_init* request, bp_agent* agent, bp_error* err) {
  (void)self, (void)request, (void)agent;
#ifdef UNRESOLVED
  if (symbol_that_nobody_defines() != 0) return BP_INTERNAL;
#endif
#ifdef WANTS_CORE
  if (bp_version != NULL && bp_version() == NULL) return BP_INTERNAL;
#endif
#ifdef LINKS_OURS
  if (backplane_stub() != 0) return BP_INTERNAL;
#endif
  return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "this backend does nothing");
}

static int32_t construct(const bp_backend* self, const bp_options_request* request, bp_options** options,
                         bp_error* err) {
  (void)self, (void)request, (void)options, (void)err;
  return BP_OK;
}

static const bp_option threads = {OPTION_SIZE, BP_OPTION_INT, 0, OPTION_RESERVED, "threads", "2", "number", NULL, 1,
                                  64};
static const bp_option* const options[] = {&threads};
static const bp_capability first = {CAPABILITY_SIZE, FIRST_OP, DTYPES, REDUCE_OPS, MEMORY};
static const bp_capability second = {sizeof second, SECOND_OP, BP_ALL_DTYPES, 0, BP_BIT(BP_HOST)};
static const bp_capability* const capabilities[] = {&first, &second};
static const bp_backend backend = {BACKEND_SIZE, KINDS, FLAGS,    1,    ID,        VERSION, SUMMARY, options,
                                   capabilities, 2,     TAG_BITS, NULL, CONSTRUCT, NULL,    INIT,    NULL};
#ifdef ID_TWICE
static const bp_backend* const backends[] = {&backend, &backend};
#else
static const bp_backend* const backends[] = {ENTRY};
#endif

#ifdef FUNCTION_ENTRY
BP_EXPORT int32_t entry(void) __asm__(BP_PLUGIN_SYMBOL);
BP_EXPORT int32_t entry(void) { return backends[0] == NULL || construct(NULL, NULL, NULL, NULL); }
#else
#ifdef NO_ENTRY
#define bp_plugin_v1 bp_plugin_v9
BP_EXPORT extern const bp_plugin bp_plugin_v9;
#endif
BP_EXPORT const bp_plugin bp_plugin_v1 = {
    PLUGIN_SIZE, MAGIC, BUILT, NEED, VENDOR, TABLE, (uint32_t)(sizeof backends / sizeof backends[0]), RESERVED};
#endif
