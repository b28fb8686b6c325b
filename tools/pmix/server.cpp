// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace backplane::pmix {
namespace {

// The state of the only server of this process: not all callbacks of libpmix carry a pointer of the caller.
struct State {
  std::mutex mutex;
  std::set<uint32_t> connected;  // the ranks that have connected, perhaps no more
};

State& state() {
  static State instance;
  return instance;
}

// While it exists, libpmix may take a minute. After that the process ends, because its launcher may have been killed.
class HangLimit {
 public:
  HangLimit() {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(60);
  }
  ~HangLimit() { ::alarm(0); }
  HangLimit(const HangLimit&) = delete;
  HangLimit& operator=(const HangLimit&) = delete;
};

// libpmix reads the first message of a connection on its only thread, without a limit. Any process of this host can
// connect and send nothing. Accepted sockets inherit this limit from the listening socket.
void limit_time_of_handshakes() {
  constexpr int kMostDescriptors = 256;
  const timeval limit = {10, 0};
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
}

void check(pmix_status_t status, const char* what) {
  if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED) return;
  throw std::runtime_error(std::string(what) + " failed: " + PMIx_Error_string(status));
}

// Calls `start` with a callback and waits until it has been called.
template <typename Start>
pmix_status_t wait_for(const Start& start) {
  std::promise<pmix_status_t> done;
  const auto on_done = [](pmix_status_t status, void* data) {
    static_cast<std::promise<pmix_status_t>*>(data)->set_value(status);
  };
  const pmix_status_t status = start(static_cast<pmix_op_cbfunc_t>(on_done), &done);
  return status == PMIX_SUCCESS ? done.get_future().get() : status;
}

pmix_proc_t process(const Job& job, uint32_t rank) {
  pmix_proc_t result;
  PMIX_LOAD_PROCID(&result, job.name.c_str(), rank);
  return result;
}

pmix_status_t on_connected(const pmix_proc_t* who, void*, pmix_info_t*, size_t, pmix_op_cbfunc_t, void*) {
  const std::lock_guard lock(state().mutex);
  state().connected.insert(who->rank);
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t on_finalized(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }

// The rank ends with a code of its own after it, and the launcher ends the others.
pmix_status_t on_abort(const pmix_proc_t*, void*, int, const char*, pmix_proc_t*, size_t, pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}

// Nothing is exchanged with other nodes: the job has only this one. The data are malloc's, and this owns them.
pmix_status_t on_fence(const pmix_proc_t*, size_t, const pmix_info_t* info, size_t info_count, char* data, size_t,
                       pmix_modex_cbfunc_t, void*) {
  std::free(data);
  // A rank that was in the fence has died.
  for (size_t i = 0; i < info_count; ++i) {
    if (!PMIX_CHECK_KEY(&info[i], PMIX_LOCAL_COLLECTIVE_STATUS)) continue;
    if (info[i].value.data.status != PMIX_SUCCESS) return info[i].value.data.status;
  }
  return PMIX_OPERATION_SUCCEEDED;
}

// Ranks put everything before the fence. Other data do not exist.
pmix_status_t on_direct_modex(const pmix_proc_t*, const pmix_info_t*, size_t, pmix_modex_cbfunc_t, void*) {
  return PMIX_ERR_NOT_FOUND;
}

pmix_status_t on_register_events(pmix_status_t*, size_t, const pmix_info_t*, size_t, pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t on_deregister_events(pmix_status_t*, size_t, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }

// libpmix itself handles the files that a rank registers for removal, if there is such a function.
pmix_status_t on_job_control(const pmix_proc_t*, const pmix_proc_t*, size_t, const pmix_info_t*, size_t,
                             pmix_info_cbfunc_t, void*) {
  return PMIX_ERR_NOT_SUPPORTED;
}

pmix_server_module_t functions() {
  pmix_server_module_t table = {};
  table.client_connected2 = on_connected;
  table.client_finalized = on_finalized;
  table.abort = on_abort;
  table.fence_nb = on_fence;
  table.direct_modex = on_direct_modex;
  table.register_events = on_register_events;
  table.deregister_events = on_deregister_events;
  table.job_control = on_job_control;
  return table;
}

}  // namespace

Server::Server(Job job, const std::string& directory) : job_(std::move(job)) {
  const HangLimit limit;
  // With room for the functions that newer versions of libpmix read after these.
  static struct {
    pmix_server_module_t functions;
    void* none[64];
  } table = {functions(), {}};
  Attributes own;
  own.add(PMIX_SERVER_TMPDIR, directory);
  own.add(PMIX_SYSTEM_TMPDIR, directory);
  own.add(PMIX_HOSTNAME, job_.hosts[job_.node]);
  check(PMIx_server_init(&table.functions, own.data(), own.size()), "PMIx_server_init");
  limit_time_of_handshakes();
  Attributes attributes;
  // Open MPI removes an empty directory at its end, and its ranks may fail if they make the same one at once.
  const std::string of_job = directory + "/job";
  std::filesystem::create_directory(of_job);
  describe(job_, of_job, &attributes);
  check(wait_for([this, &attributes](pmix_op_cbfunc_t done, void* data) {
          return PMIx_server_register_nspace(job_.name.c_str(), static_cast<int>(job_.ranks_per_node),
                                             attributes.data(), attributes.size(), done, data);
        }),
        "PMIx_server_register_nspace");
  for (uint32_t i = 0; i < job_.ranks_per_node; ++i) {
    const pmix_proc_t who = process(job_, job_.first_rank() + i);
    check(wait_for([&who](pmix_op_cbfunc_t done, void* data) {
            return PMIx_server_register_client(&who, ::getuid(), ::getgid(), nullptr, done, data);
          }),
          "PMIx_server_register_client");
  }
}

Server::~Server() {
  const HangLimit limit;
  wait_for([this](pmix_op_cbfunc_t done, void* data) {
    PMIx_server_deregister_nspace(job_.name.c_str(), done, data);
    return PMIX_SUCCESS;
  });
  PMIx_server_finalize();
}

std::vector<std::string> Server::environment(uint32_t rank) const {
  const pmix_proc_t who = process(job_, rank);
  char** variables = nullptr;
  check(PMIx_server_setup_fork(&who, &variables), "PMIx_server_setup_fork");
  std::vector<std::string> result;
  for (char** each = variables; each != nullptr && *each != nullptr; ++each) {
    result.emplace_back(*each);
    std::free(*each);
  }
  std::free(variables);
  // Open MPI 4 takes a rank for a program without launcher unless it knows the launcher. By this variable it knows
  // IBM's, which also serves PMIx and nothing else.
  result.emplace_back("JSM_JSRUN_PORT=0");
  return result;
}

bool Server::has_connected(uint32_t rank) const {
  const std::lock_guard lock(state().mutex);
  return state().connected.count(rank) != 0;
}

}  // namespace backplane::pmix
