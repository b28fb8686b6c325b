// SPDX-License-Identifier: Apache-2.0
//
// Each function of the C API refuses NULL, released handles and impossible counts.
#include <functional>
#include <string>
#include <vector>

#include "backplane/rpc.h"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

struct Wrong {
  const char* call;
  std::function<int32_t(bp_error*)> run;
  const char* words;
};

void expect_answers(const std::vector<Wrong>& all) {
  for (const Wrong& wrong : all) {
    bp_error err;
    bp_error_init(&err);
    EXPECT_EQ(wrong.run(&err), BP_INVALID) << wrong.call;
    EXPECT_NE(std::string(err.text).find(wrong.words), std::string::npos) << wrong.call << ": " << err.text;
    EXPECT_EQ(wrong.run(nullptr), BP_INVALID) << wrong.call << " without an error argument";
  }
}

constexpr uint64_t kTooMany = UINT64_C(1) << 62;

TEST(Names, OfConstantsAndOfTheVersion) {
  EXPECT_EQ(std::to_string(BP_VERSION_MAJOR) + "." + std::to_string(BP_VERSION_MINOR) + "." +
                std::to_string(BP_VERSION_PATCH),
            bp_version());
  EXPECT_EQ(BP_VERSION, BP_VERSION_MAJOR * 10000 + BP_VERSION_MINOR * 100 + BP_VERSION_PATCH);
  EXPECT_STREQ(bp_op_name(BP_EXSCAN), "exscan");
  EXPECT_STREQ(bp_op_name(BP_OP_COUNT), "unknown operation");
  EXPECT_STREQ(bp_reduce_op_name(BP_PREMUL_SUM), "premul_sum");
  EXPECT_STREQ(bp_reduce_op_name(BP_REDUCE_OP_COUNT), "unknown reduce op");
  EXPECT_STREQ(bp_status_name(BP_PEER_LOST), "peer_lost");
  EXPECT_STREQ(bp_status_name(-1), "unknown status");
  EXPECT_STREQ(bp_status_name(BP_INTERNAL + 1), "unknown status");
}

TEST(Arguments, OfStores) {
  bp_store* store = nullptr;
  ASSERT_EQ(bp_store_create_inproc(&store, nullptr), BP_OK);
  bp_store* released = nullptr;
  ASSERT_EQ(bp_store_create_inproc(&released, nullptr), BP_OK);
  bp_store_release(released);
  bp_store_server* stopped = nullptr;
  ASSERT_EQ(bp_store_server_start("127.0.0.1", 0, nullptr, &stopped, nullptr), BP_OK);
  bp_store_server_release(stopped);
  bp_store_callbacks complete;
  bp_store_callbacks_init(&complete);
  complete.set = [](void*, const char*, const void*, uint64_t, int64_t, bp_error*) -> int32_t { return BP_OK; };
  complete.get = [](void*, const char*, bp_store_answer*, int64_t, bp_error*) -> int32_t { return BP_TIMEOUT; };
  complete.add = [](void*, const char*, int64_t, int64_t*, int64_t, bp_error*) -> int32_t { return BP_OK; };
  complete.compare_set = [](void*, const char*, const void*, uint64_t, const void*, uint64_t, bp_store_answer*, int64_t,
                            bp_error*) -> int32_t { return BP_OK; };
  complete.delete_key = [](void*, const char*, int32_t*, int64_t, bp_error*) -> int32_t { return BP_OK; };
  complete.release = [](void*) { ADD_FAILURE() << "released, though no store was made"; };
  // Without one of them.
  const auto custom = [&complete](auto bp_store_callbacks::*missing) {
    return [&complete, missing](bp_error* e) {
      bp_store_callbacks callbacks = complete;
      callbacks.*missing = nullptr;
      bp_store* made = nullptr;
      return bp_store_create_custom(&callbacks, &made, e);
    };
  };
  bp_store_callbacks short_callbacks = complete;
  short_callbacks.struct_size = 8;
  const char* const names[] = {"a", nullptr};
  char* value = nullptr;
  uint64_t size = 0;
  int64_t sum = 0;
  int32_t is_there = 0;
  expect_answers({
      {"server", [](bp_error* e) { return bp_store_server_start("127.0.0.1", 0, nullptr, nullptr, e); }, "`server`"},
      {"server of no host",
       [](bp_error* e) {
         bp_store_server* server = nullptr;
         return bp_store_server_start(nullptr, 0, nullptr, &server, e);
       },
       "`host`"},
      {"server wait", [](bp_error* e) { return bp_store_server_wait(nullptr, 0, e); }, "`server`"},
      {"server wait of released", [&](bp_error* e) { return bp_store_server_wait(stopped, 0, e); }, "was released"},
      {"custom", [&](bp_error* e) { return bp_store_create_custom(&complete, nullptr, e); }, "`store`"},
      {"custom of none", [&](bp_error* e) { return bp_store_create_custom(nullptr, &released, e); }, "`callbacks`"},
      {"custom of little", [&](bp_error* e) { return bp_store_create_custom(&short_callbacks, &released, e); },
       "struct_size is 8"},
      {"custom without set", custom(&bp_store_callbacks::set), "`callbacks->set` must not be NULL"},
      {"custom without get", custom(&bp_store_callbacks::get), "`callbacks->get` must not be NULL"},
      {"custom without add", custom(&bp_store_callbacks::add), "`callbacks->add` must not be NULL"},
      {"custom without compare_set", custom(&bp_store_callbacks::compare_set), "`callbacks->compare_set` must not"},
      {"custom without delete_key", custom(&bp_store_callbacks::delete_key), "`callbacks->delete_key` must not"},
      {"answer", [](bp_error* e) { return bp_store_answer_set(nullptr, "v", 1, e); }, "`answer`"},
      {"connect", [](bp_error* e) { return bp_store_connect("127.0.0.1", 1, nullptr, 0, nullptr, e); }, "`store`"},
      {"inproc", [](bp_error* e) { return bp_store_create_inproc(nullptr, e); }, "`store`"},
      {"prefix", [&](bp_error* e) { return bp_store_create_prefix(store, "p", nullptr, e); }, "`store`"},
      {"prefix of none", [&](bp_error* e) { return bp_store_create_prefix(nullptr, "p", &released, e); }, "`store`"},
      {"set", [&](bp_error* e) { return bp_store_set(nullptr, "a", "v", 1, 0, e); }, "`store`"},
      {"set in released", [&](bp_error* e) { return bp_store_set(released, "a", "v", 1, 0, e); }, "was released"},
      {"set no key", [&](bp_error* e) { return bp_store_set(store, nullptr, "v", 1, 0, e); }, "`key`"},
      {"set no value", [&](bp_error* e) { return bp_store_set(store, "a", nullptr, 1, 0, e); }, "`value`"},
      {"set much", [&](bp_error* e) { return bp_store_set(store, "a", "v", kTooMany, 0, e); }, "at most"},
      {"get", [&](bp_error* e) { return bp_store_get(store, "a", nullptr, &size, 0, e); }, "`value`"},
      {"get no key", [&](bp_error* e) { return bp_store_get(store, nullptr, &value, &size, 0, e); }, "`key`"},
      {"add", [&](bp_error* e) { return bp_store_add(store, "n", 1, nullptr, 0, e); }, "`sum`"},
      {"add to no key", [&](bp_error* e) { return bp_store_add(store, nullptr, 1, &sum, 0, e); }, "`key`"},
      {"wait", [&](bp_error* e) { return bp_store_wait(store, nullptr, 1, 0, e); }, "`keys`"},
      {"wait for a NULL", [&](bp_error* e) { return bp_store_wait(store, names, 2, 0, e); }, "`key`"},
      {"wait for many", [&](bp_error* e) { return bp_store_wait(store, names, kTooMany, 0, e); }, "elements"},
      {"check", [&](bp_error* e) { return bp_store_check(store, names, 1, nullptr, 0, e); }, "`exist`"},
      {"check many", [&](bp_error* e) { return bp_store_check(store, names, kTooMany, &is_there, 0, e); }, "elements"},
      {"compare", [&](bp_error* e) { return bp_store_compare_set(store, "a", "", 0, "v", 1, nullptr, &size, 0, e); },
       "`value`"},
      {"compare with nothing",
       [&](bp_error* e) { return bp_store_compare_set(store, "a", nullptr, 3, "v", 1, &value, &size, 0, e); },
       "`expected`"},
      {"delete", [&](bp_error* e) { return bp_store_delete(store, nullptr, nullptr, 0, e); }, "`key`"},
      {"num_keys", [&](bp_error* e) { return bp_store_num_keys(store, nullptr, 0, e); }, "`count`"},
      {"trace", [&](bp_error* e) { return bp_store_trace(store, nullptr, 0, nullptr, e); }, "`json`"},
      {"trace of none", [&](bp_error* e) { return bp_store_trace(nullptr, nullptr, 0, &value, e); }, "`store`"},
  });
  for (bp_store_server* const gone : {static_cast<bp_store_server*>(nullptr), stopped}) {
    EXPECT_EQ(bp_store_server_port(gone), 0);
    EXPECT_EQ(bp_store_server_address(gone), nullptr);
    bp_store_server_release(gone);
  }
  bp_store_release(released);
  bp_store_release(nullptr);
  bp_store_release(store);
}

TEST(Arguments, OfRegistries) {
  bp_registry* released = nullptr;
  ASSERT_EQ(bp_registry_create(&released, nullptr), BP_OK);
  bp_registry_release(released);
  bp_backend_options* options = nullptr;
  char* json = nullptr;
  const bp_backend_type* type = nullptr;
  ASSERT_EQ(bp_backend_lookup(nullptr, "inproc", &type, nullptr), BP_OK);
  expect_answers({
      {"create", [](bp_error* e) { return bp_registry_create(nullptr, e); }, "`registry`"},
      {"register", [](bp_error* e) { return bp_register_backend(nullptr, nullptr, nullptr, e); }, "`backend`"},
      {"lookup", [](bp_error* e) { return bp_backend_lookup(nullptr, "inproc", nullptr, e); }, "`type`"},
      {"lookup of none", [&](bp_error* e) { return bp_backend_lookup(nullptr, nullptr, &type, e); }, "`name`"},
      {"lookup in released", [&](bp_error* e) { return bp_backend_lookup(released, "inproc", &type, e); },
       "was released"},
      {"options", [&](bp_error* e) { return bp_construct_backend_options(type, 0, nullptr, nullptr, 0, nullptr, e); },
       "`options`"},
      {"options of none",
       [&](bp_error* e) { return bp_construct_backend_options(nullptr, 0, nullptr, nullptr, 0, &options, e); },
       "`type`"},
      {"options without values",
       [&](bp_error* e) { return bp_construct_backend_options(type, 0, nullptr, nullptr, 1, &options, e); },
       "`values`"},
      {"list", [](bp_error* e) { return bp_registry_list(nullptr, nullptr, e); }, "`json`"},
      {"info", [](bp_error* e) { return bp_registry_info(nullptr, "inproc", nullptr, e); }, "`json`"},
      {"info of none", [&](bp_error* e) { return bp_registry_info(nullptr, nullptr, &json, e); }, "`name`"},
      {"probe", [](bp_error* e) { return bp_registry_probe(nullptr, nullptr, e); }, "`name`"},
      {"file", [](bp_error* e) { return bp_plugin_file_info("x", nullptr, e); }, "`json`"},
      {"no file", [&](bp_error* e) { return bp_plugin_file_info(nullptr, &json, e); }, "`path`"},
  });
  EXPECT_EQ(bp_backend_registered(nullptr, nullptr), 0);
  EXPECT_EQ(bp_backend_type_name(nullptr), nullptr);
  EXPECT_EQ(bp_backend_options_get(nullptr, "key"), nullptr);
  bp_backend_options_release(nullptr);
  bp_registry_release(released);
  bp_registry_release(nullptr);
}

TEST(Arguments, OfGroups) {
  bp_group_config config;
  bp_group_config_init(&config);
  bp_store* store = nullptr;
  ASSERT_EQ(bp_store_create_inproc(&store, nullptr), BP_OK);
  config.store = store;
  config.rank = 0;
  config.world_size = 1;
  config.backend = "inproc";
  bp_group* group = nullptr;
  ASSERT_EQ(bp_group_create(&config, &group, nullptr), BP_OK);
  bp_group* released = bp_group_retain(group);
  bp_group_release(released);
  bp_group* made = nullptr;
  bp_op op;
  bp_op_init(&op, BP_BARRIER);
  const bp_op* const none[] = {nullptr};
  bp_request* request = nullptr;
  char* json = nullptr;
  bp_memory* memory = nullptr;
  bp_objects* objects = nullptr;
  uint32_t word = 0;
  bp_op untyped;
  bp_op_init(&untyped, BP_ALL_REDUCE);
  bp_op large;
  bp_op_init(&large, BP_ALL_REDUCE);
  large.dtype = BP_U32;
  large.input = large.output = {&word, UINT64_C(1) << 50, BP_HOST, 0};
  bp_message* message = nullptr;
  bp_result result = {sizeof result, 5, 5, 5};
  uint64_t index = 0;
  const uint64_t sizes[] = {1};
  const void* const nothing[] = {nullptr};
  bp_group_config short_config = config;
  short_config.struct_size = 8;
  expect_answers({
      {"init", [](bp_error* e) { return bp_init_process_group(nullptr, nullptr, e); }, "`config`"},
      {"run without a dtype", [&](bp_error* e) { return bp_group_run(group, &untyped, e); }, "dtype has not been set"},
      {"default", [](bp_error* e) { return bp_default_group(nullptr, e); }, "`group`"},
      {"create", [&](bp_error* e) { return bp_group_create(&config, nullptr, e); }, "`group`"},
      {"create of none", [&](bp_error* e) { return bp_group_create(nullptr, &made, e); }, "`config`"},
      {"create of little", [&](bp_error* e) { return bp_group_create(&short_config, &made, e); }, "struct_size is 8"},
      {"new", [&](bp_error* e) { return bp_group_new(group, &config.rank, 1, nullptr, 0, nullptr, e); }, "`group`"},
      {"new of none", [&](bp_error* e) { return bp_group_new(group, nullptr, 1, nullptr, 0, &made, e); }, "`ranks`"},
      {"new of many", [&](bp_error* e) { return bp_group_new(group, &config.rank, kTooMany, nullptr, 0, &made, e); },
       "elements"},
      {"with_backend", [&](bp_error* e) { return bp_group_with_backend(group, "inproc", 0, nullptr, e); }, "`group`"},
      {"split", [&](bp_error* e) { return bp_group_split(group, 0, 0, nullptr, e); }, "`group`"},
      {"shrink", [&](bp_error* e) { return bp_group_shrink(group, 0, nullptr, e); }, "`shrunk`"},
      {"shrink of none", [&](bp_error* e) { return bp_group_shrink(nullptr, 0, &made, e); }, "`group`"},
      {"grow", [&](bp_error* e) { return bp_group_grow(group, nullptr, 0, &made, e); }, "`store`"},
      {"grow into nothing", [&](bp_error* e) { return bp_group_grow(group, nullptr, 0, nullptr, e); }, "`grown`"},
      {"join", [&](bp_error* e) { return bp_group_join(nullptr, 0, &made, e); }, "`config`"},
      {"newcomers", [](bp_error* e) { return bp_store_newcomers(nullptr, nullptr, 0, e); }, "`count`"},
      {"destroy", [](bp_error* e) { return bp_group_destroy(nullptr, e); }, "`group`"},
      {"destroy released", [&](bp_error* e) { return bp_group_destroy(released, e); }, "`group` was released"},
      {"abort", [](bp_error* e) { return bp_group_abort(nullptr, "why", e); }, "`group`"},
      {"run", [&](bp_error* e) { return bp_group_run(nullptr, &op, e); }, "`group`"},
      {"run in released", [&](bp_error* e) { return bp_group_run(released, &op, e); }, "`group` was released"},
      {"run of none", [&](bp_error* e) { return bp_group_run(group, nullptr, e); }, "`op`"},
      {"run of what no memory holds", [&](bp_error* e) { return bp_group_run(group, &large, e); }, "elements"},
      {"submit", [&](bp_error* e) { return bp_group_submit(group, &op, nullptr, e); }, "`request`"},
      {"submit of none", [&](bp_error* e) { return bp_group_submit(group, nullptr, &request, e); }, "`op`"},
      {"batch", [&](bp_error* e) { return bp_group_submit_batch(group, nullptr, 1, &request, e); }, "`ops`"},
      {"batch of a NULL", [&](bp_error* e) { return bp_group_submit_batch(group, none, 1, &request, e); }, "`op`"},
      {"batch of many", [&](bp_error* e) { return bp_group_submit_batch(group, none, kTooMany, &request, e); },
       "elements"},
      {"test", [](bp_error* e) { return bp_request_test(nullptr, e); }, "`request`"},
      {"wait", [](bp_error* e) { return bp_request_wait(nullptr, 0, e); }, "`request`"},
      {"wait on stream", [](bp_error* e) { return bp_request_wait_on_stream(nullptr, nullptr, e); }, "`request`"},
      {"allocate", [&](bp_error* e) { return bp_group_allocate(group, 8, BP_HOST, 0, nullptr, e); }, "`result`"},
      {"allocate in none", [&](bp_error* e) { return bp_group_allocate(nullptr, 8, BP_HOST, 0, &memory, e); },
       "`group`"},
      {"objects",
       [&](bp_error* e) { return bp_group_exchange_objects(group, BP_GATHER, 0, nothing, sizes, 1, 0, nullptr, e); },
       "`out`"},
      {"objects of none",
       [&](bp_error* e) { return bp_group_exchange_objects(group, BP_GATHER, 0, nullptr, sizes, 1, 0, &objects, e); },
       "`in`"},
      {"objects without sizes",
       [&](bp_error* e) { return bp_group_exchange_objects(group, BP_GATHER, 0, nothing, nullptr, 1, 0, &objects, e); },
       "`in_sizes`"},
      {"objects without bytes",
       [&](bp_error* e) { return bp_group_exchange_objects(group, BP_GATHER, 0, nothing, sizes, 1, 0, &objects, e); },
       "`in[i]`"},
      {"new by members", [&](bp_error* e) { return bp_group_new_by_members(group, nullptr, 1, nullptr, 0, &made, e); },
       "`ranks`"},
      {"status", [](bp_error* e) { return bp_group_status(nullptr, e); }, "`group`"},
      {"status of released", [&](bp_error* e) { return bp_group_status(released, e); }, "`group` was released"},
      {"sendrecv", [&](bp_error* e) { return bp_group_sendrecv(group, nullptr, &op, e); }, "`send`"},
      {"sendrecv of others", [&](bp_error* e) { return bp_group_sendrecv(group, &op, &op, e); }, "a send and a recv"},
      {"list", [&](bp_error* e) { return bp_group_run_list(group, nullptr, nullptr, nullptr, nullptr, e); }, "`op`"},
      {"list of none", [&](bp_error* e) { return bp_group_run_list(nullptr, &op, nullptr, nullptr, nullptr, e); },
       "`group`"},
      {"probe", [&](bp_error* e) { return bp_group_probe(group, 0, 0, 0, nullptr, &result, e); }, "`message`"},
      {"probe without result", [&](bp_error* e) { return bp_group_probe(group, 0, 0, 0, &message, nullptr, e); },
       "`result`"},
      {"wait_any", [&](bp_error* e) { return bp_request_wait_any(nullptr, 1, 0, &index, e); }, "`requests`"},
      {"wait_any of a NULL", [&](bp_error* e) { return bp_request_wait_any(&request, 1, 0, &index, e); }, "`request`"},
      {"wait_any of none", [&](bp_error* e) { return bp_request_wait_any(&request, 0, 0, &index, e); }, "at least one"},
      {"wait_any without index", [&](bp_error* e) { return bp_request_wait_any(&request, 1, 0, nullptr, e); },
       "`index`"},
      {"on_done", [](bp_error* e) { return bp_request_on_done(nullptr, nullptr, nullptr, e); }, "`ended`"},
      {"register", [&](bp_error* e) { return bp_group_register(group, &word, 4, BP_HOST, 0, nullptr, e); }, "`result`"},
      {"register nothing", [&](bp_error* e) { return bp_group_register(group, nullptr, 4, BP_HOST, 0, &memory, e); },
       "`data`"},
      {"register what no memory holds",
       [&](bp_error* e) { return bp_group_register(group, &word, kTooMany, BP_HOST, 0, &memory, e); }, "bytes"},
      {"send_object", [&](bp_error* e) { return bp_group_send_object(group, nullptr, 1, 0, 0, 0, e); }, "`object`"},
      {"recv_object", [&](bp_error* e) { return bp_group_recv_object(group, 0, 0, 0, nullptr, nullptr, e); }, "`out`"},
      {"trace", [&](bp_error* e) { return bp_group_trace(group, nullptr, e); }, "`json`"},
      {"trace of none", [&](bp_error* e) { return bp_group_trace(nullptr, &json, e); }, "`group`"},
  });
  for (bp_group* const gone : {static_cast<bp_group*>(nullptr), released}) {
    EXPECT_EQ(bp_group_rank(gone), -1);
    EXPECT_EQ(bp_group_world_size(gone), -1);
    EXPECT_EQ(bp_group_name(gone), nullptr);
    EXPECT_EQ(bp_group_backend(gone, BP_HOST), nullptr);
    EXPECT_EQ(bp_group_global_rank(gone, 0), -1);
    EXPECT_EQ(bp_group_retain(gone), nullptr);
    EXPECT_EQ(bp_group_extension(gone, BP_HOST, "backplane.native/1"), nullptr);
    bp_group_release(gone);
  }
  ASSERT_EQ(bp_group_submit(group, &op, &request, nullptr), BP_OK);
  bp_request_release(request);
  for (bp_request* const gone : {static_cast<bp_request*>(nullptr), request}) {
    bp_request_cancel(gone);
    bp_request_result(gone, &result);
    EXPECT_EQ(result.source, -1);
    EXPECT_EQ(result.bytes, 0U);
    EXPECT_EQ(bp_request_test(gone, nullptr), BP_INVALID);
    bp_request_release(gone);
  }
  EXPECT_EQ(bp_group_extension(group, BP_HOST, nullptr), nullptr);
  bp_message_release(nullptr);
  EXPECT_EQ(bp_memory_data(nullptr), nullptr);
  EXPECT_EQ(bp_memory_native(nullptr), 0);
  bp_memory_release(nullptr);
  EXPECT_EQ(bp_objects_count(nullptr), 0U);
  EXPECT_EQ(bp_objects_get(nullptr, 0, nullptr), nullptr);
  bp_objects_release(nullptr);
  bp_group_release(group);
  bp_store_release(store);
}

TEST(Arguments, OfWorkers) {
  bp_rpc* worker = nullptr;
  bp_rref* ref = nullptr;
  bp_objects* objects = nullptr;
  char* json = nullptr;
  int32_t rank = 0;
  const bp_rpc_function nothing = [](void*, const bp_rpc_payload*, bp_rpc_value*, bp_error*) -> int32_t {
    return BP_OK;
  };
  const bp_rpc_done ignore = [](void*, bp_rpc_payload*, const bp_error*) {};
  bp_rpc_content content = {};
  content.struct_size = sizeof content;
  bp_rpc_value value = {};
  value.struct_size = sizeof value;
  bp_rpc_config config;
  bp_rpc_config_init(&config);
  bp_rpc_config short_config = config;
  short_config.struct_size = 8;
  void* object = nullptr;
  expect_answers({
      {"init", [&](bp_error* e) { return bp_rpc_init(&config, nullptr, e); }, "`rpc`"},
      {"init of none", [&](bp_error* e) { return bp_rpc_init(nullptr, &worker, e); }, "`config`"},
      {"init of little", [&](bp_error* e) { return bp_rpc_init(&short_config, &worker, e); }, "struct_size is 8"},
      {"current", [](bp_error* e) { return bp_rpc_current(nullptr, e); }, "`rpc`"},
      {"find", [&](bp_error* e) { return bp_rpc_find(nullptr, "a", &rank, e); }, "`rpc`"},
      {"find into nothing", [](bp_error* e) { return bp_rpc_find(nullptr, "a", nullptr, e); }, "`rank`"},
      {"all_gather", [&](bp_error* e) { return bp_rpc_all_gather(nullptr, "a", 1, 0, &objects, e); }, "`rpc`"},
      {"all_gather of nothing", [&](bp_error* e) { return bp_rpc_all_gather(nullptr, nullptr, 1, 0, &objects, e); },
       "`data`"},
      {"shutdown", [](bp_error* e) { return bp_rpc_shutdown(nullptr, 1, 0, nullptr, e); }, "`rpc`"},
      {"metrics", [&](bp_error* e) { return bp_rpc_metrics(nullptr, &json, e); }, "`rpc`"},
      {"register", [&](bp_error* e) { return bp_rpc_register(nullptr, nothing, nullptr, e); }, "`name`"},
      {"register nothing", [](bp_error* e) { return bp_rpc_register("a", nullptr, nullptr, e); }, "`function`"},
      {"register_inline", [](bp_error* e) { return bp_rpc_register_inline("a", nullptr, nullptr, e); }, "`function`"},
      {"call", [&](bp_error* e) { return bp_rpc_call(nullptr, 0, "a", &content, 0, ignore, nullptr, nullptr, e); },
       "`rpc`"},
      {"call without arguments",
       [&](bp_error* e) { return bp_rpc_call(nullptr, 0, "a", nullptr, 0, ignore, nullptr, nullptr, e); },
       "`arguments`"},
      {"call without a worker",
       [&](bp_error* e) { return bp_rpc_call(nullptr, 0, "a", &content, 0, nullptr, nullptr, nullptr, e); }, "`done`"},
      {"remote", [&](bp_error* e) { return bp_rpc_remote(nullptr, 0, "a", &content, 0, &ref, e); }, "`rpc`"},
      {"remote without arguments", [&](bp_error* e) { return bp_rpc_remote(nullptr, 0, "a", nullptr, 0, &ref, e); },
       "`arguments`"},
      {"remote into nothing", [&](bp_error* e) { return bp_rpc_remote(nullptr, 0, "a", &content, 0, nullptr, e); },
       "`ref`"},
      {"create", [&](bp_error* e) { return bp_rref_create(nullptr, nullptr, &ref, e); }, "`value`"},
      {"create into nothing", [&](bp_error* e) { return bp_rref_create(nullptr, &value, nullptr, e); }, "`ref`"},
      {"fetch", [&](bp_error* e) { return bp_rref_fetch(nullptr, 0, ignore, nullptr, nullptr, e); }, "`ref`"},
      {"local", [&](bp_error* e) { return bp_rref_local(nullptr, 0, &object, e); }, "`ref`"},
      {"local into nothing", [](bp_error* e) { return bp_rref_local(nullptr, 0, nullptr, e); }, "`object`"},
      {"worker", [&](bp_error* e) { return bp_rref_worker(nullptr, &worker, e); }, "`ref`"},
      {"worker into nothing", [](bp_error* e) { return bp_rref_worker(nullptr, nullptr, e); }, "`rpc`"},
  });
  EXPECT_EQ(bp_rpc_rank(nullptr), -1);
  EXPECT_EQ(bp_rpc_world_size(nullptr), -1);
  EXPECT_EQ(bp_rpc_backend(nullptr), nullptr);
  EXPECT_EQ(bp_rpc_worker_name(nullptr, 0), nullptr);
  EXPECT_EQ(bp_rref_owner(nullptr), -1);
  EXPECT_EQ(bp_rpc_payload_data(nullptr, nullptr), nullptr);
  EXPECT_EQ(bp_rpc_payload_buffers(nullptr), 0U);
  EXPECT_EQ(bp_rpc_payload_ref(nullptr, 0), nullptr);
  EXPECT_EQ(bp_rpc_payload_retain(nullptr), nullptr);
  bp_rpc_payload_buffer(nullptr, 0, nullptr);
  bp_rpc_cancel(nullptr, 1);
  bp_rpc_run(nullptr, nullptr, nullptr);
  bp_rpc_payload_release(nullptr);
  bp_rref_release(nullptr);
  bp_rpc_release(nullptr);
}

}  // namespace
}  // namespace backplane::test
