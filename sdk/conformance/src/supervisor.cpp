// SPDX-License-Identifier: Apache-2.0
#include "supervisor.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "backplane/base/host.hpp"
#include "backplane/base/pmi_server.hpp"
#include "backplane/base/pmix_server.hpp"
#include "backplane/base/subprocess.hpp"
#include "causes.hpp"
#include "child.hpp"
#include "machine_time.hpp"
#include "namespaces.hpp"

namespace backplane::conformance {
namespace {

constexpr Nanoseconds kGrace = 1 * kSecond;      // for the other ranks, after one has failed
constexpr Nanoseconds kSkipGrace = 5 * kSecond;  // after one has skipped the case: the others may still be in init
constexpr Nanoseconds kStalled = 1 * kSecond;    // after which a rank that is stopped indefinitely counts as lost
constexpr size_t kOutputKept = 4096;

struct Child {
  base::Subprocess process;
  std::vector<int32_t> members;
  base::Descriptor channel;
  base::Descriptor output;
  RecordReader reader;
  size_t done = 0;      // members whose body has returned
  int dying = 0;        // the signal that it has announced for its end; 0: none
  bool killed = false;  // by the supervisor
  bool reaped = false;
  Nanoseconds continue_at = 0;  // when to continue it; 0: never
  Nanoseconds lost_at = 0;      // when its members count as lost; 0: never
  std::string continued_key;
};

class Supervisor {
 public:
  Supervisor(const Case& which, const Subject& subject, const RunSettings& settings)
      : case_(which), subject_(subject), settings_(settings), world_(World::make(settings.ranks)) {}
  ~Supervisor() {
    for (Child& child : children_) kill_child(child);
    children_.clear();
    World::free(world_);
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Outcomes run() {
    std::string why_not;
    namespaces_ = case_.own_network ? Namespaces::with_network(why_not) : Namespaces::with_shared_memory(why_not);
    if (case_.own_network && !namespaces_) {
      outcomes_.skips.push_back(why_not);
      return std::move(outcomes_);
    }
    if (start()) {
      deadline_ = now() + case_deadline();
      while (!over()) turn();
      end_all();
      outcomes_.findings = causes(std::move(findings_));
    }
    return std::move(outcomes_);
  }

 private:
  Nanoseconds scaled(Nanoseconds time) const {
    return static_cast<Nanoseconds>(static_cast<double>(time) * settings_.timeout_scale);
  }

  Nanoseconds case_deadline() const {
    return static_cast<Nanoseconds>(static_cast<double>(scaled(case_.deadline)) * busy_factor_);
  }

  bool start() {
    try {
      pmi_.emplace("kvs", 1, settings_.ranks);
      if (!settings_.pmix_server.empty()) start_pmix();
      return start_ranks();
    } catch (const std::runtime_error& e) {
      outcomes_.harness_errors.push_back(fmt::format("cannot start a rank: {}", e.what()));
      return false;
    }
  }

  void start_pmix() {
    const base::PmixServer::Job job = {base::PmixServer::random_name(), {base::host_name()}, 0, settings_.ranks};
    std::function<bool()> enter;
    if (namespaces_) enter = [this] { return namespaces_->join(); };  // the ranks reach it over loopback
    try {
      pmix_.emplace(settings_.pmix_server, job, enter);
    } catch (const std::runtime_error& e) {
      throw std::runtime_error(fmt::format("cannot serve PMIx to it: {}", e.what()));
    }
  }

  bool start_ranks() {
    std::vector<int32_t> ranks;
    for (int32_t rank = 0; rank < settings_.ranks; ++rank) ranks.push_back(rank);
    bool started = true;
    if (settings_.one_process) {
      started = fork_child(ranks, false);
    } else {
      for (const int32_t rank : ranks) started = started && fork_child({rank}, false);
    }
    for (int32_t i = 0; i < case_.extra_processes; ++i) started = started && fork_child({settings_.ranks + i}, true);
    return started;
  }

  bool fork_child(const std::vector<int32_t>& members, bool is_extra) {
    base::Pipe channel = base::Pipe::open();
    base::Pipe output = base::Pipe::open();
    const base::Descriptor pmi = is_extra || members.size() > 1 ? base::Descriptor() : pmi_->connect(members.front());
    Child child;
    if (channel && output) {
      child.process = base::Subprocess::fork([this, &members, is_extra, &channel, &output, &pmi]() -> int {
        pmi_.reset();
        if (pmi) offer_pmi(members.front(), pmi.get());
        pmix_.reset();
        run_in_child(members, is_extra, channel.write.get(), output.write.get());
      });
    }
    if (!child.process) {
      outcomes_.harness_errors.push_back(fmt::format("cannot start a rank: {}", std::strerror(errno)));
      return false;
    }
    base::set_nonblocking(channel.read.get());
    base::set_nonblocking(output.read.get());
    child.members = members;
    child.channel = std::move(channel.read);
    child.output = std::move(output.read);
    for (const int32_t member : members) world_->set_pid(member, child.process.pid());
    children_.push_back(std::move(child));
    return true;
  }

  // For MPI: its processes meet as those of mpiexec do.
  void offer_pmi(int32_t rank, int fd) const {
    ::setenv("PMI_FD", std::to_string(fd).c_str(), 1);
    ::setenv("PMI_RANK", std::to_string(rank).c_str(), 1);
    ::setenv("PMI_SIZE", std::to_string(settings_.ranks).c_str(), 1);
    if (!pmix_) return;
    ::setenv("MPIR_CVAR_PMI_VERSION", "1", 0);  // MPICH 5 ends if it finds PMI-1 and PMIx and no choice
    for (const auto& [name, value] : pmix_->variables(rank)) ::setenv(name.c_str(), value.c_str(), 1);
  }

  [[noreturn]] void run_in_child(const std::vector<int32_t>& members, bool is_extra, int channel, int output) {
    if (settings_.in_child) settings_.in_child(members.front());
    ChildSetup setup;
    setup.which = &case_;
    setup.members = members;
    setup.is_extra = is_extra;
    setup.output = output;
    setup.run.world = world_;
    setup.run.channel = Channel(channel);
    setup.run.seed = settings_.seed;
    setup.run.timeout_scale = settings_.timeout_scale;
    setup.run.busy_factor = busy_factor_;
    setup.run.path = subject_.path;
    setup.run.plugin = subject_.path.empty() ? subject_.entry : nullptr;
    setup.run.backend_id = subject_.backend;
    setup.run.options = subject_.options;
    setup.run.on_device = settings_.on_device;
    if (namespaces_ && !namespaces_->join()) {
      const std::string why_not =
          fmt::format("the case's own namespaces cannot be entered here: {}", std::strerror(errno));
      setup.run.channel.send({Record::kSkip, members.front(), {why_not}});
      _exit(0);
    }
    run_child(setup);
  }

  bool over() const {
    return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.reaped; });
  }

  // Waits for the next event and handles it.
  void turn() {
    std::vector<pollfd> polled = {{pmi_->fd(), POLLIN, 0}};
    for (Child& child : children_) {
      polled.push_back({child.channel.get(), POLLIN, 0});
      polled.push_back({child.output.get(), POLLIN, 0});
      polled.push_back({child.reaped ? -1 : child.process.fd(), POLLIN, 0});
    }
    const Nanoseconds left = std::clamp<Nanoseconds>(next_event() - now(), 0, 50 * kMillisecond);
    const timespec time = {0, left};
    ppoll(polled.data(), polled.size(), &time, nullptr);
    pmi_->serve();
    for (Child& child : children_) {
      listen(child);
      read_output(child);
      reap(child, base::Deadline::after(0));
    }
    keep_times();
  }

  Nanoseconds next_event() const {
    Nanoseconds next = std::min(deadline_, grace_until_);
    for (const Child& child : children_) {
      if (child.continue_at > 0) next = std::min(next, child.continue_at);
      if (child.lost_at > 0) next = std::min(next, child.lost_at);
    }
    return next;
  }

  void keep_times() {
    for (Child& child : children_) {
      if (child.continue_at > 0 && now() >= child.continue_at) {
        child.continue_at = 0;
        kill(child.process.pid(), SIGCONT);
        world_->set(child.continued_key, "");
      }
      if (child.lost_at > 0 && now() >= child.lost_at) {
        child.lost_at = 0;
        set_states(child, RankState::kLost);
        child.done = child.members.size();  // it cannot report it
        frozen_.push_back(&child - children_.data());
      }
    }
    // A rank that is stopped indefinitely is ended with the last of the others.
    const auto is_inactive = [this](const Child& child) {
      return child.reaped || std::find(frozen_.begin(), frozen_.end(), &child - children_.data()) != frozen_.end();
    };
    if (!frozen_.empty() && std::all_of(children_.begin(), children_.end(), is_inactive)) end_all();
    if (now() >= deadline_) {
      report_late_ranks();
      end_all();
    } else if (now() >= grace_until_) {
      end_all();
    }
  }

  void report_late_ranks() {
    for (const Child& child : children_) {
      if (child.reaped || child.done == child.members.size()) continue;
      for (const int32_t member : child.members) {
        add_finding(member, fmt::format("the case ends within {} s", case_deadline() / kSecond), "it was still running",
                    world_->step(member));
      }
    }
  }

  void listen(Child& child) {
    const auto feed = [&child](std::string_view bytes) { child.reader.feed(bytes); };
    if (!base::read_available(child.channel.get(), feed)) child.channel.reset();
    Record record;
    while (child.reader.next(record)) take(child, record);
  }

  void read_output(Child& child) {
    const auto keep = [this](std::string_view bytes) { keep_output(bytes); };
    if (!base::read_available(child.output.get(), keep)) child.output.reset();
  }

  void keep_output(std::string_view text) {
    outcomes_.output += text.substr(0, kOutputKept - std::min(kOutputKept, outcomes_.output.size()));
    if (reported_by_sanitizer_ || !has_sanitizer_report(text)) return;
    reported_by_sanitizer_ = true;
    add_finding(-1, "no report of a sanitizer", std::string(text.substr(0, 600)), "");
  }

  void add_finding(int32_t member, const std::string& expected, const std::string& actual, const std::string& step,
                   Nanoseconds at = now(), bool is_last = false) {
    findings_.push_back({{member, expected, actual, step}, at, is_last});
  }

  static std::string field(const Record& record, size_t i) {
    return i < record.fields.size() ? record.fields[i] : std::string();
  }
  static Nanoseconds time_of(const Record& record) {  // a record that was too long has lost its last field
    const std::string at = field(record, 3);
    return at.empty() ? now() : std::strtoll(at.c_str(), nullptr, 10);
  }
  static uint32_t number(const Record& record, size_t i) {
    return static_cast<uint32_t>(std::strtoul(field(record, i).c_str(), nullptr, 10));
  }

  void take(Child& child, const Record& record) {
    switch (record.kind) {
      case Record::kFinding:
      case Record::kFatal:
        add_finding(record.member, field(record, 0), field(record, 1), field(record, 2), time_of(record),
                    record.kind == Record::kFatal);
        if (record.kind == Record::kFatal) begin_grace();
        break;
      case Record::kSkip:
        outcomes_.skips.push_back(field(record, 0));
        begin_grace(kSkipGrace);
        break;
      case Record::kHarnessError:
        outcomes_.harness_errors.push_back(field(record, 0));
        begin_grace();
        break;
      case Record::kCell:
        outcomes_.cells.push_back({number(record, 0), number(record, 1), number(record, 2), number(record, 3),
                                   number(record, 4), 1 - std::min(1U, number(record, 4))});
        break;
      case Record::kLog:
        keep_output(fmt::format("rank {} logged: {}\n", record.member, field(record, 1)));
        break;
      case Record::kDying:
        child.dying = static_cast<int>(number(record, 0));
        break;
      case Record::kFreeze:
        freeze(child, std::strtol(field(record, 0).c_str(), nullptr, 10), field(record, 1));
        break;
      case Record::kFacts:
        outcomes_.facts.add(record.fields);
        break;
      case Record::kDone:
        ++child.done;
        break;
    }
  }

  void freeze(Child& child, int64_t milliseconds, const std::string& word) {
    kill(child.process.pid(), SIGSTOP);
    child.continued_key = word;
    if (milliseconds >= 0) {
      child.continue_at = now() + milliseconds * kMillisecond;
    } else {
      child.lost_at = now() + scaled(kStalled);
    }
  }

  void begin_grace(Nanoseconds grace = kGrace) { grace_until_ = std::min(grace_until_, now() + scaled(grace)); }

  void set_states(const Child& child, RankState state) {
    for (const int32_t member : child.members) {
      if (member < settings_.ranks) world_->set_state(member, state);
    }
  }

  void reap(Child& child, base::Deadline deadline) {
    const std::optional<int> ended = child.reaped ? std::nullopt : child.process.wait(deadline);
    if (!ended) return;
    const int status = *ended;
    child.reaped = true;
    if (pmix_ && child.members.front() < settings_.ranks) pmix_->rank_ended(child.members.front());
    listen(child);
    read_output(child);
    if (child.killed) return;
    const bool by_signal = WIFSIGNALED(status);
    if (child.dying != 0 && (child.dying == SIGSEGV || (by_signal && WTERMSIG(status) == child.dying))) {
      set_states(child, RankState::kLost);  // a sanitizer may turn a SIGSEGV into an exit
    } else if (!by_signal && WEXITSTATUS(status) == 0 && child.done == child.members.size()) {
      set_states(child, RankState::kDeparted);
    } else {
      set_states(child, RankState::kLost);
      if (grace_until_ == INT64_MAX || by_signal) report_death(child, status);
      world_->break_barriers();
      begin_grace();
    }
  }

  void report_death(const Child& child, int status) {
    const std::string how = WIFSIGNALED(status) ? "it died of " + base::signal_name(WTERMSIG(status))
                                                : fmt::format("it ended with exit code {}", WEXITSTATUS(status));
    const int32_t member = child.members.size() == 1 ? child.members.front() : -1;
    // If it is the first to end, the others may have noticed that before.
    add_finding(member, "the process lives until the case is over", how, world_->step(child.members.front()),
                grace_until_ == INT64_MAX ? 0 : now(), true);
  }

  void kill_child(Child& child) {
    if (child.reaped) return;
    child.killed = true;
    child.process.signal(SIGKILL);
  }

  void end_all() {
    for (Child& child : children_) kill_child(child);
    for (Child& child : children_) reap(child, base::Deadline::never());
  }

  const Case& case_;
  const Subject& subject_;
  const RunSettings settings_;
  const double busy_factor_ = busy_factor();
  World* const world_;
  std::optional<Namespaces> namespaces_;
  std::optional<base::PmiServer> pmi_;    // empty in the ranks
  std::optional<base::PmixServer> pmix_;  // likewise; and where none is used
  std::vector<Child> children_;
  std::vector<ptrdiff_t> frozen_;  // indices of children that are stopped indefinitely
  Nanoseconds deadline_ = 0;
  Nanoseconds grace_until_ = INT64_MAX;
  std::vector<FindingInTime> findings_;
  bool reported_by_sanitizer_ = false;
  Outcomes outcomes_;
};

}  // namespace

Outcomes run_case(const Case& which, const Subject& subject, const RunSettings& settings) {
  return Supervisor(which, subject, settings).run();
}

}  // namespace backplane::conformance
