// SPDX-License-Identifier: Apache-2.0
//
// Keys in the store: facts/R of each rank; endpoints/R and paths/R of each rank that examines its host; hosts, the list
// of these from rank 0; arrived/S and step/S for step S of the measurements.
#include "doctor/job.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <set>

#include "backplane/base/deadline.hpp"
#include "backplane/store.hpp"
#include "common/failure.hpp"
#include "doctor/json.hpp"

namespace backplane::tool {
namespace {

struct HostEntry {
  int rank = 0;
  std::string name;
  std::string token;
  std::vector<Endpoint> endpoints;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostEntry, rank, name, token, endpoints)

int number_in(const char* variable, int fallback) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? fallback : std::atoi(text);
}

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  const ssize_t size = ::getrandom(bytes.data(), bytes.size(), 0);
  if (size != static_cast<ssize_t>(bytes.size())) fail_system("cannot create a token: getrandom");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

class Observer {
 public:
  Observer(const DoctorJob& job, Timeout timeout)
      : job_(job),
        timeout_(timeout),
        store_(Store::connect(job.store_host, job.store_port, job.job_id, timeout).with_prefix("backplane-doctor/")) {}

  Observations run() {
    const Facts own = collect_facts(job_.rank, job_.store_host, job_.is_first_on_host);
    const std::string token = random_token();
    const Responder responder(own.interfaces, token);
    if (own.is_whole) put("endpoints", job_.rank, HostEntry{job_.rank, own.host, token, responder.endpoints()});
    put("facts", job_.rank, own);
    Observations seen;
    if (job_.rank == 0) seen = gather_facts();
    if (!own.is_whole) return seen;
    const auto hosts = parse<std::vector<HostEntry>>(store_.get("hosts", 2 * timeout_));  // rank 0 waits for the ranks
    put("paths", job_.rank, measure_all(hosts, own));
    if (job_.rank == 0) gather_paths(hosts, seen);
    return seen;
  }

 private:
  template <typename Value>
  void put(const char* kind, int rank, const Value& value) {
    store_.set(fmt::format("{}/{}", kind, rank), dump(nlohmann::json(value)), timeout_);
  }

  // Empty if the key does not exist in time.
  std::optional<std::string> get(const char* kind, int rank, base::Deadline deadline) {
    try {
      return store_.get(fmt::format("{}/{}", kind, rank), Timeout(deadline.left_ns()));
    } catch (const Error& error) {
      if (error.status() != Status::kTimeout) throw;
      return std::nullopt;
    }
  }

  // Reads the facts of all ranks that report in time, and publishes the list of hosts.
  Observations gather_facts() {
    Observations seen;
    std::vector<HostEntry> hosts;
    std::set<std::string> identities;
    const auto deadline = base::Deadline::after(timeout_.count());
    for (int rank = 0; rank < job_.world_size; ++rank) {
      const std::optional<std::string> text = get("facts", rank, deadline);
      if (!text) {
        seen.silent.push_back(rank);
        continue;
      }
      auto facts = parse<Facts>(*text);
      // Several launchers may run on one host.
      const bool is_new = facts.identity.empty() || identities.insert(facts.identity).second;
      facts.is_whole = facts.is_whole && is_new;
      if (facts.is_whole) hosts.push_back(parse<HostEntry>(store_.get(fmt::format("endpoints/{}", rank), timeout_)));
      seen.ranks.push_back(std::move(facts));
    }
    store_.set("hosts", dump(nlohmann::json(hosts)), timeout_);
    return seen;
  }

  // In step s each host measures its paths to the host s entries further on, so that a host sends to one host at a time
  // and receives from one. A rank whose host is examined by another rank measures nothing.
  std::vector<Path> measure_all(const std::vector<HostEntry>& hosts, const Facts& own) {
    std::vector<Path> paths;
    size_t place = 0;
    while (place < hosts.size() && hosts[place].rank != job_.rank) ++place;
    if (place == hosts.size()) return paths;
    for (size_t step = 1; step < hosts.size(); ++step) {
      measure_host(hosts[(place + step) % hosts.size()], own, paths);
      if (!end_step(step, hosts.size())) break;
    }
    return paths;
  }

  void measure_host(const HostEntry& other, const Facts& own, std::vector<Path>& paths) const {
    const size_t before = paths.size();
    for (const Endpoint& endpoint : other.endpoints) {
      if (!is_own(endpoint.interface.address, own)) paths.push_back(measure(endpoint, other.token));
    }
    if (paths.size() == before) {
      Path none;
      none.failure = "it has none that this host does not have";
      paths.push_back(none);
    }
    for (size_t i = before; i < paths.size(); ++i) {
      paths[i].from = job_.rank;
      paths[i].to = other.rank;
    }
  }

  static bool is_own(const std::string& address, const Facts& own) {
    return std::any_of(own.interfaces.begin(), own.interfaces.end(),
                       [&address](const Interface& each) { return each.address == address; });
  }

  // Waits until all hosts have ended the step. False if one does not in time.
  bool end_step(size_t step, size_t hosts) {
    const std::string key = fmt::format("step/{}", step);
    if (store_.add(fmt::format("arrived/{}", step), 1, timeout_) == static_cast<int64_t>(hosts)) {
      store_.set(key, "", timeout_);
    }
    try {
      store_.wait({key}, timeout_);
      return true;
    } catch (const Error& error) {
      if (error.status() != Status::kTimeout) throw;
      return false;
    }
  }

  void gather_paths(const std::vector<HostEntry>& hosts, Observations& seen) {
    const auto deadline = base::Deadline::after(timeout_.count());
    for (const HostEntry& host : hosts) {
      if (const std::optional<std::string> text = get("paths", host.rank, deadline)) {
        for (Path& path : parse<std::vector<Path>>(*text)) seen.paths.push_back(std::move(path));
      } else {
        seen.unfinished.push_back(host.name);
      }
    }
  }

  const DoctorJob& job_;
  const Timeout timeout_;
  Store store_;
};

}  // namespace

DoctorJob job_from_environment() {
  DoctorJob job;
  const char* const host = std::getenv("MASTER_ADDR");
  if (std::getenv("RANK") == nullptr || number_in("WORLD_SIZE", 1) == 1) return job;
  if (host == nullptr || number_in("BACKPLANE_STORE_HOSTED", 0) != 1) {
    throw Failure(kWrongUse,
                  "this process is a rank of a job that 'backplane run' did not start; start 'backplane run ... -- "
                  "backplane doctor' on each host, or unset RANK to examine this host alone");
  }
  const char* const id = std::getenv("BACKPLANE_JOB_ID");
  job.rank = number_in("RANK", 0);
  job.world_size = number_in("WORLD_SIZE", 1);
  job.is_first_on_host = number_in("LOCAL_RANK", 0) == 0;
  job.store_host = host;
  job.store_port = static_cast<uint16_t>(number_in("MASTER_PORT", 0));
  job.job_id = id == nullptr ? "" : id;
  return job;
}

Observations observe_job(const DoctorJob& job, std::chrono::nanoseconds timeout) {
  try {
    return Observer(job, timeout).run();
  } catch (const Error& error) {
    throw Failure(kFailed, error.what());
  }
}

}  // namespace backplane::tool
