// SPDX-License-Identifier: Apache-2.0
//
// backplane-pmix-server: serves PMIx to the ranks of one job on this node, so that Open MPI starts in them. The
// launcher starts it with a socket as standard input; base/pmix_link.hpp describes their messages. It ends with the
// launcher.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "backplane/base/pmix_link.hpp"
#include "server.hpp"

namespace backplane::pmix {
namespace {

using base::PmixLink;

// A directory that only this user can enter.
class Directory {
 public:
  explicit Directory(const std::string& parent) : path_(parent + "/backplane-pmix-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error("cannot make a directory in " + parent + ": " + std::strerror(errno) +
                               "; check that it exists, can be written and has room");
    }
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Absolute: ranks may work in another directory.
std::string temporary_directory() {
  const char* const given = std::getenv("TMPDIR");
  return given == nullptr || *given == '\0' ? "/tmp" : std::filesystem::absolute(given).string();
}

// Where Open MPI has shared memory by default. Containers may lack /dev/shm.
std::string shared_memory_directory(const Directory& other) {
  return ::access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : other.path();
}

// Open MPI's shared memory is removed with the directory, whatever has become of its rank. Its names in 4 and in 5.
std::vector<std::string> shared_memory_variables(const std::string& directory) {
  std::vector<std::string> result;
  for (const char* const name : {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"}) {
    if (std::getenv(name) == nullptr) result.push_back(std::string(name) + "=" + directory);
  }
  return result;
}

uint32_t number(const std::string& text) { return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10)); }

Job read_job(PmixLink* link) {
  Job job;
  for (;;) {
    const PmixLink::Message message = link->receive();
    if (message.kind == "start") break;
    if (message.kind == "name") job.name = message.text;
    if (message.kind == "node") job.node = number(message.text);
    if (message.kind == "ranks") job.ranks_per_node = number(message.text);
    if (message.kind == "host") job.hosts.push_back(message.text);
  }
  if (job.hosts.size() > 1) throw std::runtime_error("it serves jobs on one node; start those on several with mpirun");
  if (job.name.empty() || job.ranks_per_node == 0 || job.node >= job.hosts.size()) {
    throw std::runtime_error("the launcher has not described the job; install all of Backplane anew");
  }
  return job;
}

// Ignores signals that end the job: they may be sent to all of its processes, whose ranks use MPI until they end. The
// socket ends with the launcher.
void ignore_ending_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
}

// Each rank has a connection.
void raise_descriptor_limit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Returns when MPI can no longer start in the ranks. Throws PmixLink::Closed at the end of the job.
void serve(const Server& server, PmixLink* link) {
  for (;;) {
    const PmixLink::Message message = link->receive();
    // A world of MPI has all ranks or does not start: the others would wait for this one in a fence. They see the end
    // of their connections instead.
    if (message.kind == "ended" && !server.has_connected(number(message.text))) return;
  }
}

void serve_job(PmixLink* link) {
  const Job job = read_job(link);
  const Directory directory(temporary_directory());
  const Directory shared_memory(shared_memory_directory(directory));
  for (const Directory* const each : {&directory, &shared_memory}) link->send({"directory", each->path()});
  ::setenv("PMIX_MCA_gds", "hash", 0);  // without files
  {
    const Server server(job, directory.path());
    const std::vector<std::string> common = shared_memory_variables(shared_memory.path());
    for (uint32_t i = 0; i < job.ranks_per_node; ++i) {
      for (const std::string& variable : server.environment(job.first_rank() + i)) link->send({"variable", variable});
      for (const std::string& variable : common) link->send({"variable", variable});
      link->send({"rank", std::to_string(i)});
    }
    link->send({"ready", ""});
    serve(server, link);
  }
  // Until the last rank has ended: ranks whose MPI fails may still make files.
  for (;;) link->receive();
}

int run() {
  ::prctl(PR_SET_PDEATHSIG, 0);  // it sees the end of the socket, and then cleans up
  ignore_ending_signals();
  raise_descriptor_limit();
  PmixLink link{base::Descriptor(::dup(STDIN_FILENO))};
  try {
    serve_job(&link);
    return 0;
  } catch (const PmixLink::Closed&) {
    return 0;
  } catch (const std::exception& e) {
    try {
      link.send({"error", e.what()});
    } catch (const PmixLink::Closed&) {
    }
    return 1;
  }
}

}  // namespace
}  // namespace backplane::pmix

int main() {
  struct stat input = {};
  if (::fstat(STDIN_FILENO, &input) == 0 && S_ISSOCK(input.st_mode)) return backplane::pmix::run();
  std::fprintf(stderr, "backplane-pmix-server: 'backplane run --pmix' starts this program; it is not for users\n");
  return 2;
}
