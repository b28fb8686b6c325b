// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <new>
#include <numeric>
#include <set>

#include "backplane/rpc.h"
#include "capi/default_group.hpp"
#include "capi/handles.hpp"
#include "capi/job.hpp"
#include "liveness/exit_handler.hpp"
#include "process.hpp"
#include "registry/selection.hpp"
#include "rpc/wait.hpp"
#include "rpc/worker.hpp"

using namespace backplane::core;  // NOLINT: the C API is outside the namespace
using rpc::Done;
using rpc::Payload;
using rpc::Worker;

struct bp_rpc : Handle<bp_rpc> {
  std::shared_ptr<Worker> worker;
};

namespace {

// The workers of the process that have joined and not left.
struct Workers {
  std::mutex mutex;
  std::set<std::shared_ptr<Worker>> all;
  std::shared_ptr<Worker> own;
  bool joining = false;  // the default worker is joining
  const ExitHandler exit_handler{ExitHandler::Order::kWorkers,
                                 [this](const Deadline& deadline) { leave_at_exit(deadline); }};

  void leave_at_exit(const Deadline& deadline) {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex);
      for (const auto& worker : all)
        tasks.push_back([worker, deadline] { worker->lifecycle().leave_at_exit(deadline); });
    }
    run_tasks_until(deadline, std::move(tasks));
  }
};

Workers& workers() {
  static constinit PerProcess<Workers> instance;
  return *instance;
}

Worker& worker_of(const bp_rpc* handle) { return *live(handle, "rpc").worker; }

rpc::Ref& ref_of(const bp_rref* handle) { return *live(handle, "ref").ref; }

const std::string& name_of(const Worker& worker) { return worker.peers().own_name(); }

// A function of the API on a worker, whose name it puts into *err.
template <typename Body>
int32_t worker_call(const bp_rpc* rpc, bp_error* err, Body&& body) noexcept {
  const int32_t status = api_call(err, std::forward<Body>(body));
  if (status != BP_OK && err != nullptr && is_live(rpc)) name_group(err, name_of(*rpc->worker));
  return status;
}

std::optional<Error> contradiction(const bp_rpc_config& config, const GroupConfig& own) {
  if (config.rank >= 0 && config.rank != own.rank) {
    return Error(BP_INVALID, fmt::format("rank argument {} doesn't match pg rank {}", config.rank, own.rank));
  }
  if (config.world_size >= 0 && config.world_size != own.world_size) {
    return Error(BP_INVALID,
                 fmt::format("world_size argument {} doesn't match pg size {}", config.world_size, own.world_size));
  }
  return std::nullopt;
}

// The config, completed with defaults. Without an init method it gets that of its options, unless that is "env://": as
// the default of options, "env://" may not have been chosen, and the ranks of the default group take precedence.
bp_rpc_config complete(const bp_rpc_config& config) {
  constexpr size_t kFirstSize = offsetof(bp_rpc_config, rpc_timeout_ns) + sizeof config.rpc_timeout_ns;
  bp_rpc_config made;
  bp_rpc_config_init(&made);
  take_known(config, kFirstSize, "bp_rpc_config", &made);
  if (made.init_method != nullptr && *made.init_method == '\0') made.init_method = nullptr;
  if (made.options == nullptr || made.init_method != nullptr) return made;
  const std::string& from_options = live(made.options, "options").init_method;
  if (!from_options.empty() && from_options != "env://") made.init_method = from_options.c_str();
  return made;
}

// The default group, if there is one and the config names no store and no init method.
std::shared_ptr<Group> parent_group(const bp_rpc_config& config) {
  return config.store == nullptr && config.init_method == nullptr ? default_group() : nullptr;
}

// Makes the workers' group: of the ranks of the default group, or by rendezvous. A worker with a problem joins it as
// well, because the others wait for it.
std::shared_ptr<Group> make_group(const bp_rpc_config& config, std::optional<Error>* problem) {
  if (const std::shared_ptr<Group> parent = parent_group(config)) {
    const GroupConfig& own = parent->config();
    if (!*problem) *problem = contradiction(config, own);
    std::vector<int32_t> ranks(static_cast<size_t>(own.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return parent->subgroups().new_group(ranks, "rpc", config.timeout_ns);
  }
  bp_group_config group;
  bp_group_config_init(&group);
  group.rank = config.rank;
  group.world_size = config.world_size;
  group.backend = config.group;
  group.init_method = config.init_method;
  group.name = "rpc";
  group.store = config.store;
  group.registry = config.registry;
  group.timeout_ns = config.timeout_ns;
  return create_group(group);
}

std::shared_ptr<Worker> join(const bp_rpc_config& config) {
  rpc::WorkerConfig made;
  made.name = config.name == nullptr ? "" : config.name;
  made.registry = &registry_of(config.registry);
  if (config.options != nullptr) made.options = config.options->options;
  if (!made.options) made.backend = requested_or(config.backend, "BACKPLANE_RPC_BACKEND");
  if (made.options && config.backend != nullptr) made.backend = config.backend;
  made.timeout_ns = timeout_or(config.timeout_ns, BP_DEFAULT_TIMEOUT_NS);
  const int64_t default_ns = made.options ? made.options->rpc_timeout_ns() : BP_DEFAULT_RPC_TIMEOUT_NS;
  made.rpc_timeout_ns = timeout_or(config.rpc_timeout_ns, default_ns);
  if (config.init_method != nullptr) made.init_method = config.init_method;
  made.group = make_group(config, &made.problem);
  return Worker::join(made);
}

// Joins only to report why this process cannot, because the other workers may wait for it. Waits for them at most 10 s:
// they may not exist.
[[noreturn]] void report_problem(bp_rpc_config config, const Error& problem) {
  constexpr int64_t kReportNs = INT64_C(10) * 1000000000;
  if (config.timeout_ns < 0 || config.timeout_ns > kReportNs) config.timeout_ns = kReportNs;
  rpc::WorkerConfig made;
  made.name = config.name == nullptr ? "" : config.name;
  made.registry = &registry_of(config.registry);
  made.timeout_ns = config.timeout_ns;
  made.problem = problem;
  try {
    made.group = make_group(config, &made.problem);
  } catch (const std::exception&) {  // no other worker joined
    throw Error(problem);
  }
  Worker::join(made);
  throw Error(problem);
}

// Reserves the role of default worker, of which a process has one at a time.
class DefaultClaim {
 public:
  explicit DefaultClaim(const bp_rpc_config& config) {
    if (config.is_default == 0) return;
    const std::lock_guard lock(workers().mutex);
    if (workers().own || workers().joining) {
      const Error twice(BP_INVALID, "RPC is already initialized in this process; call shutdown first");
      if (workers().joining || !others_may_wait(*workers().own, config)) throw Error(twice);
      problem_.emplace(twice);
      return;
    }
    workers().joining = holds_ = true;
  }
  ~DefaultClaim() {
    if (!holds_) return;
    const std::lock_guard lock(workers().mutex);
    workers().joining = false;
  }
  DefaultClaim(const DefaultClaim&) = delete;
  DefaultClaim& operator=(const DefaultClaim&) = delete;

  // The reason why the worker cannot become the default one, if it must be reported to the other workers.
  const std::optional<Error>& problem() const { return problem_; }

 private:
  // False if all other workers are refused in the same way: they are workers of `own` and all present, or ranks of the
  // default group, which must begin the same operations.
  static bool others_may_wait(const Worker& own, const bp_rpc_config& config) {
    if (parent_group(config)) return false;
    const int32_t size = own.peers().size();
    return (config.world_size >= 0 && config.world_size != size) || own.peers().any_absent();
  }

  bool holds_ = false;
  std::optional<Error> problem_;
};

// `worker` calls the result, and outlives it.
Done done_of(const Worker& worker, bp_rpc_done done, void* ctx) {
  return [&worker, done, ctx](std::shared_ptr<Payload> result, const Error* error) {
    if (error == nullptr) return done(ctx, new_handle<bp_rpc_payload>(std::move(result)), nullptr);
    bp_error err;
    bp_error_init(&err);
    bp_error_set(&err, error->status(), error->native_code(), error->peer_rank(), error->what());
    name_group(&err, name_of(worker));
    done(ctx, nullptr, &err);
  };
}

void register_one(const char* name, bp_rpc_function function, void* ctx, bool is_inline) {
  if (function == nullptr) fail(BP_INVALID, "`function` must not be NULL");
  rpc::register_function(&required(name, "name"), {function, ctx, is_inline});
}

std::string joined(const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, "\n")); }

}  // namespace

extern "C" {

int32_t bp_rpc_init(const bp_rpc_config* config, bp_rpc** rpc, bp_error* err) {
  return api_call(err, [=] {
    required(rpc, "rpc");
    const bp_rpc_config joining = complete(required(config, "config"));
    const DefaultClaim claim(joining);
    if (claim.problem()) report_problem(joining, *claim.problem());
    auto worker = join(joining);
    const std::lock_guard lock(workers().mutex);
    workers().all.insert(worker);
    if (joining.is_default != 0) workers().own = worker;
    *rpc = new_handle<bp_rpc>(std::move(worker));
  });
}
int32_t bp_rpc_current(bp_rpc** rpc, bp_error* err) {
  return api_call(err, [=] {
    required(rpc, "rpc");
    std::shared_ptr<Worker> worker = Worker::current();
    if (!worker) {
      const std::lock_guard lock(workers().mutex);
      worker = workers().own;
    }
    if (!worker) fail(BP_INVALID, "RPC is not initialized in this process; call init_rpc first");
    *rpc = new_handle<bp_rpc>(std::move(worker));
  });
}
void bp_rpc_release(bp_rpc* rpc) { release(rpc); }

int32_t bp_rpc_rank(const bp_rpc* rpc) { return is_live(rpc) ? rpc->worker->peers().own_rank() : -1; }
int32_t bp_rpc_world_size(const bp_rpc* rpc) { return is_live(rpc) ? rpc->worker->peers().size() : -1; }
const char* bp_rpc_backend(const bp_rpc* rpc) { return is_live(rpc) ? rpc->worker->backend().c_str() : nullptr; }
const char* bp_rpc_worker_name(const bp_rpc* rpc, int32_t rank) {
  if (!is_live(rpc)) return nullptr;
  const auto& names = rpc->worker->peers().names();
  return rank < 0 || static_cast<size_t>(rank) >= names.size() ? nullptr : names[static_cast<size_t>(rank)].c_str();
}
int32_t bp_rpc_find(const bp_rpc* rpc, const char* name, int32_t* rank, bp_error* err) {
  return worker_call(rpc, err, [=] {
    store_result(rank, "rank", [=] { return worker_of(rpc).peers().find(&required(name, "name")); });
  });
}

int32_t bp_rpc_all_gather(bp_rpc* rpc, const void* data, uint64_t size, int64_t timeout_ns, bp_objects** out,
                          bp_error* err) {
  return worker_call(rpc, err, [=] {
    if (size > 0) required(static_cast<const char*>(data), "data");
    const std::string_view object =
        size == 0 ? std::string_view() : std::string_view(static_cast<const char*>(data), size);
    store_result(out, "out",
                 [=] { return new_handle<bp_objects>(worker_of(rpc).lifecycle().all_gather(object, timeout_ns)); });
  });
}

int32_t bp_rpc_shutdown(bp_rpc* rpc, int32_t graceful, int64_t timeout_ns, char** leaks, bp_error* err) {
  if (leaks != nullptr) *leaks = nullptr;
  return worker_call(rpc, err, [=] {
    const std::shared_ptr<Worker> worker = worker_of(rpc).shared_from_this();
    std::optional<Error> problem;
    std::vector<std::string> lines;
    try {
      lines = worker->lifecycle().shutdown(graceful != 0, timeout_ns);
    } catch (const Error& error) {
      if (!worker->lifecycle().has_left()) throw;  // the worker still runs
      problem.emplace(error);
    }
    {
      const std::lock_guard lock(workers().mutex);
      workers().all.erase(worker);
      if (workers().own == worker) workers().own.reset();
    }
    if (problem) throw Error(*problem);
    if (leaks != nullptr) *leaks = copy_text(joined(lines));
  });
}
int32_t bp_rpc_metrics(bp_rpc* rpc, char** json, bp_error* err) {
  return worker_call(
      rpc, err, [=] { store_result(json, "json", [=] { return copy_text(worker_of(rpc).report().metrics_json()); }); });
}

int32_t bp_rpc_register(const char* name, bp_rpc_function function, void* ctx, bp_error* err) {
  return api_call(err, [=] { register_one(name, function, ctx, false); });
}
int32_t bp_rpc_register_inline(const char* name, bp_rpc_function function, void* ctx, bp_error* err) {
  return api_call(err, [=] { register_one(name, function, ctx, true); });
}

const void* bp_rpc_payload_data(const bp_rpc_payload* payload, uint64_t* size) {
  const bool is_there = is_live(payload);
  if (size != nullptr) *size = is_there ? payload->payload->data().size() : 0;
  return is_there ? payload->payload->data().data() : nullptr;
}
uint32_t bp_rpc_payload_buffers(const bp_rpc_payload* payload) {
  return is_live(payload) ? static_cast<uint32_t>(payload->payload->buffers().size()) : 0;
}
void bp_rpc_payload_buffer(const bp_rpc_payload* payload, uint32_t index, bp_buffer* buffer) {
  if (buffer == nullptr) return;
  *buffer = index < bp_rpc_payload_buffers(payload) ? payload->payload->buffers()[index] : bp_buffer{};
}
bp_rref* bp_rpc_payload_ref(const bp_rpc_payload* payload, uint32_t index) {
  bp_rref* ref = nullptr;
  guarded(nullptr, [=, &ref] {
    const auto& refs = live(payload, "payload").payload->refs();
    if (index < refs.size()) ref = new_handle<bp_rref>(refs[index]);
  });
  return ref;
}
bp_rpc_payload* bp_rpc_payload_retain(const bp_rpc_payload* payload) {
  bp_rpc_payload* another = nullptr;
  guarded(nullptr, [=, &another] { another = new_handle<bp_rpc_payload>(live(payload, "payload").payload); });
  return another;
}
void bp_rpc_payload_release(bp_rpc_payload* payload) { release(payload); }

int32_t bp_rpc_call(bp_rpc* rpc, int32_t to, const char* function, const bp_rpc_content* arguments, int64_t timeout_ns,
                    bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
  return worker_call(rpc, err, [=] {
    rpc::Content content = rpc::take_content(required(arguments, "arguments"));
    if (done == nullptr) fail(BP_INVALID, "`done` must not be NULL");
    Worker& worker = worker_of(rpc);
    const uint64_t number =
        worker.call(to, &required(function, "function"), std::move(content), timeout_ns, done_of(worker, done, ctx));
    if (id != nullptr) *id = number;
  });
}
void bp_rpc_cancel(bp_rpc* rpc, uint64_t id) {
  guarded(nullptr, [=] { worker_of(rpc).caller().cancel(id); });
}
int32_t bp_rpc_cancelled(void) { return Worker::cancelled() ? 1 : 0; }
void bp_rpc_wait_begin(void) { rpc::begin_wait(); }
void bp_rpc_wait_end(void) { rpc::end_wait(); }
int32_t bp_rpc_wait_briefly(int32_t (*ready)(void* ctx), void* ctx) {
  return rpc::wait_briefly([=] { return ready(ctx) != 0; }) ? 1 : 0;
}
void bp_rpc_run(bp_rpc* rpc, void (*function)(void* ctx), void* ctx) {
  if (function == nullptr) return;
  if (guarded(nullptr, [=] { worker_of(rpc).run([function, ctx] { function(ctx); }); }) != BP_OK) function(ctx);
}

int32_t bp_rpc_remote(bp_rpc* rpc, int32_t to, const char* function, const bp_rpc_content* arguments,
                      int64_t timeout_ns, bp_rref** ref, bp_error* err) {
  return worker_call(rpc, err, [=] {
    rpc::Content content = rpc::take_content(required(arguments, "arguments"));
    store_result(ref, "ref", [=, &content] {
      return new_handle<bp_rref>(
          worker_of(rpc).references().remote(to, &required(function, "function"), std::move(content), timeout_ns));
    });
  });
}
int32_t bp_rref_create(bp_rpc* rpc, const bp_rpc_value* value, bp_rref** ref, bp_error* err) {
  return worker_call(rpc, err, [=] {
    required(ref, "ref");
    auto kept = std::make_shared<rpc::Value>(required(value, "value"));
    *ref = new_handle<bp_rref>(worker_of(rpc).references().create(std::move(kept)));
  });
}
int32_t bp_rref_owner(const bp_rref* ref) { return is_live(ref) ? ref->ref->owner() : -1; }
int32_t bp_rref_fetch(bp_rref* ref, int64_t timeout_ns, bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
  return api_call(err, [=] {
    if (done == nullptr) fail(BP_INVALID, "`done` must not be NULL");
    const std::shared_ptr<Worker> worker = ref_of(ref).worker();
    const uint64_t number = worker->references().fetch(ref->ref, timeout_ns, done_of(*worker, done, ctx));
    if (id != nullptr) *id = number;
  });
}
int32_t bp_rref_local(bp_rref* ref, int64_t timeout_ns, void** object, bp_error* err) {
  return api_call(err, [=] {
    required(object, "object");
    const auto value = ref_of(ref).worker()->references().wait_for(*ref->ref, timeout_ns);
    ref->ref->hold(value);
    *object = value->object();
  });
}
int32_t bp_rref_worker(const bp_rref* ref, bp_rpc** rpc, bp_error* err) {
  return api_call(err, [=] { store_result(rpc, "rpc", [=] { return new_handle<bp_rpc>(ref_of(ref).worker()); }); });
}
void bp_rref_release(bp_rref* ref) { release(ref); }

}  // extern "C"
