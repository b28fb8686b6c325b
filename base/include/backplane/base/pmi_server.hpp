// SPDX-License-Identifier: Apache-2.0
//
// The launcher's end of PMI-1: MPICH, Intel MPI and their descendants start as one world in the processes that it
// serves. Linux only.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "descriptor.hpp"
#include "pmi_wire.hpp"

namespace backplane::base {

// One host's part of a job with equally many ranks on each host, numbered host by host. Used by one thread, which polls
// fd() and never blocks in it.
class PmiServer {
 public:
  using Values = std::map<std::string, std::string>;
  // Called when all ranks of this host are in a barrier, with what they have put since the last one. It sends that to
  // the other hosts, and calls received() once all hosts are in that barrier.
  using Exchange = std::function<void(const Values& own)>;

  // Several hosts need an exchange. Throws std::system_error.
  PmiServer(std::string name, int32_t hosts, int32_t ranks_per_host, Exchange exchange = {})
      : name_(std::move(name)),
        hosts_(hosts),
        exchange_(std::move(exchange)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        ranks_(static_cast<size_t>(ranks_per_host)) {
    if (!epoll_) throw std::system_error(errno, std::system_category(), "cannot open an epoll");
    values_["PMI_process_mapping"] =
        "(vector,(0," + std::to_string(hosts) + "," + std::to_string(ranks_per_host) + "))";
  }

  // The rank's end of a new connection, close-on-exec. The rank inherits it as the number in PMI_FD, with PMI_RANK and
  // PMI_SIZE. Throws std::system_error.
  Descriptor connect(int32_t local_rank) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::system_error(errno, std::system_category(), "cannot open a socket pair");
    }
    Descriptor theirs(ends[1]);
    Rank& rank = ranks_[static_cast<size_t>(local_rank)];
    rank = Rank();
    rank.fd.reset(ends[0]);
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(local_rank);
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, ends[0], &event) != 0) {
      throw std::system_error(errno, std::system_category(), "cannot poll a socket");
    }
    return theirs;
  }

  // Readable while serve() has work.
  int fd() const { return epoll_.get(); }

  // Replies to what has arrived.
  void serve() {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) read(events[static_cast<size_t>(i)].data.u32);
  }

  // What the ranks of all hosts have put before the barrier, which ends.
  void received(const Values& all) {
    for (const auto& [key, value] : all) values_[key] = value;
    for (Rank& rank : ranks_) {
      if (std::exchange(rank.waits, false)) reply(rank, "cmd=barrier_out");
    }
  }

  // No barrier can end any more: disconnects the ranks that are in one, or come to one, so that their MPI fails.
  void end_barriers() {
    barriers_ended_ = true;
    for (Rank& rank : ranks_) {
      if (rank.waits) rank = Rank();
    }
  }

 private:
  static constexpr size_t kMaxLine = 4096;  // bytes; a key and a value are shorter
  static constexpr size_t kMaxKey = 64;
  static constexpr size_t kMaxValue = 1024;

  struct Rank {
    Descriptor fd;
    std::string input;
    bool waits = false;  // in a barrier
  };

  void read(uint32_t local_rank) {
    Rank& rank = ranks_[local_rank];
    std::array<char, kMaxLine> bytes;
    const ssize_t size = ::recv(rank.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (size <= 0) return close(rank);
    rank.input.append(bytes.data(), static_cast<size_t>(size));
    for (size_t end = 0; rank.fd && (end = rank.input.find('\n')) != std::string::npos;) {
      const std::string line = rank.input.substr(0, end);
      rank.input.erase(0, end + 1);
      answer(rank, line);
    }
    if (rank.input.size() > kMaxLine) close(rank);
  }

  void answer(Rank& rank, const std::string& line) {
    const std::string command = pmi_field(line, "cmd");
    if (command == "init") {
      reply(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
    } else if (command == "get_maxes") {
      reply(rank, "cmd=maxes kvsname_max=256 keylen_max=" + std::to_string(kMaxKey) +
                      " vallen_max=" + std::to_string(kMaxValue));
    } else if (command == "get_appnum") {
      reply(rank, "cmd=appnum rc=0 appnum=0");
    } else if (command == "get_universe_size") {
      reply(rank, "cmd=universe_size rc=0 size=" + std::to_string(static_cast<size_t>(hosts_) * ranks_.size()));
    } else if (command == "get_my_kvsname") {
      reply(rank, "cmd=my_kvsname rc=0 kvsname=" + name_);
    } else if (command == "get_ranks2hosts") {
      reply(rank, "cmd=put_ranks2hosts 0 0");  // of Intel MPI, which then finds its neighbours itself
    } else if (command == "put") {
      put(rank, pmi_field(line, "key"), pmi_field(line, "value"));
    } else if (command == "get") {
      get(rank, pmi_field(line, "key"));
    } else if (command == "barrier_in") {
      if (barriers_ended_) return close(rank);
      rank.waits = true;
      finish_barrier();
    } else if (command == "finalize") {
      reply(rank, "cmd=finalize_ack rc=0");
    } else if (command == "abort") {
      // The client waits until it is killed or the connection ends, and then ends with its own code.
      ::shutdown(rank.fd.get(), SHUT_WR);
    } else {
      reply(rank, "cmd=" + command + "_result rc=-1 msg=unsupported");
    }
  }

  void put(Rank& rank, const std::string& key, const std::string& value) {
    if (key.empty() || key.size() > kMaxKey || value.size() > kMaxValue) {
      return reply(rank, "cmd=put_result rc=-1 msg=invalid_length");
    }
    values_[key] = value;
    if (hosts_ > 1) unsent_[key] = value;
    reply(rank, "cmd=put_result rc=0 msg=success");
  }

  void get(Rank& rank, const std::string& key) {
    const auto found = values_.find(key);
    reply(rank, found == values_.end() ? "cmd=get_result rc=-1 msg=key_not_found"
                                       : "cmd=get_result rc=0 msg=success value=" + found->second);
  }

  void finish_barrier() {
    if (!std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& each) { return each.waits; })) return;
    if (hosts_ == 1) return received({});
    exchange_(std::exchange(unsent_, {}));
  }

  // The client waits for each reply, so that the socket has room.
  void reply(Rank& rank, const std::string& line) {
    const std::string bytes = line + "\n";
    const ssize_t sent = ::send(rank.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(bytes.size())) close(rank);
  }

  // A rank does not come again, and no barrier can end without it.
  void close(Rank& rank) {
    rank = Rank();
    end_barriers();
  }

  const std::string name_;
  const int32_t hosts_;
  const Exchange exchange_;
  Descriptor epoll_;
  std::vector<Rank> ranks_;
  Values values_;
  Values unsent_;  // to other hosts
  bool barriers_ended_ = false;
};

}  // namespace backplane::base
