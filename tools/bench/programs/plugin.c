/* SPDX-License-Identifier: Apache-2.0
 *
 * A small plugin to be copied a hundred times. list_bench gives each copy an id of its own by overwriting this one. */
#include "backplane/abi/abi.h"

#define ID "bench-000"

static const struct {
  bp_note_header header;
  bp_note_backend backends[1];
} note __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {
    BP_NOTE_HEADER_INIT(1, 0, ""),
    {{ID, "1.0", BP_KIND_PROCESS_GROUP, BP_BACKEND_TAGS, BP_BIT(BP_SEND) | BP_BIT(BP_RECV), 0}}};

static int32_t init(const bp_backend* self, const bp_init* request, bp_agent* agent, bp_error* err) {
  (void)self, (void)request, (void)agent;
  return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "this plugin only serves list_bench");
}

static const bp_capability send_op = {
    .struct_size = sizeof send_op, .op = BP_SEND, .dtypes = BP_BIT(BP_U8), .memory = BP_BIT(BP_HOST)};
static const bp_capability recv_op = {
    .struct_size = sizeof recv_op, .op = BP_RECV, .dtypes = BP_BIT(BP_U8), .memory = BP_BIT(BP_HOST)};
static const bp_capability* const capabilities[] = {&send_op, &recv_op};
static const bp_backend backend = {.struct_size = sizeof backend,
                                   .kinds = BP_KIND_PROCESS_GROUP,
                                   .flags = BP_BACKEND_TAGS,
                                   .id = ID,
                                   .version = "1.0",
                                   .summary = "one of a hundred",
                                   .capabilities = capabilities,
                                   .capability_count = 2,
                                   .init = init};
static const bp_backend* const backends[] = {&backend};
BP_EXPORT const bp_plugin bp_plugin_v1 = {sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "the tests", backends, 1, 0};
