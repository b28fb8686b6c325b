// SPDX-License-Identifier: Apache-2.0
//
// backplane-pmix-server: serves PMIx to the ranks of one job on this node, so that Open MPI starts in them. The
// launcher starts it with a socket as standard input; see base/pmix_server.hpp for what they say to each other. It ends
// with the launcher.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

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
      throw std::system_error(errno, std::system_category(), "cannot make a directory in " + parent);
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

std::string temporary_directory() {
  const char* const given = std::getenv("TMPDIR");
  return given == nullptr || *given == '\0' ? "/tmp" : given;
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
  if (job.name.empty() || job.ranks_per_node == 0 || job.node >= job.hosts.size()) {
    throw std::runtime_error("it is started by 'backplane run' only");
  }
  return job;
}

// Blocks signals that end the process, also in the threads of libpmix: the directory must be removed.
base::Descriptor ending_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return base::Descriptor(::signalfd(-1, &set, SFD_CLOEXEC));
}

// False after a signal.
bool wait_for_message(PmixLink* link, int signals) {
  while (!link->has_message()) {
    pollfd polled[] = {{link->fd(), POLLIN, 0}, {signals, POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0 && errno != EINTR) return false;
    if (polled[1].revents != 0) return false;
    if (polled[0].revents != 0) link->read();
  }
  return true;
}

// Returns when MPI can no longer start in the ranks, and after a signal. Throws PmixLink::Closed at the end of the job.
void serve(const Server& server, PmixLink* link, int signals) {
  while (wait_for_message(link, signals)) {
    const PmixLink::Message message = link->receive();
    // A world of MPI has all ranks or does not start: the others would wait for this one in a fence. They see the end
    // of their connections instead.
    if (message.kind == "ended" && !server.has_connected(number(message.text))) return;
  }
}

void serve_job(PmixLink* link, int signals) {
  const Job job = read_job(link);
  const Directory directory(temporary_directory());
  const Directory shared_memory("/dev/shm");
  ::setenv("PMIX_MCA_gds", "hash", 0);  // without files
  {
    const Server server(job, directory.path(), {});
    const std::vector<std::string> common = shared_memory_variables(shared_memory.path());
    for (uint32_t i = 0; i < job.ranks_per_node; ++i) {
      for (const std::string& variable : server.environment(job.first_rank() + i)) link->send({"variable", variable});
      for (const std::string& variable : common) link->send({"variable", variable});
      link->send({"rank", std::to_string(i)});
    }
    link->send({"ready", directory.path()});
    serve(server, link, signals);
  }
  // Until the last rank has ended: ranks whose MPI fails may still make files.
  while (wait_for_message(link, signals)) link->receive();
}

int run() {
  ::prctl(PR_SET_PDEATHSIG, 0);  // it sees the end of the socket, and then cleans up
  PmixLink link{base::Descriptor(::dup(STDIN_FILENO))};
  try {
    const base::Descriptor signals = ending_signals();
    serve_job(&link, signals.get());
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

int main() { return backplane::pmix::run(); }
