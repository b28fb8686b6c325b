/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions of the layout of every struct of the ABI: the offset of each field, and the size of the struct at each
 * minor version. Lines are only ever appended: a new field gets a BP_AT line, followed by a BP_SIZE line with the
 * struct's new size. A line that no longer compiles means that the change breaks every released plugin.
 */
#ifndef BACKPLANE_ABI_LAYOUT_H
#define BACKPLANE_ABI_LAYOUT_H

#include "ext/calls.h"
#include "ext/device.h"
#include "ext/interrupt.h"
#include "ext/memory.h"
#include "ext/native.h"
#include "ext/network.h"
#include "ext/notify.h"
#include "ext/plan.h"
#include "ext/probe.h"
#include "ext/reduce.h"
#include "ext/rpc.h"
#include "ext/security.h"
#include "note.h"
#include "plugin.h"

BP_STATIC_ASSERT(sizeof(void*) == 8 && sizeof(int) == 4, "Backplane needs a 64-bit platform with 32-bit int");
BP_STATIC_ASSERT(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Backplane needs a little-endian platform");

#define BP_AT(type, field, offset) BP_STATIC_ASSERT(offsetof(type, field) == (offset), #type "." #field " moved")
#define BP_SIZE(type, size) BP_STATIC_ASSERT(sizeof(type) >= (size), #type " shrank")
#define BP_FROZEN(type, size) BP_STATIC_ASSERT(sizeof(type) == (size), #type " is frozen and changed its size")

BP_AT(bp_error, struct_size, 0);
BP_AT(bp_error, status, 4);
BP_AT(bp_error, native_code, 8);
BP_AT(bp_error, peer_rank, 16);
BP_AT(bp_error, reserved, 20);
BP_AT(bp_error, text, 24);
BP_AT(bp_error, group, 1048);
BP_SIZE(bp_error, 1112);

BP_AT(bp_buffer, data, 0);
BP_AT(bp_buffer, count, 8);
BP_AT(bp_buffer, memory, 16);
BP_AT(bp_buffer, device, 20);
BP_SIZE(bp_buffer, 24);

BP_AT(bp_result, struct_size, 0);
BP_AT(bp_result, source, 4);
BP_AT(bp_result, bytes, 8);
BP_AT(bp_result, tag, 16);
BP_SIZE(bp_result, 24);

BP_AT(bp_op, struct_size, 0);
BP_AT(bp_op, kind, 4);
BP_AT(bp_op, dtype, 8);
BP_AT(bp_op, reduce_op, 12);
BP_AT(bp_op, root, 16);
BP_AT(bp_op, peer, 20);
BP_AT(bp_op, tag, 24);
BP_AT(bp_op, seq, 32);
BP_AT(bp_op, flags, 40);
BP_AT(bp_op, timeout_ns, 48);
BP_AT(bp_op, input, 56);
BP_AT(bp_op, output, 80);
BP_AT(bp_op, in_counts, 104);
BP_AT(bp_op, in_displs, 112);
BP_AT(bp_op, out_counts, 120);
BP_AT(bp_op, out_displs, 128);
BP_AT(bp_op, scalar, 136);
BP_AT(bp_op, stream, 144);
BP_AT(bp_op, result, 152);
BP_AT(bp_op, message, 160);
BP_SIZE(bp_op, 168);

BP_AT(bp_option, struct_size, 0);
BP_AT(bp_option, type, 4);
BP_AT(bp_option, flags, 8);
BP_AT(bp_option, reserved, 12);
BP_AT(bp_option, key, 16);
BP_AT(bp_option, default_value, 24);
BP_AT(bp_option, help, 32);
BP_AT(bp_option, choices, 40);
BP_AT(bp_option, min, 48);
BP_AT(bp_option, max, 56);
BP_SIZE(bp_option, 64);

BP_AT(bp_key_value, key, 0);
BP_AT(bp_key_value, value, 8);
BP_SIZE(bp_key_value, 16);

BP_AT(bp_host, struct_size, 0);
BP_AT(bp_host, abi_minor, 4);
BP_AT(bp_host, ctx, 8);
BP_AT(bp_host, log, 16);
BP_AT(bp_host, abort_requested, 24);
BP_AT(bp_host, store_set, 32);
BP_AT(bp_host, store_get, 40);
BP_AT(bp_host, store_add, 48);
BP_AT(bp_host, store_wait, 56);
BP_AT(bp_host, store_compare_set, 64);
BP_AT(bp_host, store_delete, 72);
BP_AT(bp_host, extension, 80);
BP_AT(bp_host, report_failure, 88);
BP_SIZE(bp_host, 96);

BP_AT(bp_process_group_api, struct_size, 0);
BP_AT(bp_process_group_api, reserved, 4);
BP_AT(bp_process_group_api, submit, 8);
BP_AT(bp_process_group_api, work_test, 16);
BP_AT(bp_process_group_api, work_wait, 24);
BP_AT(bp_process_group_api, work_cancel, 32);
BP_AT(bp_process_group_api, work_release, 40);
BP_AT(bp_process_group_api, abort, 48);
BP_AT(bp_process_group_api, destroy, 56);
BP_AT(bp_process_group_api, extension, 64);
BP_SIZE(bp_process_group_api, 72);

BP_AT(bp_capability, struct_size, 0);
BP_AT(bp_capability, op, 4);
BP_AT(bp_capability, dtypes, 8);
BP_AT(bp_capability, reduce_ops, 16);
BP_AT(bp_capability, memory, 24);
BP_SIZE(bp_capability, 32);

BP_AT(bp_options_request, struct_size, 0);
BP_AT(bp_options_request, value_count, 4);
BP_AT(bp_options_request, values, 8);
BP_AT(bp_options_request, rpc_timeout_ns, 16);
BP_AT(bp_options_request, init_method, 24);
BP_SIZE(bp_options_request, 32);

BP_AT(bp_init, struct_size, 0);
BP_AT(bp_init, rank, 4);
BP_AT(bp_init, world_size, 8);
BP_AT(bp_init, device, 12);
BP_AT(bp_init, name, 16);
BP_AT(bp_init, host, 24);
BP_AT(bp_init, options, 32);
BP_AT(bp_init, values, 40);
BP_AT(bp_init, value_count, 48);
BP_AT(bp_init, kind, 52);
BP_AT(bp_init, timeout_ns, 56);
BP_AT(bp_init, global_ranks, 64);
BP_AT(bp_init, inner, 72);
BP_AT(bp_init, parent, 80);
BP_AT(bp_init, parent_ranks, 88);
BP_AT(bp_init, inner_backend, 96);
BP_SIZE(bp_init, 104);

BP_AT(bp_agent, struct_size, 0);
BP_AT(bp_agent, kind, 4);
BP_AT(bp_agent, api, 8);
BP_AT(bp_agent, self, 16);
BP_AT(bp_agent, rank, 24);
BP_AT(bp_agent, world_size, 28);
BP_AT(bp_agent, capabilities, 32);
BP_AT(bp_agent, capability_count, 40);
BP_AT(bp_agent, reserved, 44);
BP_SIZE(bp_agent, 48);

BP_AT(bp_backend, struct_size, 0);
BP_AT(bp_backend, kinds, 4);
BP_AT(bp_backend, flags, 8);
BP_AT(bp_backend, option_count, 12);
BP_AT(bp_backend, id, 16);
BP_AT(bp_backend, version, 24);
BP_AT(bp_backend, summary, 32);
BP_AT(bp_backend, options, 40);
BP_AT(bp_backend, capabilities, 48);
BP_AT(bp_backend, capability_count, 56);
BP_AT(bp_backend, tag_bits, 60);
BP_AT(bp_backend, probe, 64);
BP_AT(bp_backend, construct_options, 72);
BP_AT(bp_backend, destroy_options, 80);
BP_AT(bp_backend, init, 88);
BP_AT(bp_backend, finalize, 96);
BP_SIZE(bp_backend, 104);

BP_AT(bp_plugin, struct_size, 0);
BP_AT(bp_plugin, magic, 4);
BP_AT(bp_plugin, built_minor, 8);
BP_AT(bp_plugin, need_minor, 12);
BP_AT(bp_plugin, vendor, 16);
BP_AT(bp_plugin, backends, 24);
BP_AT(bp_plugin, backend_count, 32);
BP_AT(bp_plugin, reserved, 36);
BP_SIZE(bp_plugin, 40);

BP_AT(bp_note_header, name_size, 0);
BP_AT(bp_note_header, description_size, 4);
BP_AT(bp_note_header, type, 8);
BP_AT(bp_note_header, name, 12);
BP_AT(bp_note_header, magic, 24);
BP_AT(bp_note_header, abi_major, 28);
BP_AT(bp_note_header, built_minor, 32);
BP_AT(bp_note_header, need_minor, 36);
BP_AT(bp_note_header, backend_count, 40);
BP_AT(bp_note_header, backend_size, 44);
BP_AT(bp_note_header, needs, 48);
BP_SIZE(bp_note_header, 128);

BP_AT(bp_note_backend, id, 0);
BP_AT(bp_note_backend, version, 36);
BP_AT(bp_note_backend, kinds, 60);
BP_AT(bp_note_backend, flags, 64);
BP_AT(bp_note_backend, ops, 68);
BP_AT(bp_note_backend, ops_high, 72);
BP_SIZE(bp_note_backend, 76);

BP_AT(bp_reduce_api, struct_size, 0);
BP_AT(bp_reduce_api, reserved, 4);
BP_AT(bp_reduce_api, combine, 8);
BP_AT(bp_reduce_api, divide, 16);
BP_AT(bp_reduce_api, multiply, 24);
BP_AT(bp_reduce_api, reduce, 32);
BP_SIZE(bp_reduce_api, 40);

BP_AT(bp_security_api, struct_size, 0);
BP_AT(bp_security_api, secure, 4);
BP_SIZE(bp_security_api, 8);

BP_AT(bp_memory_api, struct_size, 0);
BP_AT(bp_memory_api, reserved, 4);
BP_AT(bp_memory_api, ctx, 8);
BP_AT(bp_memory_api, allocate, 16);
BP_AT(bp_memory_api, release, 24);
BP_AT(bp_memory_api, register_memory, 32);
BP_SIZE(bp_memory_api, 40);

BP_AT(bp_device_api, struct_size, 0);
BP_AT(bp_device_api, reserved, 4);
BP_AT(bp_device_api, ctx, 8);
BP_AT(bp_device_api, wait_on_stream, 16);
BP_AT(bp_device_api, copy, 24);
BP_SIZE(bp_device_api, 32);

BP_AT(bp_interrupt_api, struct_size, 0);
BP_AT(bp_interrupt_api, reserved, 4);
BP_AT(bp_interrupt_api, ctx, 8);
BP_AT(bp_interrupt_api, ask, 16);
BP_SIZE(bp_interrupt_api, 24);

BP_AT(bp_notify_api, struct_size, 0);
BP_AT(bp_notify_api, reserved, 4);
BP_AT(bp_notify_api, ctx, 8);
BP_AT(bp_notify_api, on_end, 16);
BP_SIZE(bp_notify_api, 24);

BP_AT(bp_probe_api, struct_size, 0);
BP_AT(bp_probe_api, reserved, 4);
BP_AT(bp_probe_api, ctx, 8);
BP_AT(bp_probe_api, probe, 16);
BP_AT(bp_probe_api, drop, 24);
BP_SIZE(bp_probe_api, 32);

BP_AT(bp_native_api, struct_size, 0);
BP_AT(bp_native_api, reserved, 4);
BP_AT(bp_native_api, type, 8);
BP_AT(bp_native_api, handle, 16);
BP_SIZE(bp_native_api, 24);

BP_AT(bp_plan_api, struct_size, 0);
BP_AT(bp_plan_api, world_size, 4);
BP_SIZE(bp_plan_api, 8);

BP_AT(bp_call, struct_size, 0);
BP_AT(bp_call, peer, 4);
BP_AT(bp_call, served, 8);
BP_AT(bp_call, status, 12);
BP_AT(bp_call, number, 16);
BP_AT(bp_call, begin_ns, 24);
BP_AT(bp_call, end_ns, 32);
BP_AT(bp_call, function, 40);
BP_AT(bp_call, request_bytes, 48);
BP_AT(bp_call, answer_bytes, 56);
BP_SIZE(bp_call, 64);

BP_AT(bp_metric, struct_size, 0);
BP_AT(bp_metric, kind, 4);
BP_AT(bp_metric, name, 8);
BP_AT(bp_metric, peer, 16);
BP_AT(bp_metric, value, 24);
BP_SIZE(bp_metric, 32);

BP_AT(bp_metrics_api, struct_size, 0);
BP_AT(bp_metrics_api, reserved, 4);
BP_AT(bp_metrics_api, ctx, 8);
BP_AT(bp_metrics_api, worker, 16);
BP_AT(bp_metrics_api, visit, 24);
BP_SIZE(bp_metrics_api, 32);

BP_AT(bp_calls_api, struct_size, 0);
BP_AT(bp_calls_api, reserved, 4);
BP_AT(bp_calls_api, ctx, 8);
BP_AT(bp_calls_api, ended, 16);
BP_AT(bp_calls_api, joined, 24);
BP_SIZE(bp_calls_api, 32);

BP_AT(bp_rpc_message, struct_size, 0);
BP_AT(bp_rpc_message, buffer_count, 4);
BP_AT(bp_rpc_message, id, 8);
BP_AT(bp_rpc_message, payload, 16);
BP_AT(bp_rpc_message, payload_size, 24);
BP_AT(bp_rpc_message, buffers, 32);
BP_AT(bp_rpc_message, release, 40);
BP_AT(bp_rpc_message, owner, 48);
BP_SIZE(bp_rpc_message, 56);

BP_AT(bp_rpc_api, struct_size, 0);
BP_AT(bp_rpc_api, reserved, 4);
BP_AT(bp_rpc_api, send, 8);
BP_AT(bp_rpc_api, abort, 16);
BP_AT(bp_rpc_api, destroy, 24);
BP_AT(bp_rpc_api, extension, 32);
BP_SIZE(bp_rpc_api, 40);

BP_AT(bp_rpc_host, struct_size, 0);
BP_AT(bp_rpc_host, inner_flags, 4);
BP_AT(bp_rpc_host, ctx, 8);
BP_AT(bp_rpc_host, received, 16);
BP_AT(bp_rpc_host, failed, 24);
BP_AT(bp_rpc_host, max_message_bytes, 32);
BP_AT(bp_rpc_host, lost, 40);
BP_AT(bp_rpc_host, refused, 48);
BP_SIZE(bp_rpc_host, 56);

BP_AT(bp_network_api, struct_size, 0);
BP_AT(bp_network_api, reserved, 4);
BP_AT(bp_network_api, store_address, 8);
BP_SIZE(bp_network_api, 16);

BP_FROZEN(bp_buffer, 24);
BP_FROZEN(bp_key_value, 16);
BP_FROZEN(bp_note_header, 128);
BP_FROZEN(bp_note_backend, 76);

#undef BP_AT
#undef BP_SIZE
#undef BP_FROZEN

#endif
