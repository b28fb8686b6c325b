/* SPDX-License-Identifier: Apache-2.0
 *
 *     backplane run -n 4 --backend gloo hello_c
 */
#include <backplane/backplane.h>
#include <inttypes.h>
#include <stdio.h>

static int failed(const char* call, const bp_error* err) {
  fprintf(stderr, "hello_c: %s: %s\n", call, err->text);
  return 1;
}

int main(void) {
  bp_error err;
  bp_error_init(&err);

  bp_group_config config;
  bp_group_config_init(&config);
  bp_group* group = NULL;
  if (bp_init_process_group(&config, &group, &err) != BP_OK) return failed("bp_init_process_group", &err);

  int32_t sum = bp_group_rank(group);
  bp_op all_reduce;
  bp_op_init(&all_reduce, BP_ALL_REDUCE);
  all_reduce.dtype = BP_I32;
  all_reduce.reduce_op = BP_SUM;
  all_reduce.input = all_reduce.output = (bp_buffer){.data = &sum, .count = 1, .memory = BP_HOST};
  if (bp_group_run(group, &all_reduce, &err) != BP_OK) return failed("all_reduce", &err);

  printf("rank %" PRId32 " of %" PRId32 " over %s: the ranks add up to %" PRId32 "\n", bp_group_rank(group),
         bp_group_world_size(group), bp_group_backend(group, BP_HOST), sum);
  bp_group_release(group);
  return bp_destroy_process_group(&err) == BP_OK ? 0 : failed("bp_destroy_process_group", &err);
}
