// SPDX-License-Identifier: Apache-2.0
//
// Remote procedure calls between workers: torch.distributed.rpc for C++.
//
//     rpc::register_function("add", [](int a, int b) { return a + b; });
//     rpc::init_rpc("worker" + std::to_string(rank));
//     int sum = rpc::rpc_sync<int>("worker1", "add", 1, 2);
//     rpc::RRef<int> there = rpc::remote<int>("worker1", "add", 1, 2);  // the value stays on worker1
//     rpc::shutdown();
//
// Functions are registered by name, for the whole process, before the first call. Arguments and results are of any type
// that msgpack-cxx serialises. Vectors of numbers, Array and DeviceArray, as arguments or results of their own, are
// sent beside the message without serialisation:
//
// - an Array is copied only where the transport or the alignment requires it;
// - a vector is copied once at its receiver, and once more if it is an argument that was not moved in, or the value of
//   a reference;
// - a DeviceArray is in the memory of a CUDA device; only TENSORPIPE carries it.
//
// A failed call throws an Error that names worker, function and cause; Error::peer_rank is the worker's rank. All
// functions may be called from any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "backplane/detail/rpc_content.hpp"
#include "backplane/detail/rpc_functions.hpp"
#include "backplane/detail/rpc_future.hpp"
#include "backplane/registry.hpp"
#include "backplane/store.hpp"

namespace backplane::rpc {

struct WorkerInfo {
  std::string name;
  int id = -1;  // its rank
};

// The callee: a name, a rank, or a WorkerInfo, and the timeout of the call: {"worker1", 5s}. kDefaultTimeout is
// RpcOptions::rpc_timeout of the caller, which is 60 s by default.
struct To {
  To(std::string name, Timeout limit = kDefaultTimeout) : worker(std::move(name)), timeout(limit) {}
  To(const char* name, Timeout limit = kDefaultTimeout) : worker(name), timeout(limit) {}
  To(int id, Timeout limit = kDefaultTimeout) : rank(id), timeout(limit) {}
  To(const WorkerInfo& info, Timeout limit = kDefaultTimeout) : rank(info.id), timeout(limit) {}

  std::string worker;
  int rank = -1;  // used if `worker` is empty
  Timeout timeout;
};

// How a worker joins. Fields that are left out come from the environment, as in GroupOptions.
struct RpcOptions {
  // "tensorpipe", "process_group?num_send_recv_threads=8&keep_bytes=0". Empty: BACKPLANE_RPC_BACKEND, else tensorpipe
  // if all workers are on one host that has it, else process_group.
  std::string backend = {};
  std::string group = {};  // backend of the workers' process group, as GroupOptions::backend
  std::string init_method = {};
  int rank = -1;
  int world_size = -1;
  std::optional<Store> store = {};
  std::optional<BackendOptions> options = {};  // select the backend and its init_method
  Timeout rpc_timeout = kDefaultTimeout;       // of calls with kDefaultTimeout
  Timeout timeout = kDefaultTimeout;           // of joining
};

class Worker;
Worker current();

// A reference to a value of type T that one worker owns. Copies share it. Sending it as an argument or a result creates
// another reference. The value is destroyed when no worker has a reference.
template <typename T>
class RRef {
 public:
  // Takes ownership of a handle of the C API.
  explicit RRef(bp_rref* handle) : ref_(handle, bp_rref_release) {}

  // The worker of this process that holds it.
  Worker worker() const;
  WorkerInfo owner() const;
  bool is_owner() const;
  // Blocks until the value exists, at most `timeout`, and returns a copy. Throws the failure of the function that makes
  // the value.
  T to_here(Timeout timeout = kDefaultTimeout) const;
  // Blocks until the value exists, at most `timeout`, and returns the value itself. Status::kInvalid on other workers
  // than its owner. Valid as long as this reference, also after shutdown. The program must lock a value that it
  // changes.
  T& local_value(Timeout timeout = kDefaultTimeout) const {
    void* object = nullptr;
    {
      const detail::Waiting waiting;
      backplane::detail::call(bp_rref_local, ref_.get(), timeout.count(), &object);
    }
    auto* const kept = static_cast<detail::Kept<T>*>(object);
    if (*kept->type != typeid(T)) {
      const auto type = detail::demangled(*kept->type);
      detail::fail(Status::kInvalid, "the reference is to a value of type " + std::string(type ? type.get() : "") +
                                         ", not " + detail::TypeName<T>::text());
    }
    return kept->value;
  }
  bp_rref* get() const { return ref_.get(); }
  const std::shared_ptr<bp_rref>& handle() const { return ref_; }

 private:
  std::shared_ptr<bp_rref> ref_;
};

// A handle to a worker of this process. Copies share it. The worker runs until shutdown.
class Worker {
 public:
  // Joins without making the worker the default one, for processes with several. Blocks until all workers have joined,
  // at most options.timeout.
  static Worker join(const std::string& name, const RpcOptions& options) { return join(name, options, false); }
  explicit Worker(bp_rpc* handle) : rpc_(handle, bp_rpc_release) {}

  int rank() const { return bp_rpc_rank(get()); }
  int world_size() const { return bp_rpc_world_size(get()); }
  std::string backend() const {
    const char* const backend = bp_rpc_backend(get());
    if (backend == nullptr) get_worker_info("");  // throws
    return backend;
  }
  WorkerInfo get_worker_info() const { return info(rank()); }
  // Status::kInvalid for an unknown name; the text lists the names of the workers.
  WorkerInfo get_worker_info(const std::string& name) const {
    int32_t id = -1;
    backplane::detail::call(bp_rpc_find, static_cast<const bp_rpc*>(get()), name.c_str(), &id);
    return {name, id};
  }
  WorkerInfo info(int id) const {
    const char* const name = bp_rpc_worker_name(get(), id);
    if (name == nullptr) detail::fail(Status::kInvalid, "there is no worker of rank " + std::to_string(id));
    return {name, id};
  }

  // Calls a function of another worker. Returns at once.
  template <typename R = void, typename... Arguments>
  Future<R> rpc_async(const To& to, const std::string& function, Arguments&&... arguments) const {
    const int id_of_callee = rank_of(to);  // throws before `packer` owns anything
    detail::Packer packer;
    (packer.add(std::forward<Arguments>(arguments)), ...);
    const bp_rpc_content content = packer.content();
    const auto start = [&](bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
      return bp_rpc_call(get(), id_of_callee, function.c_str(), &content, to.timeout.count(), done, ctx, id, err);
    };
    return Future<R>::start(rpc_, start, {function, id_of_callee});
  }
  // Calls a function of another worker and blocks until it has ended, at most to.timeout.
  template <typename R = void, typename... Arguments>
  R rpc_sync(const To& to, const std::string& function, Arguments&&... arguments) const {
    return rpc_async<R>(to, function, std::forward<Arguments>(arguments)...).wait();
  }
  // Calls a function of another worker, which keeps the result and owns it. Returns at once. RRef::to_here throws the
  // failure of the call.
  template <typename R, typename... Arguments>
  RRef<R> remote(const To& to, const std::string& function, Arguments&&... arguments) const {
    const int id_of_callee = rank_of(to);
    detail::Packer packer;
    (packer.add(std::forward<Arguments>(arguments)), ...);
    const bp_rpc_content content = packer.content();
    bp_rref* ref = nullptr;
    backplane::detail::call(bp_rpc_remote, get(), id_of_callee, function.c_str(), &content, to.timeout.count(), &ref);
    return RRef<R>(ref);
  }
  // Creates a reference to `value`, which this worker owns.
  template <typename T>
  RRef<T> make_rref(T value) const {
    const bp_rpc_value kept = detail::keep<T>(std::move(value));
    bp_rref* ref = nullptr;
    backplane::detail::call(bp_rref_create, get(), &kept, &ref);
    return RRef<T>(ref);
  }

  // Returns each worker's object by the worker's name. All workers must call it, in the same order. Blocks.
  template <typename T>
  std::map<std::string, T> all_gather(const T& object, Timeout timeout = kDefaultTimeout) const {
    msgpack::sbuffer bytes;
    msgpack::pack(bytes, object);
    bp_objects* raw = nullptr;
    {
      const detail::Waiting waiting;
      backplane::detail::call(bp_rpc_all_gather, get(), static_cast<const void*>(bytes.data()),
                              static_cast<uint64_t>(bytes.size()), timeout.count(), &raw);
    }
    const std::unique_ptr<bp_objects, decltype(&bp_objects_release)> objects(raw, bp_objects_release);
    std::map<std::string, T> all;
    for (int id = 0; id < static_cast<int>(bp_objects_count(raw)); ++id) {
      uint64_t size = 0;
      const auto* const data = static_cast<const char*>(bp_objects_get(raw, static_cast<uint64_t>(id), &size));
      const std::string name = info(id).name;
      try {
        size_t offset = 0;
        all.emplace(name, detail::unpack<T>(data, size, &offset));
      } catch (const Error& e) {
        detail::fail(e.status(),
                     "the object of worker '" + name + "' (rank " + std::to_string(id) + ") must be " +
                         detail::TypeName<T>::text() + ": " + e.what() + "; all workers must pass objects of one type",
                     id);
      }
    }
    return all;
  }

  // Ends the worker. `graceful`: all workers must call it; blocks until all calls, including nested ones, have
  // finished, at most `timeout`. Meanwhile only functions and callbacks of this worker may begin calls; on other
  // threads calls fail with Status::kCancelled. A warning names once a second the calls of this worker that it waits
  // for. Not graceful: blocks for at most 2 s, in which the peers are informed. Calls in flight then end with
  // Status::kCancelled. Returns one sentence for each value of this worker that others still referred to;
  // these values are destroyed. Status::kTimeout names the calls that were running, or a function that does not end
  // although cancelled() returns true in it; the worker has ended in that case as well. A second call has no effect.
  // Must not be called inside a function that a peer has called.
  std::vector<std::string> shutdown(bool graceful = true, Timeout timeout = kDefaultTimeout) const {
    char* leaks = nullptr;
    backplane::detail::call(bp_rpc_shutdown, get(), graceful ? 1 : 0, timeout.count(), &leaks);
    std::vector<std::string> lines;
    const std::string text = backplane::detail::take(leaks);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      lines.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return lines;
  }
  // Counters as JSON; bp_rpc_metrics in rpc.h lists them.
  std::string metrics() const {
    char* json = nullptr;
    backplane::detail::call(bp_rpc_metrics, get(), &json);
    return backplane::detail::take(json);
  }
  bp_rpc* get() const { return rpc_.get(); }

 private:
  friend Worker init_rpc(const std::string& name, const RpcOptions& options);
  template <typename T>
  friend class RRef;

  static Worker join(const std::string& name, const RpcOptions& options, bool is_default) {
    const auto text = [](const std::string& given) { return given.empty() ? nullptr : given.c_str(); };
    bp_rpc_config config;
    bp_rpc_config_init(&config);
    config.rank = options.rank;
    config.world_size = options.world_size;
    config.is_default = is_default ? 1 : 0;
    config.name = name.c_str();
    config.backend = text(options.backend);
    config.init_method = text(options.init_method);
    config.group = text(options.group);
    config.store = options.store ? options.store->get() : nullptr;
    config.options = options.options ? options.options->get() : nullptr;
    config.timeout_ns = options.timeout.count();
    config.rpc_timeout_ns = options.rpc_timeout.count();
    bp_rpc* rpc = nullptr;
    backplane::detail::call(bp_rpc_init, static_cast<const bp_rpc_config*>(&config), &rpc);
    return Worker(rpc);
  }
  int rank_of(const To& to) const { return to.worker.empty() ? to.rank : get_worker_info(to.worker).id; }

  detail::RpcHandle rpc_;
};

// ---- The functions of the torch.distributed.rpc module. They use the worker whose function runs on this thread, else
// the process's default worker.

// Joins as the process's default worker. Blocks until all workers have joined, at most options.timeout. `name` matches
// [A-Za-z0-9_:-]{1,127} and must be unique among the workers. Status::kInvalid if there is a default worker already.
inline Worker init_rpc(const std::string& name, const RpcOptions& options = {}) {
  return Worker::join(name, options, true);
}
// Runs the init handler of an RPC backend: joins like init_rpc, with the options of that backend and their timeout of
// calls. Status::kInvalid if the options are those of another backend. registry.hpp's init_backend creates a process
// group.
inline Worker init_backend(BackendType backend, const Store& store, const std::string& name, int rank, int world_size,
                           const BackendOptions& options, Timeout timeout = kDefaultTimeout) {
  RpcOptions joining;
  joining.backend = backend.name();
  joining.store = store;
  joining.rank = rank;
  joining.world_size = world_size;
  joining.options = options;
  joining.timeout = timeout;
  return init_rpc(name, joining);
}
// Status::kInvalid if there is no worker.
inline Worker current() {
  bp_rpc* rpc = nullptr;
  backplane::detail::call(bp_rpc_current, &rpc);
  return Worker(rpc);
}
inline WorkerInfo get_worker_info() { return current().get_worker_info(); }
inline WorkerInfo get_worker_info(const std::string& name) { return current().get_worker_info(name); }
template <typename R = void, typename... Arguments>
Future<R> rpc_async(const To& to, const std::string& function, Arguments&&... arguments) {
  return current().rpc_async<R>(to, function, std::forward<Arguments>(arguments)...);
}
template <typename R = void, typename... Arguments>
R rpc_sync(const To& to, const std::string& function, Arguments&&... arguments) {
  return current().rpc_sync<R>(to, function, std::forward<Arguments>(arguments)...);
}
template <typename R, typename... Arguments>
RRef<R> remote(const To& to, const std::string& function, Arguments&&... arguments) {
  return current().remote<R>(to, function, std::forward<Arguments>(arguments)...);
}
template <typename T>
std::map<std::string, T> all_gather(const T& object, Timeout timeout = kDefaultTimeout) {
  return current().all_gather(object, timeout);
}
inline std::vector<std::string> shutdown(bool graceful = true, Timeout timeout = kDefaultTimeout) {
  return current().shutdown(graceful, timeout);
}

template <typename T>
Worker RRef<T>::worker() const {
  bp_rpc* rpc = nullptr;
  backplane::detail::call(bp_rref_worker, static_cast<const bp_rref*>(get()), &rpc);
  return Worker(rpc);
}
template <typename T>
WorkerInfo RRef<T>::owner() const {
  return worker().info(bp_rref_owner(get()));
}
template <typename T>
bool RRef<T>::is_owner() const {
  return bp_rref_owner(get()) == worker().rank();
}
template <typename T>
T RRef<T>::to_here(Timeout timeout) const {
  const auto start = [&](bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
    return bp_rref_fetch(get(), timeout.count(), done, ctx, id, err);
  };
  return Future<T>::start(worker().rpc_, start, {"", bp_rref_owner(get())}).wait();
}

}  // namespace backplane::rpc
